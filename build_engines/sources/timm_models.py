"""timm's networks, as classifiers or as backbones that give pooled features."""

from __future__ import annotations

import contextlib
import io
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import resolve_data_config

from build_engines.errors import SourceError
from build_engines.sources.torch_models import no_download

# What timm looks for, in its order.
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class Timm:
    """One of timm's networks by its name there, with or without the tag of its weights: a `Library`."""

    model: str
    options: Mapping[str, Any] | None = None
    """More for `timm.create_model`."""
    packages: tuple[str, ...] = ("timm", "torchvision")

    @property
    def pools(self) -> tuple[str, ...]:
        return ()

    @property
    def config(self) -> Any:
        return timm.get_pretrained_cfg(self.model)

    @property
    def task(self) -> str:
        return "classify" if self.classes else "embed"

    @property
    def classes(self) -> int:
        classes: int = self.config.num_classes
        return classes

    def create(self, classes: int, size: int | None) -> torch.nn.Module:
        return self._create(classes, size)

    def pretrained_file(self) -> Path:
        try:
            return self._downloaded()
        except SourceError:
            raise
        except Exception as error:  # of the network, the server or the disk
            raise no_download(f"timm/{self.model}", error) from error

    def pretrained(self, file: Path, classes: int, size: int | None) -> torch.nn.Module:
        return self._create(classes, size, pretrained=True, pretrained_cfg_overlay={"file": str(file)})

    def convert(self, state: Mapping[str, Any], network: torch.nn.Module) -> dict[str, Any]:
        """Through timm's own function for the family, which knows the authors' names and resizes positions."""
        family = sys.modules[timm.models.model_entrypoint(self.model).__module__]
        convert = getattr(family, "checkpoint_filter_fn", None)
        if convert is None:
            return dict(state)
        with contextlib.redirect_stdout(io.StringIO()):  # some print
            return dict(convert(dict(state), network))

    def recipe(self, size: int | None, sha256: str | None) -> Mapping[str, Any]:
        config = resolve_data_config({"input_size": (3, size, size)} if size else {}, self.config.to_dict())
        channels, height, width = config["input_size"]
        if channels != 3 or height != width:
            raise SourceError(f"timm/{self.model} wants {channels} × {height} × {width}, not square RGB pictures.")
        if config["interpolation"] not in ("bicubic", "bilinear"):
            raise SourceError(f"timm/{self.model} wants {config['interpolation']} interpolation: not supported.")
        if config["crop_mode"] not in ("center", "squash"):
            raise SourceError(f"timm/{self.model} wants the crop mode {config['crop_mode']}: not supported.")
        resize_to = math.floor(height / config["crop_pct"])
        squash = config["crop_mode"] == "squash"
        return {
            "resize": "squash" if squash else "shorter",
            "resize_to": resize_to,
            "interpolation": config["interpolation"],
            "crop": "none" if squash and resize_to == height else "center",
            "size": height,
            "color": "RGB",
            "mean": [round(255 * value, 6) for value in config["mean"]],
            "std": [round(255 * value, 6) for value in config["std"]],
        }

    def labels(self) -> tuple[str, ...] | None:
        return None

    def _create(self, classes: int, size: int | None, **options: Any) -> torch.nn.Module:
        if self.config.fixed_input_size and size:
            options["img_size"] = size
        try:
            network: torch.nn.Module = timm.create_model(
                self.model, num_classes=classes, **{**(self.options or {}), **options}
            )
        except (RuntimeError, AssertionError, ValueError) as error:
            raise SourceError(f"timm cannot make {self.model} ({str(error).splitlines()[0]:.200}).") from error
        return network

    def _downloaded(self) -> Path:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        config = self.config
        if not config.hf_hub_id:
            if not config.url:
                raise SourceError(
                    f"timm has no pretrained weights for {self.model}: give a file with --weights FILE, "
                    "or try a network with random ones (--weights random)."
                )
            file = Path(torch.hub.get_dir(), "checkpoints", Path(config.url).name)
            if not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                torch.hub.download_url_to_file(config.url, str(file), progress=False)
            return file
        repository, _, revision = config.hf_hub_id.partition("@")
        names = [config.hf_hub_filename] if config.hf_hub_filename else _WEIGHT_FILES
        for name in names:
            try:
                return Path(hf_hub_download(repository, name, revision=revision or None))
            except LocalEntryNotFoundError:  # an EntryNotFoundError too, but it means that there is no network
                raise
            except EntryNotFoundError:
                if name == names[-1]:
                    raise
        raise AssertionError


def find(name: str) -> Timm | None:
    """The network of that name; `SourceError` when timm has the network but not the tag of weights."""
    if not timm.is_model(name):
        return None
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        tags = [known.partition(".")[2] for known in timm.list_pretrained(f"{name.partition('.')[0]}.*")]
        raise SourceError(f"{error} There are: {', '.join(tags)}.") from error
    return None if config is None else Timm(name)


def names() -> list[str]:
    """timm's networks, with and without tags."""
    return [*timm.list_models(), *timm.list_pretrained()]
