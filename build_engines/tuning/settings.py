"""What is tuned, and which settings are tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from build_engines.configs import Tuning

DELAYS_US = (0, 1000, 5000)
GPU_INSTANCES = (1, 2, 3, 4)

# Each is a process with a copy of the model.
MOST_INSTANCES = 16

Change = Mapping[str, "int | None"]
"""New values for some fields of a `Setting`."""


@dataclass(frozen=True)
class Setting:
    """How a server runs one network, in the numbers of its configuration."""

    instances: int
    threads: int | None
    """Of one instance; None: as many as there are processors, or, on a GPU, none of ours."""
    max_batch: int
    delay_us: int
    """Longest wait of a batch for more images, in microseconds."""

    @property
    def tuning(self) -> Tuning:
        """The same for `publish.retune`."""
        return Tuning(self.instances, self.threads, self.max_batch, self.delay_us)

    def __str__(self) -> str:
        threads = "" if self.threads is None else f" of {self.threads} thread{'s' * (self.threads > 1)}"
        copies = f"{self.instances} instance{'s' * (self.instances > 1)}"
        return f"{copies}{threads}, batches to {self.max_batch}, delay {self.delay_us} µs"


def setting_of(config: Any) -> Setting:
    """The setting in a `ModelConfig` message of Triton's."""
    threads = int(config.parameters["threads"].string_value or 0) if "threads" in config.parameters else 0
    return Setting(
        instances=max(1, config.instance_group[0].count) if config.instance_group else 1,
        threads=threads or None,
        max_batch=config.max_batch_size,
        delay_us=config.dynamic_batching.max_queue_delay_microseconds,
    )


def changed(config: Any, setting: Setting) -> Any:
    """A copy of a `ModelConfig` message that says `setting`."""
    new = type(config)()
    new.CopyFrom(config)
    new.max_batch_size = setting.max_batch
    # Triton itself adds the largest batch as a preferred one.
    preferred = [size for size in new.dynamic_batching.preferred_batch_size if size < config.max_batch_size]
    new.dynamic_batching.preferred_batch_size[:] = [size for size in preferred if size <= setting.max_batch]
    for sample in new.model_warmup:
        sample.batch_size = min(sample.batch_size, setting.max_batch)
    new.dynamic_batching.max_queue_delay_microseconds = setting.delay_us
    if not new.instance_group:
        new.instance_group.add()
    for group in new.instance_group:
        group.count = setting.instances
    if setting.threads is not None:
        new.parameters["threads"].string_value = str(setting.threads)
    elif "threads" in new.parameters:
        del new.parameters["threads"]
    return new


def axes(today: Setting, *, largest_batch: int, cores: int | None, gpu: bool) -> list[list[Change]]:
    """What to vary, one thing after the other: instances (with threads on CPUs), delay, batch size.

    `largest_batch` is the most that the engine takes; `cores` is None where the server's are not known.
    """
    first: list[Change]
    if gpu or cores is None:
        first = [{"instances": count} for count in GPU_INSTANCES]
    else:
        most = min(cores, MOST_INSTANCES)
        pairs = [
            (1, cores),
            (2, cores),
            (2, cores // 2),
            *([(4, cores // 4)] if cores >= 8 else []),
            (most, cores // most),
        ]
        first = [
            {"instances": instances, "threads": None if threads == cores else threads}
            for instances, threads in dict.fromkeys(pairs)
            if threads > 0
        ]
    batches = [largest_batch, largest_batch // 4, *([largest_batch // 8] if gpu else [])]
    return [
        first,
        [{"delay_us": delay} for delay in dict.fromkeys([today.delay_us, *DELAYS_US])],
        [{"max_batch": size} for size in dict.fromkeys(batches) if size > 0],
    ]
