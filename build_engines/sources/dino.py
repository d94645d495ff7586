"""DINO's backbones by their names in `torch.hub`, through timm: the class token after the last norm.

The original repositories' `forward()` gives the same. Their evaluations also take the mean of the patches, alone or
behind the class token, which `Pooled` gives. Pictures are prepared as these repositories do it for their
evaluations: the shorter side to 256, bicubic, the middle 224 × 224, in proportion for other sizes. DINOv3 has
the configuration that timm has for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from build_engines.errors import SourceError
from build_engines.sources import POOLS, state_dicts
from build_engines.sources.timm_models import Timm

SIZE = 224
RESIZE_TO = 256

# Added to the number of patches on a side when position embeddings are stretched (dinov2/hub/backbones.py,
# interpolate_offset; dino/vision_transformer.py, interpolate_pos_encoding).
OFFSET = 0.1

_TOO_LARGE = ("_giant_", "_huge_")


@dataclass(frozen=True)
class Dino(Timm):
    """One backbone: a `Library`."""

    offset: bool = False
    """Positions are stretched as in DINO, and in DINOv2 without registers: with `OFFSET`, without antialiasing.
    Otherwise timm does as the authors do."""
    published: bool = True
    """Whether timm knows where the weights are."""
    size: int | None = SIZE
    """When nobody says it; None is timm's own, and so is the rest of the recipe."""

    @property
    def classes(self) -> int:
        return 0

    @property
    def pools(self) -> tuple[str, ...]:
        return POOLS if "vit" in self.model else ()

    def create(self, classes: int, size: int | None) -> torch.nn.Module:
        self._check_weight()
        return super().create(classes, size or self.size)

    def pretrained_file(self) -> Path:
        self._check_weight()
        if not self.published:
            raise SourceError("timm has no DINO weights of resnet50: give the file of DINO's authors with --weights.")
        return super().pretrained_file()

    def pretrained(self, file: Path, classes: int, size: int | None) -> torch.nn.Module:
        network = self.create(0, size)
        state_dicts.fit(network, self.convert(state_dicts.read_state_dict(file), network))
        return network

    def convert(self, state: Mapping[str, Any], network: torch.nn.Module) -> dict[str, Any]:
        converted = super().convert(state, network)
        if self.offset and "pos_embed" in state:
            converted["pos_embed"] = stretched(state["pos_embed"], network.patch_embed.grid_size[0])
        return converted

    def recipe(self, size: int | None, sha256: str | None) -> Mapping[str, Any]:
        if self.size is None:
            return super().recipe(size, sha256)
        size = size or self.size
        frame = {"resize_to": round(size * RESIZE_TO / SIZE), "crop": "center", "size": size}
        return {**super().recipe(size, sha256), "resize": "shorter", "interpolation": "bicubic", **frame}

    def _check_weight(self) -> None:
        """Before gigabytes are downloaded or made for nothing."""
        if any(word in self.model for word in _TOO_LARGE):
            raise SourceError(
                f"{self.model} has more than 2 GB of weights in FP32, and an ONNX file ends there: take a smaller one."
            )


class Pooled(torch.nn.Module):  # type: ignore[misc]  # torch is Any where it is not installed
    """A transformer of timm's with its features made of what `pool` says: FP32 [N, dim], or twice as wide.

    Tokens are those after the last norm, as in DINOv2's `get_intermediate_layers`; registers count as neither.
    """

    def __init__(self, network: torch.nn.Module, pool: str) -> None:
        super().__init__()
        self.network = network
        self.parts = pool.split("+")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.network.forward_features(images)
        found = {"class": tokens[:, 0], "patches": tokens[:, self.network.num_prefix_tokens :].mean(1)}
        return torch.cat([found[part] for part in self.parts], dim=1)


def stretched(positions: torch.Tensor, side: int) -> torch.Tensor:
    """Position embeddings [1, 1 + old², dim], the class token's first, for `side` × `side` patches."""
    old = round((positions.shape[1] - 1) ** 0.5)
    if old == side or positions.shape[1] != 1 + old**2:
        return positions
    grid = positions[:, 1:].float().reshape(1, old, old, -1).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(grid, scale_factor=(side + OFFSET) / old, mode="bicubic")
    return torch.cat([positions[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


_SIZES = (("s", "small"), ("b", "base"), ("l", "large"), ("g", "giant"))
_DINOV3 = (("s16", "small"), ("s16plus", "small_plus"), ("b16", "base"), ("l16", "large"), ("h16plus", "huge_plus"))

BACKBONES: Mapping[str, Dino] = {
    "dino_resnet50": Dino("resnet50", published=False),
    **{
        f"dino_vit{letter}{patch}": Dino(f"vit_{word}_patch{patch}_224.dino", offset=True)
        for letter, word in _SIZES[:2]
        for patch in (16, 8)
    },
    **{f"dinov2_vit{letter}14": Dino(f"vit_{word}_patch14_dinov2.lvd142m", offset=True) for letter, word in _SIZES},
    **{f"dinov2_vit{letter}14_reg": Dino(f"vit_{word}_patch14_reg4_dinov2.lvd142m") for letter, word in _SIZES},
    # timm's DINOv3 pools all patches unless told otherwise; its authors take the class token.
    **{
        f"dinov3_vit{short}": Dino(f"vit_{long}_patch16_dinov3_qkvb.lvd1689m", {"global_pool": "token"}, size=None)
        for short, long in _DINOV3
    },
}
