"""The `config.pbtxt` files of the models that make one: preprocessor, network, ensemble; or one for texts.

A GPU server reads `config.pbtxt`; a CPU server is started with `--model-config-name=cpu` and reads
`configs/cpu.pbtxt` where there is one. The files of the default model that are kept in git are written by
this module, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from build_engines.sources import INPUT, OUTPUTS

DEFAULT_MODEL = "ensemble_model"
DEFAULT_EMBEDDER = "embedding_ensemble"
_STEPS = {"classify": "classifier", "embed": "embedder"}

TEXT, KNOWN_WORDS = "TEXT", "KNOWN_WORDS"
TEXT_OUTPUTS = {"text_classify": "CLASSIFICATION", "text_embed": "EMBEDDING"}
"""What a model of each task gives for a text: FP32 [N, classes], probabilities, or FP32 [N, dim], features."""

# What the preprocessor's own configuration promises, and the most that the gateway sends in one request.
PREPROCESSOR_MAX_BATCH = 256

_GIVES = {"classify": "class probabilities", "embed": "features"}
_ON_CPUS = ["# The same as config.pbtxt but for the batch size, which is that of the network on CPUs."]
_PREPROCESSED = {INPUT: "pixels", "IMAGE_STATUS": "IMAGE_STATUS"}


@dataclass(frozen=True)
class Entry:
    """Where one model lives in a repository: an ensemble that callers name and its steps, or a single one for texts."""

    repository: Path
    model: str
    """What callers name."""
    task: str = "classify"
    """A key of `OUTPUTS` or of `TEXT_OUTPUTS`."""
    candidate: str | None = None
    """The version that this set of models serves beside the main one; they have names of their own."""

    @property
    def single(self) -> bool:
        """Whether it is one model, without a preprocessor and an ensemble around it."""
        return self.task in TEXT_OUTPUTS

    @property
    def name(self) -> str:
        """What Triton calls the model that callers name."""
        return f"{self.model}{self._suffix}"

    @property
    def preprocessor(self) -> str:
        """The preprocessor of its own; an embedder that shares another's may have none."""
        own = "preprocessor" if self._default and self.task == "classify" else f"{self.model}_preprocessor"
        return f"{own}{self._suffix}"

    @property
    def network(self) -> str:
        """The model that runs the engine; its folder holds versions, labels and the recipe."""
        if self.single:
            return self.name
        return f"{_STEPS[self.task] if self._default else f'{self.model}_{_STEPS[self.task]}'}{self._suffix}"

    @property
    def folder(self) -> Path:
        """The network's folder."""
        return self.repository / self.network

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of all models, each behind those that it needs."""
        return (self.name,) if self.single else (self.preprocessor, self.network, self.name)

    @property
    def step_names(self) -> list[list[str]]:
        """What an ensemble of this name may ask, in order: its own two models, or a shared preprocessor's as well."""
        shared = self.partner
        own = [self.preprocessor, self.network]
        return [own, *([[shared.preprocessor, self.network, shared.network]] if shared else [])]

    @property
    def partner(self) -> Entry | None:
        """The model whose preprocessor this one shares where both want the same pixels."""
        if (self.model, self.task, self.candidate) == (DEFAULT_EMBEDDER, "embed", None):
            return Entry(self.repository, DEFAULT_MODEL)
        return None

    @property
    def dependent(self) -> Entry | None:
        """The model whose `partner` this one is."""
        if (self.model, self.task, self.candidate) == (DEFAULT_MODEL, "classify", None):
            return Entry(self.repository, DEFAULT_EMBEDDER, "embed")
        return None

    def beside(self, version: str) -> Entry:
        """The set of models that serves `version` beside the main one."""
        return replace(self, candidate=version)

    @property
    def _default(self) -> bool:
        return (self.model, self.task) in ((DEFAULT_MODEL, "classify"), (DEFAULT_EMBEDDER, "embed"))

    @property
    def _suffix(self) -> str:
        return f".v{self.candidate}" if self.candidate else ""


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


