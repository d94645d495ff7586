"""State dicts as people really save them → the weights of one network, all of them and nothing else.

Files are read with `torch.load(weights_only=True)`, which runs nothing of what a pickle may ask for, or as
safetensors, which hold tensors only.
"""

from __future__ import annotations

import argparse
import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from build_engines.errors import SourceError

State: TypeAlias = dict[str, torch.Tensor]

# Where training programs keep the weights, the better ones first: averaged before trained, teacher before student.
_NESTS = (
    *("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model", "ema", "teacher", "student"),
    *("network", "net", "weights", "module", "backbone"),
)
# What wrappers put in front of every name: data parallelism, torch.compile, training frameworks.
_PREFIXES = ("module.", "_orig_mod.", "model.", "network.", "net.", "backbone.")
_BACKBONE = "backbone."

_SHOWN = 3
_DEEPEST = 8  # nests in nests; a pickle can hold one that holds itself


def read_state_dict(path: Path) -> State:
    """The tensors of a file by name, taken out of whatever they were saved in, without wrappers' prefixes.

    Raises `SourceError` for a file that cannot be read, is no state dict, or would have to be run.
    """
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    return _without_prefixes(_tensors(content, path))


def backbone_only(state: State) -> State:
    """Without the heads that self-supervised training keeps beside a `backbone.`."""
    inside = {name.removeprefix(_BACKBONE): value for name, value in state.items() if name.startswith(_BACKBONE)}
    return inside or state


def classes_in(state: Mapping[str, torch.Tensor], create: Callable[[int], torch.nn.Module]) -> int:
    """The number of classes that `state` is for: the side on which `create(2)` and `create(3)` differ.

    Raises `SourceError` when `state` has no such weight.
    """
    two, three = shapes(create, 2), shapes(create, 3)
    sides = {
        name: side
        for name, shape in two.items()
        for side, (a, b) in enumerate(zip(shape, three[name], strict=True))
        if a != b
    }
    for name, side in sides.items():
        if name in state and state[name].dim() > side:
            return int(state[name].shape[side])
    raise SourceError(
        f"The weights have no classifier ({_some(sides)}): they are of another network, or of a backbone without "
        "a head, which gives features (--task embed)."
    )


def shapes(create: Callable[[int], torch.nn.Module], classes: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a network's weights, made without memory for them where the network allows that."""
    try:
        with torch.device("meta"):
            network = create(classes)
    except (RuntimeError, NotImplementedError):  # its construction needs values
        network = create(classes)
    return {name: tuple(value.shape) for name, value in network.state_dict().items()}


def fit(network: torch.nn.Module, state: State) -> None:
    """Puts the weights into the network; `SourceError` names what is missing, left over, misshapen or not finite."""
    expected = network.state_dict()
    missing = [name for name in expected if name not in state and not name.endswith(".num_batches_tracked")]
    unexpected = [name for name in state if name not in expected]
    misshapen = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(value.shape)}"
        for name, value in expected.items()
        if name in state and state[name].shape != value.shape
    ]
    wrong = {"lack": missing, "have no place for": unexpected, "have other shapes:": misshapen}
    if any(wrong.values()):
        found = "; ".join(f"{words} {_some(names)}" for words, names in wrong.items() if names)
        raise SourceError(f"The weights and the network do not fit together. They {found}.")
    for name, value in state.items():
        if not bool(torch.isfinite(value.float()).all()):  # as the network will hold it
            raise SourceError(f"The weights hold values that are not finite ({name}): the file is damaged.")
    network.load_state_dict(state)


def _read_safetensors(path: Path) -> object:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise SourceError(f"{path} cannot be read, it is missing or damaged ({error}).") from error


def _read_pickle(path: Path) -> object:
    try:
        # Training programs save their options beside the weights, as a plain object.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of TorchScript, before it is refused
            return torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror}).") from error
    except pickle.UnpicklingError as error:
        raise SourceError(
            f"{path} is not only tensors, or is damaged: refused, nothing in it was run ({_globals(path)}). "
            "Save it again as torch.save(model.state_dict(), …)."
        ) from error
    except Exception as error:  # a damaged file can raise nearly anything
        raise SourceError(
            f"{path} is not a state dict that PyTorch can read ({type(error).__name__}): "
            "save it as torch.save(model.state_dict(), …)."
        ) from error


def _globals(path: Path) -> str:
    """What the pickle asks for beside tensors."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except Exception:
        names = []
    return f"it asks for {_some(names)}" if names else "its pickle cannot be read"


def _tensors(content: object, path: Path) -> State:
    """The innermost mapping with tensors in it."""
    for _ in range(_DEEPEST):
        if not isinstance(content, Mapping):
            break
        if any(isinstance(value, torch.Tensor) for value in content.values()):
            for name, value in content.items():
                if not isinstance(name, str) or not isinstance(value, torch.Tensor):
                    raise SourceError(f"{path} has the entry {name!r:.80}, which is a {type(value).__name__}.")
                if value.layout != torch.strided or value.is_quantized or value.is_meta or value.is_complex():
                    raise SourceError(
                        f"{path} has the entry {name:.80}, which is no plain tensor: save it dequantised."
                    )
            return dict(content)
        content = next((content[key] for key in _NESTS if isinstance(content.get(key), Mapping)), None)
    raise SourceError(f"{path} holds no state dict: save it as torch.save(model.state_dict(), …).")


def _without_prefixes(state: State) -> State:
    while prefix := next((prefix for prefix in _PREFIXES if all(name.startswith(prefix) for name in state)), None):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _some(names: Any) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
