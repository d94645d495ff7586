"""What can go wrong between a checkpoint and a served model.

    BuildError
    ├── SourceError      the weights or the model's entry are missing, or not the ones expected
    ├── CheckpointError  the checkpoint is damaged, or asks for something a state dict does not need
    ├── GraphError       the weights and the network's description do not fit together
    ├── GateError        the built model does not behave; nothing was published
    └── PublishError     the finished model could not be put in its place

Every message is one or two sentences for a person: what was found and what helps.
"""

from __future__ import annotations


class BuildError(Exception):
    """Something about a build that its user can understand and mend."""


class SourceError(BuildError):
    """The weights or the model's entry are missing, or not the ones expected."""


class CheckpointError(BuildError):
    """A checkpoint is damaged, or asks for something a state dict does not need."""


class GraphError(BuildError):
    """The weights and the network's description do not fit together."""


class GateError(BuildError):
    """A built model does not behave as a classifier should; nothing was published."""


class PublishError(BuildError):
    """The finished model could not be put in its place."""