@dataclass(frozen=True)
class Shared:
    """The model whose preprocessor an embedder shares, and whose network answers for the same pixels when asked."""

    entry: Entry
    serving: Serving
    width: int
    """Classes."""
    version: str | None = None


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
    parameters = dict(serving.parameters)
    if certificate is not None:
        parameters["certificate"] = certificate_text(certificate)
    parts = [
        *_head(entry, serving, version),
        *_tensor("input", (INPUT, "UINT8", f"{size}, {size}, 3", None)),
        *_tensor(
            "output",
            (f"{OUTPUTS[entry.task]}{serving.output_suffix}", "FP32", f"{width}", _labels_file(entry, version)),
        ),
        *_instances(serving, "CPU" if serving.variant == "cpu" else "GPU"),
        *(_warmup(serving, size) if serving.warmup else []),
        *_parameters(parameters),
    ]
    return "\n".join(parts) + "\n"


def text_config(
    entry: Entry,
    serving: Serving,
    *,
    width: int,
    version: str | None = None,
    certificate: Mapping[str, Any] | None = None,
    shown: Mapping[str, str] | None = None,
) -> str:
    """The configuration of a single model for texts: it runs on the CPU of any server, and callers name it itself."""
    parameters = {**serving.parameters, "task": entry.task, **(shown or {})}
    if certificate is not None:
        parameters["certificate"] = certificate_text(certificate)
    parts = [
        *_head(entry, serving, version),
        *_tensor("input", (TEXT, "STRING", "1", None)),
        *_tensor(
            "output",
            (TEXT_OUTPUTS[entry.task], "FP32", f"{width}", _labels_file(entry, version)),
            (KNOWN_WORDS, "FP32", "1", None),
        ),
        *_instances(serving, "CPU"),
        *_parameters(parameters),
    ]
    return "\n".join(parts) + "\n"


def ensemble_config(
    entry: Entry,
    serving: Serving,
    *,
    width: int,
    version: str | None = None,
    number: str | None = None,
    shared: Shared | None = None,
    shown: Mapping[str, str] | None = None,
) -> str:
    """The ensemble's configuration: preprocessor → network, with a status for every image.

    With a `version`, both steps are asked for just that one, so that no engine gets the pixels of another's recipe
    while Triton exchanges one after the other. With `shared`, the preprocessor is that model's, in its version, and
    its network is a third step, which Triton leaves out when nobody asks for its output. `number` is the ensemble's
    own, `version` where nothing else is said: every answer has it, and so says which engines gave it.
    """
    output, what = OUTPUTS[entry.task], _GIVES[entry.task]
    outputs, batch = [(output, "FP32", f"{width}", None)], [serving.max_batch, PREPROCESSOR_MAX_BATCH]
    first = (entry.preprocessor, version)
    networks = [(entry.network, version, output, serving.output_suffix)]
    if shared is not None:
        other = OUTPUTS[shared.entry.task]
        outputs.append((other, "FP32", f"{shared.width}", None))
        batch.append(shared.serving.max_batch)
        first = (shared.entry.preprocessor, shared.version)
        networks.append((shared.entry.network, shared.version, other, shared.serving.output_suffix))
        what += f", {_GIVES[shared.entry.task]} of the same pixels for those who ask"
    lines = [
        f"# Encoded image files → {what}, with a status for every image.",
        *(_ON_CPUS if serving.variant else []),
        f'name: "{entry.name}"',
        'platform: "ensemble"',
        *([] if serving.variant else ["# Not above that of any step."]),
        f"max_batch_size: {min(batch)}",
        *_only(number or version),
        "",
        *_tensor("input", ("RAW_IMAGE", "UINT8", "-1", None), ("IMAGE_LENGTH", "INT32", "1", None)),
        "",
        *_tensor("output", *outputs, ("IMAGE_STATUS", "INT32", "1", None)),
        "",
        "ensemble_scheduling {",
        "  step [",
        *_step(*first, {"RAW_IMAGE": "RAW_IMAGE", "IMAGE_LENGTH": "IMAGE_LENGTH"}, _PREPROCESSED),
    ]
    for network, asked, name, suffix in networks:
        lines[-1] += ","
        lines += _step(network, asked, {INPUT: "pixels"}, {f"{name}{suffix}": name})
    lines += [
        "  ]",
        "}",
        "",
        "# What the gateway may use this model for.",
        *_parameters({"task": entry.task, **(shown or {})}),
    ]
    return "\n".join(lines) + "\n"


