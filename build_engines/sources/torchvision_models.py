"""torchvision's classifiers, and what their last layers are given: features."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision

from build_engines.errors import SourceError
from build_engines.sources.torch_models import no_download

# Their published weights come from TensorFlow and bring their own scaling of the input with them. A file does not
# say whether it was trained so; nearly all were, because they started from those weights.
_TRANSFORMING = ("googlenet", "inception_v3")


@dataclass(frozen=True)
class Torchvision:
    """One of torchvision's classifiers by its name there: a `Library`."""

    architecture: str
    packages: tuple[str, ...] = ("torchvision",)
    task: str = "classify"
    classes: int = 1000
    pools: tuple[str, ...] = ()

    def create(self, classes: int, size: int | None) -> torch.nn.Module:
        options: dict[str, Any] = {"num_classes": classes or self.classes}
        if self.architecture in _TRANSFORMING:
            options |= {"init_weights": False, "transform_input": True}
        if self.architecture.startswith("vit_"):
            options["image_size"] = self.recipe(size, None)["size"]
        network: torch.nn.Module = torchvision.models.get_model(self.architecture, weights=None, **options)
        return network if classes else self._without_last_layer(network)

    def pretrained_file(self) -> Path:
        file = Path(torch.hub.get_dir(), "checkpoints", Path(self._weights(None).url).name)
        if not file.is_file():
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                hash_prefix = file.stem.rpartition("-")[2]
                torch.hub.download_url_to_file(self._weights(None).url, str(file), hash_prefix, progress=False)
            except Exception as error:  # of the network, the server or the disk
                raise no_download(f"torchvision/{self.architecture}", error) from error
        return file

    def pretrained(self, file: Path, classes: int, size: int | None) -> torch.nn.Module:
        """From torch's own cache, which is where `pretrained_file` put it."""
        own = self.recipe(None, None)["size"]
        if self.architecture.startswith("vit_") and size not in (None, own):
            raise SourceError(f"The pretrained weights of torchvision/{self.architecture} are for {own} pixels.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of googlenet and inception_v3, about their random weights
            network: torch.nn.Module = torchvision.models.get_model(self.architecture, weights=self._weights(None))
        return network if classes else self._without_last_layer(network)

    def convert(self, state: Mapping[str, Any], network: torch.nn.Module) -> dict[str, Any]:
        return dict(state)

    def recipe(self, size: int | None, sha256: str | None) -> Mapping[str, Any]:
        transforms = self._weights(sha256).transforms()
        (resize_to,), (crop,) = transforms.resize_size, transforms.crop_size
        interpolation = transforms.interpolation.value
        if interpolation not in ("bicubic", "bilinear"):
            raise SourceError(f"torchvision/{self.architecture} wants {interpolation} interpolation: not supported.")
        size = size or crop
        return {
            "resize": "shorter",
            "resize_to": max(size, round(resize_to * size / crop)),
            "interpolation": interpolation,
            "crop": "center",
            "size": size,
            "color": "RGB",
            "mean": [round(255 * value, 6) for value in transforms.mean],
            "std": [round(255 * value, 6) for value in transforms.std],
        }

    def labels(self) -> tuple[str, ...] | None:
        return tuple(self._weights(None).meta["categories"])

    def _without_last_layer(self, network: torch.nn.Module) -> torch.nn.Module:
        """The network, which has `self.classes`, with features in place of classes."""
        linear = [
            name
            for name, part in network.named_modules()
            if isinstance(part, torch.nn.Linear) and part.out_features == self.classes
        ]
        if not linear:
            raise SourceError(f"torchvision/{self.architecture} has no last layer to leave out: name another network.")
        for path in linear:  # some have auxiliary ones, for training only
            inside, _, name = path.rpartition(".")
            setattr(network.get_submodule(inside), name, torch.nn.Identity())
        return network

    def _weights(self, sha256: str | None) -> Any:
        """The published weights with this hash (their names end with its start), else torchvision's best."""
        known = torchvision.models.get_model_weights(self.architecture)
        matching = (weights for weights in known if sha256 and sha256.startswith(_hash(weights.url)))
        return next(matching, known.DEFAULT)


def find(name: str) -> Torchvision | None:
    """The classifier of that name."""
    return Torchvision(name) if name in names() else None


def names() -> list[str]:
    """Torchvision's classifiers."""
    found: list[str] = torchvision.models.list_models(module=torchvision.models)
    return found


def _hash(url: str) -> str:
    return Path(url).stem.rpartition("-")[2]
