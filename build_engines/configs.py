"""The `config.pbtxt` files of the three models that make one: preprocessor, network, ensemble.

A GPU server reads `config.pbtxt`; a CPU server is started with `--model-config-name=cpu` and reads
`configs/cpu.pbtxt` where there is one. The files of the default model that are kept in git are written by
this module, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from build_engines.sources import INPUT, OUTPUTS

DEFAULT_MODEL = "ensemble_model"
_STEPS = {"classify": "classifier", "embed": "embedder"}

# What the preprocessor's own configuration promises, and the most that the gateway sends in one request.
PREPROCESSOR_MAX_BATCH = 256


@dataclass(frozen=True)
class Entry:
    """Where one model lives in a repository: the ensemble that callers name, and its two steps."""

    repository: Path
    model: str
    """The ensemble's name."""
    task: str = "classify"

    @property
    def preprocessor(self) -> str:
        return "preprocessor" if self._default else f"{self.model}_preprocessor"

    @property
    def network(self) -> str:
        """The step that runs the engine; its folder holds versions, labels and the recipe."""
        return _STEPS[self.task] if self._default else f"{self.model}_{_STEPS[self.task]}"

    @property
    def folder(self) -> Path:
        """The network's folder."""
        return self.repository / self.network

    @property
    def _default(self) -> bool:
        return self.model == DEFAULT_MODEL and self.task == "classify"


@dataclass(frozen=True)
class Tuning:
    """What `python -m build_engines tune` may choose; None leaves it to the target."""

    instances: int | None = None
    threads: int | None = None
    """Of one instance; CPU targets only."""
    max_batch: int | None = None
    delay_us: int | None = None
    """How long a batch may wait for more, in microseconds."""


@dataclass(frozen=True)
class Serving:
    """How Triton is to run one network."""

    platform: str
    """The line that says what runs it, such as `backend: "python"`."""
    variant: str
    """The name of the configuration: "cpu", or "" for the one that GPU servers read."""
    max_batch: int
    """Not above what the engine was built for."""
    instances: int
    """Copies on each device."""
    delay_us: int
    why: Mapping[str, str] = field(default_factory=dict)
    """Comments, by what they explain: "head", "instance_group", "dynamic_batching" or "model_warmup"."""
    warmup: bool = False
    """Whether Triton runs one image and a full batch before it says that the model is ready."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    output_suffix: str = ""
    """What the runtime wants behind the name of its output."""

    @property
    def file(self) -> str:
        """The configuration's path inside the model's folder."""
        return f"configs/{self.variant}.pbtxt" if self.variant else "config.pbtxt"

    def tuned(self, tuning: Tuning) -> Serving:
        """With what tuning chose in place of the target's own values."""
        parameters = dict(self.parameters)
        if tuning.threads is not None:
            parameters["threads"] = str(tuning.threads)
        return replace(
            self,
            parameters=parameters,
            instances=self.instances if tuning.instances is None else tuning.instances,
            max_batch=self.max_batch if tuning.max_batch is None else min(tuning.max_batch, self.max_batch),
            delay_us=self.delay_us if tuning.delay_us is None else tuning.delay_us,
        )


def network_config(
    entry: Entry,
    serving: Serving,
    *,
    size: int,
    width: int,
    version: str | None = None,
    certificate: Mapping[str, Any] | None = None,
) -> str:
    """The network's configuration. With a `version`, Triton serves that one and no other, with its own labels."""
    output = OUTPUTS[entry.task]
    file = f"{version}/labels.txt" if version else "labels.txt"
    labels = f'    label_filename: "{file}"\n' if entry.task == "classify" else ""
    parameters = dict(serving.parameters)
    if certificate is not None:
        parameters["certificate"] = json.dumps(certificate, separators=(",", ":"), ensure_ascii=True)
    parts = [
        *_comment(serving, "head"),
        f'name: "{entry.network}"',
        serving.platform,
        f"max_batch_size: {serving.max_batch}{_only(version)}",
        "input [",
        "  {",
        f'    name: "{INPUT}"',
        "    data_type: TYPE_UINT8",
        f"    dims: [ {size}, {size}, 3 ]",
        "  }",
        "]",
        "output [",
        "  {",
        f'    name: "{output}{serving.output_suffix}"',
        "    data_type: TYPE_FP32",
        f"    dims: [ {width} ]",
        f"{labels}  }}",
        "]",
        *_comment(serving, "instance_group"),
        "instance_group [",
        "  {",
        f"    kind: KIND_{'CPU' if serving.variant == 'cpu' else 'GPU'}",
        f"    count: {serving.instances}",
        "  }",
        "]",
        *_comment(serving, "dynamic_batching"),
        "dynamic_batching {",
        f"  max_queue_delay_microseconds: {serving.delay_us}",
        "  # A request's own timeout can only shorten a default that is not 0; what is late is dropped, not computed.",
        "  default_queue_policy {",
        "    timeout_action: REJECT",
        "    default_timeout_microseconds: 60000000",
        "    allow_timeout_override: true",
        "  }",
        "}",
        *(_warmup(serving, size) if serving.warmup else []),
        *(_parameter(key, value) for key, value in parameters.items()),
    ]
    return "\n".join(parts) + "\n"