def steps_of(config: str) -> list[tuple[str, str]]:
    """The models that an ensemble's configuration, as it is written here, asks, and the version of each."""
    return re.findall(r'^      model_name: "(.*)"\n      model_version: (-?\d+)$', config, re.MULTILINE)


def parameter_of(config: str, key: str) -> str | None:
    """A string parameter in a configuration as it is written here."""
    found = re.search(rf'^parameters {{ key: "{re.escape(key)}" value {{ string_value: (".*") }} }}$', config, re.M)
    return str(json.loads(found[1])) if found else None


def version_of(config: str) -> str | None:
    """The one version that a configuration as it is written here has Triton serve."""
    found = re.search(r"^version_policy \{ specific \{ versions: \[ (\d+) \] \} \}$", config, re.MULTILINE)
    return found[1] if found else None


def certificate_text(certificate: Mapping[str, Any]) -> str:
    """A certificate as a parameter has it."""
    return json.dumps(certificate, separators=(",", ":"), ensure_ascii=True)


def preprocessor_config(
    entry: Entry, *, size: int, recipe_sha256: str, pixels_sha256: str | None = None, version: str | None = None
) -> str:
    """The preprocessor's configuration, which names the recipe (that of `version`) and what it must be."""
    recipe_parameters = {
        "preprocess": "/".join(part for part in (entry.network, version, "preprocess.json") if part),
        "preprocess_sha256": recipe_sha256,
        **({"pixels_sha256": pixels_sha256} if pixels_sha256 else {}),
    }
    recipe = "\n".join(_parameters(recipe_parameters))
    limits = "\n".join([f"max_batch_size: {PREPROCESSOR_MAX_BATCH}", *_only(version)])
    return f"""# Encoded image files → pixels. The same on GPU and CPU servers: decoding is CPU work.
name: "{entry.preprocessor}"
backend: "python"
{limits}

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

# The recipe, from the top of the model repository; the hash that the engine's certificate has of it, and that of what
# it says of pixels, which the certificates of all engines have that share this preprocessor.
{recipe}
# 64 megapixels.
{_parameter("max_pixels", "64000000")}
"""


def _head(entry: Entry, serving: Serving, version: str | None) -> list[str]:
    """What a network's configuration begins with."""
    return [
        *_comment(serving, "head"),
        f'name: "{entry.network}"',
        serving.platform,
        f"max_batch_size: {serving.max_batch}",
        *_only(version),
    ]


def _only(version: str | None) -> list[str]:
    """The line by which Triton serves one version and no other."""
    return [f"version_policy {{ specific {{ versions: [ {version} ] }} }}"] if version else []


def _labels_file(entry: Entry, version: str | None) -> str | None:
    if entry.task not in ("classify", "text_classify"):
        return None
    return f"{version}/labels.txt" if version else "labels.txt"


def _tensor(direction: str, *tensors: tuple[str, str, str, str | None]) -> list[str]:
    """Inputs or outputs: of each the name, type, dimensions and the file of its labels."""
    lines = [f"{direction} ["]
    for name, kind, dims, labels in tensors:
        lines += ["  {", f'    name: "{name}"', f"    data_type: TYPE_{kind}", f"    dims: [ {dims} ]"]
        lines += [f'    label_filename: "{labels}"'] if labels else []
        lines += ["  },"]
    return [*lines[:-1], "  }", "]"]


def _instances(serving: Serving, kind: str) -> list[str]:
    """How many copies, and how their batches gather."""
    return [
        *_comment(serving, "instance_group"),
        "instance_group [",
        "  {",
        f"    kind: KIND_{kind}",
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
    ]


def _step(model: str, version: str | None, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> list[str]:
    """A step of an ensemble: its tensors by name, and what the ensemble calls them."""
    return [
        "    {",
        f'      model_name: "{model}"',
        f"      model_version: {version or -1}",
        *(f'      input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()),
        *(f'      output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()),
        "    }",
    ]


def _comment(serving: Serving, part: str) -> list[str]:
    return [f"# {line}" for line in serving.why.get(part, "").splitlines()]


def _parameter(key: str, value: str) -> str:
    # A JSON string in ASCII is a string of the text format as well.
    return f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(value)} }} }}"


def _parameters(values: Mapping[str, str]) -> list[str]:
    return [_parameter(key, value) for key, value in values.items()]


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
