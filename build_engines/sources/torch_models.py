"""Classifiers and backbones of torchvision and timm by name, with a user's weights, the library's, or random ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from build_engines.errors import SourceError
from build_engines.sources import Network, Wish, known_task
from build_engines.sources.libraries import needing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from build_engines.preprocessing import Normalisation

SEED = 0
"""Of random weights: the same model every time."""
_BATCH = 16


class Library(Protocol):
    """What torchvision and timm do differently, for one network."""

    @property
    def pools(self) -> tuple[str, ...]:
        """Which of `POOLS` its features can be made of; empty where there is no choice."""
        ...

    @property
    def packages(self) -> tuple[str, ...]:
        """The distributions that define the network."""
        ...

    @property
    def task(self) -> str:
        """What the network is for when nobody says it."""
        ...

    @property
    def classes(self) -> int:
        """Of the library's own weights; 0 for a backbone."""
        ...

    def create(self, classes: int, size: int | None) -> torch.nn.Module:
        """The network with new random weights; no classes is a network that gives pooled features."""
        ...

    def pretrained_file(self) -> Path:
        """The library's weights on this disk, downloaded if need be; `SourceError` when they cannot be had."""
        ...

    def pretrained(self, file: Path, classes: int, size: int | None) -> torch.nn.Module:
        """The network with the library's weights in it, in the library's own way."""
        ...

    def convert(self, state: Mapping[str, Any], network: torch.nn.Module) -> dict[str, Any]:
        """A state dict of the network's authors → this library's names and shapes."""
        ...

    def recipe(self, size: int | None, sha256: str | None) -> Mapping[str, Any]:
        """The values of a `preprocess.json`, for the weights with this hash where the library tells them apart."""
        ...

    def labels(self) -> tuple[str, ...] | None:
        """Names of the library's own classes."""
        ...