def ensemble_config(entry: Entry, serving: Serving, *, width: int, version: str | None = None) -> str:
    """The ensemble's configuration: preprocessor → network, with a status for every image.

    With a `version`, the ensemble and both steps have that number: every answer says which engine gave it, and
    while Triton exchanges one after the other, no engine gets the pixels of another's recipe.
    """
    output = OUTPUTS[entry.task]
    what = {"classify": "class probabilities", "embed": "features"}[entry.task]
    batch = "" if serving.variant else "# Not above that of any step.\n"
    if serving.variant:
        head = (
            f"# Encoded image files → {what}, with a status for every image.\n"
            "# The same as config.pbtxt but for the batch size, which is that of the network on CPUs."
        )
    else:
        head = f"# Encoded image files → {what}, with a status for every image."
    return f"""{head}
name: "{entry.model}"
platform: "ensemble"
{batch}max_batch_size: {min(serving.max_batch, PREPROCESSOR_MAX_BATCH)}{_only(version)}

input [
  {{
    name: "RAW_IMAGE"
    data_type: TYPE_UINT8
    dims: [ -1 ]
  }},
  {{
    name: "IMAGE_LENGTH"
    data_type: TYPE_INT32
    dims: [ 1 ]
  }}
]

output [
  {{
    name: "{output}"
    data_type: TYPE_FP32
    dims: [ {width} ]
  }},
  {{
    name: "IMAGE_STATUS"
    data_type: TYPE_INT32
    dims: [ 1 ]
  }}
]

ensemble_scheduling {{
  step [
    {{
      model_name: "{entry.preprocessor}"
      model_version: {version or -1}
      input_map {{ key: "RAW_IMAGE" value: "RAW_IMAGE" }}
      input_map {{ key: "IMAGE_LENGTH" value: "IMAGE_LENGTH" }}
      output_map {{ key: "{INPUT}" value: "pixels" }}
      output_map {{ key: "IMAGE_STATUS" value: "IMAGE_STATUS" }}
    }},
    {{
      model_name: "{entry.network}"
      model_version: {version or -1}
      input_map {{ key: "{INPUT}" value: "pixels" }}
      output_map {{ key: "{output}{serving.output_suffix}" value: "{output}" }}
    }}
  ]
}}

# What the gateway may use this model for.
{_parameter("task", entry.task)}
"""


def preprocessor_config(entry: Entry, *, size: int, recipe_sha256: str, version: str | None = None) -> str:
    """The preprocessor's configuration, which names the recipe (that of `version`) and what it must be."""
    recipe = "/".join(part for part in (entry.network, version, "preprocess.json") if part)
    return f"""# Encoded image files → pixels. The same on GPU and CPU servers: decoding is CPU work.
name: "{entry.preprocessor}"
backend: "python"
max_batch_size: {PREPROCESSOR_MAX_BATCH}{_only(version)}

input [
  {{
    name: "RAW_IMAGE"
    data_type: TYPE_UINT8
    dims: [ -1 ]
    # Requests of different byte lengths merge into one execution; without this only equal ones do.
    allow_ragged_batch: true
  }},
  {{
    name: "IMAGE_LENGTH"
    data_type: TYPE_INT32
    dims: [ 1 ]
  }}
]

output [
  {{
    name: "{INPUT}"
    data_type: TYPE_UINT8
    dims: [ {size}, {size}, 3 ]
  }},
  {{
    name: "IMAGE_STATUS"
    data_type: TYPE_INT32
    dims: [ 1 ]
  }}
]

# One process; its threads take the cores (parameter "threads" for fewer).
instance_group [ {{ kind: KIND_CPU count: 1 }} ]

dynamic_batching {{
  max_queue_delay_microseconds: 0
  default_queue_policy {{
    timeout_action: REJECT
    # A caller's own timeout counts only below this one.
    default_timeout_microseconds: 60000000
    allow_timeout_override: true
  }}
}}

# The recipe, from the top of the model repository, and the hash that the engine's certificate has of it.
{_parameter("preprocess", recipe)}
{_parameter("preprocess_sha256", recipe_sha256)}
# 64 megapixels.
{_parameter("max_pixels", "64000000")}
"""


def _only(version: str | None) -> str:
    """The line by which Triton serves one version and no other."""
    return f"\nversion_policy {{ specific {{ versions: [ {version} ] }} }}" if version else ""


def _comment(serving: Serving, part: str) -> list[str]:
    return [f"# {line}" for line in serving.why.get(part, "").splitlines()]


def _parameter(key: str, value: str) -> str:
    # A JSON string in ASCII is a string of the text format as well.
    return f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(value)} }} }}"


def _warmup(serving: Serving, size: int) -> list[str]:
    samples = []
    for name, batch in (("one image", 1), ("a full batch", serving.max_batch)):
        samples.append(f"""  {{
    name: "{name}"
    batch_size: {batch}
    inputs {{
      key: "{INPUT}"
      value {{
        data_type: TYPE_UINT8
        dims: [ {size}, {size}, 3 ]
        zero_data: true
      }}
    }}
  }}""")
    return [*_comment(serving, "model_warmup"), "model_warmup [", ",\n".join(samples), "]"]
