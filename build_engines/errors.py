"""What can go wrong between a checkpoint and a served model.

    BuildError
    ├── SourceError      the weights or the model's entry are missing, or not the ones expected
    ├── CheckpointError  the checkpoint is damaged, or asks for something a state dict does not need
    ├── GraphError       the weights and the network's description do not fit together
    ├── ImageSetError    the pictures to calibrate or to judge with cannot be used
    ├── TextSetError     the texts to learn from or to judge with cannot be used
    ├── TargetError      this machine or its runtime cannot build such an engine
    ├── GateError        the built model does not behave; nothing was published
    ├── PublishError     the finished model could not be put in its place
    └── TuneError        the server could not be measured

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


class ImageSetError(BuildError):
    """The pictures to calibrate or to judge with cannot be used."""


class TextSetError(BuildError):
    """The texts to learn from or to judge with cannot be used."""


class TargetError(BuildError):
    """This machine or its runtime cannot build such an engine."""


class GateError(BuildError):
    """A built model does not behave as its source does; nothing was published."""


class PublishError(BuildError):
    """The finished model could not be put in its place."""


class TuneError(BuildError):
    """The server could not be measured."""