@dataclass(frozen=True)
class TorchSource:
    """One network of a library, with what the user said about it."""

    name: str
    library: Library
    task: str
    weights: str
    """ "pretrained", "random", or a file's path."""
    classes: int | None
    """None: as many as the weights have."""
    size: int | None
    """None: the library's own."""
    trained_with: Mapping[str, Any] | None = None
    """The recipe of the weights in a file; None: the library's own."""
    pool: str | None = None
    """One of the library's `pools`; None: what it does by itself."""

    def identity(self) -> Mapping[str, Any]:
        kind = self.weights if self.weights in ("pretrained", "random") else "file"
        identity = {
            "name": self.name,
            "weights": kind,
            "task": self.task,
            "classes": self.classes,
            "size": self.size,
            "packages": {package: metadata.version(package) for package in ("torch", *self.library.packages)},
        }
        if self.pool is not None:
            identity["pool"] = self.pool
        if self._file is None:
            return {**identity, "seed": SEED}
        return {**identity, "file": self._file.name, "sha256": self._sha256}

    def preprocess(self) -> Mapping[str, Any]:
        return self.trained_with or self.library.recipe(self.size, self._sha256)

    def load(self, normalisation: Normalisation) -> Network:
        with needing("torch"):
            from build_engines import export

            network = self._network().eval()
            if self.pool is not None:
                from build_engines.sources.dino import Pooled

                network = Pooled(network, self.pool)
            served = export.Served(
                network, normalisation, softmax=self.task == "classify", color=self.preprocess()["color"]
            )
            width = export.width(served)
            graph = export.export(served, self.task)
        labels = None
        if self.task == "classify" and self.weights != "random" and width == self.library.classes:
            labels = self.library.labels()
        return Network(self.task, graph, self._reference(network), width, labels, served)

    @cached_property
    def _file(self) -> Path | None:
        if self.weights == "random":
            return None
        return self.library.pretrained_file() if self.weights == "pretrained" else Path(self.weights)

    @cached_property
    def _sha256(self) -> str | None:
        return None if self._file is None else sha256(self._file)

    def _network(self) -> torch.nn.Module:
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            if self._file is None:
                classes = self.classes or self.library.classes or 1000
                return self.library.create(0 if self.task == "embed" else classes, self.size)
            if self.weights == "pretrained":
                return self._pretrained(self._file)
            return self._from_file(self._file)

    def _pretrained(self, file: Path) -> torch.nn.Module:
        classes = 0 if self.task == "embed" else self.library.classes
        if self.classes not in (None, self.library.classes):
            raise SourceError(
                f"The pretrained weights of {self.name} have {self.library.classes} classes, not {self.classes}: "
                "leave that out, or give the file of your own with --weights."
            )
        if self.task == "classify" and not classes:
            raise SourceError(f"The pretrained weights of {self.name} have no classes, only features (--task embed).")
        return self.library.pretrained(file, classes, self.size)

    def _from_file(self, file: Path) -> torch.nn.Module:
        from build_engines.sources import state_dicts

        def create(classes: int) -> torch.nn.Module:
            return self.library.create(classes, self.size)

        state = state_dicts.read_state_dict(file)
        if self.task == "embed":
            network = create(0)
            state = self._converted(state_dicts.backbone_only(state), network)
            head = state_dicts.shapes(create, 2).keys() - network.state_dict().keys()
            state_dicts.fit(network, {name: value for name, value in state.items() if name not in head})
            return network
        state = self._converted(state, create(self.library.classes or 1000))
        classes = state_dicts.classes_in(state, create)
        if self.classes not in (None, classes):
            raise SourceError(f"The weights in {file} have {classes} classes, not {self.classes}.")
        network = create(classes)
        state_dicts.fit(network, state)
        return network

    def _converted(self, state: dict[str, Any], network: torch.nn.Module) -> dict[str, Any]:
        try:
            return self.library.convert(dict(state), network)
        except SourceError:
            raise
        except Exception as error:  # what a library does with strange names, it does not foresee
            raise SourceError(
                f"The weights and the network do not fit together ({type(error).__name__}: {error})."
            ) from error

    def _reference(self, network: torch.nn.Module) -> Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]:
        """The network as its library runs it: pixels from 0 to 1, then mean and std as it was trained."""
        import torch

        recipe = self.preprocess()
        mean, std = (torch.tensor(recipe[key]).reshape(3, 1, 1) / 255 for key in ("mean", "std"))
        weight = next(network.parameters())  # whoever traces the network may have moved it to a GPU

        def run(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
            answers = []
            with torch.inference_mode():
                for batch in torch.tensor(pixels).split(_BATCH):
                    images = (batch.permute(0, 3, 1, 2) / 255 - mean) / std
                    answer = network(images.to(weight.device)).cpu()
                    answers.append(answer.softmax(1) if self.task == "classify" else answer)
                result: npt.NDArray[np.float32] = torch.cat(answers).numpy()
            return result

        return run


def find(name: str, wish: Wish) -> TorchSource | None:
    """The network of torchvision or timm that `name` means, None when neither has it.

    Raises `SourceError` when the libraries cannot be used, or the wish is not possible.
    """
    with needing("torch"):
        _check_torchvision()
        from build_engines.sources import dino, timm_models, torchvision_models

        library: Library | None
        if name in dino.BACKBONES:
            return source(name, dino.BACKBONES[name], wish)
        where, _, rest = name.rpartition("/")
        if where in ("", "torchvision") and (library := torchvision_models.find(rest)):
            return source(f"torchvision/{rest}", library, wish)
        if where in ("", "timm") and (library := timm_models.find(rest)):
            return source(f"timm/{rest}", library, wish)
    return None


def _check_torchvision() -> None:
    """`SourceError` when it does not fit torch; timm needs it as well, and would fail without such words."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:  # its compiled part registers operators, which another torch does not have
        raise SourceError(
            f"torch {metadata.version('torch')} and torchvision {metadata.version('torchvision')} do not fit together "
            f"({error}): install the pair of one release, from the same place."
        ) from error


def names() -> list[str]:
    """Every name that `find` knows."""
    from build_engines.sources import dino, timm_models, torchvision_models

    torchvision, timm = torchvision_models.names(), timm_models.names()
    return [
        *dino.BACKBONES,
        *torchvision,
        *timm,
        *(f"torchvision/{n}" for n in torchvision),
        *(f"timm/{n}" for n in timm),
    ]


def source(name: str, library: Library, wish: Wish) -> TorchSource:
    """The network with the wish; `SourceError` when they do not go together."""
    task = known_task(wish.task or library.task)
    if task == "embed" and wish.classes is not None:
        raise SourceError(f"{name} gives features here, which have no classes: leave the number of classes out.")
    if wish.classes is not None and wish.classes < 2:
        raise SourceError(f"A classifier needs at least 2 classes, not {wish.classes}.")
    if wish.size is not None and wish.size < 1:
        raise SourceError(f"The size is in pixels, it cannot be {wish.size}.")
    if wish.pool is not None and wish.pool not in library.pools:
        raise SourceError(
            f"{name} pools its features in its own way: leave --pool out."
            if not library.pools
            else f"Features of {name} are made of {', '.join(library.pools)}, not of {wish.pool}."
        )
    pool = None if wish.pool == "class" else wish.pool
    weights = wish.weights or "pretrained"
    if weights not in ("pretrained", "random") and not Path(weights).is_file():
        raise SourceError(f'There is no file {weights}: --weights is a file, "pretrained" or "random".')
    recipe = None if weights in ("pretrained", "random") else wish.recipe
    return TorchSource(name, library, task, weights, wish.classes, wish.size, recipe, pool)


def sha256(file: Path) -> str:
    """Of the file's content, in hexadecimal."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise SourceError(f"{file} cannot be read ({error.strerror}).") from error
    return digest.hexdigest()


def no_download(name: str, error: Exception) -> SourceError:
    """What to say when a library's weights cannot be had."""
    return SourceError(
        f"The pretrained weights of {name} could not be downloaded ({type(error).__name__}). "
        "Without a network, give the file of the weights with --weights FILE."
    )
