"""Damage to bytes that knows nothing of their format, and damage to lists of parts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

# Numbers at which readers of lengths and sizes go wrong.
_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)


def damaged(data: bytes, rng: random.Random, tokens: Sequence[bytes] = ()) -> bytes:
    """One to four changes: bytes changed, left out, repeated or moved, a number or a token put in, the end cut."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        # most of what decides is in front
        at = rng.randrange(len(out) + 1) if rng.random() < 0.5 else rng.randrange(min(len(out), 128) + 1)
        length = min(rng.choice((1, 1, 2, 4, 16, 64)), len(out) - at)
        piece = bytes(out[at : at + length])
        kind = rng.randrange(8)
        if kind == 0 and length:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            del out[at : at + length]
        elif kind == 3:
            out[at:at] = piece * rng.choice((1, 2, 50))
        elif kind == 4:
            number = rng.choice(_NUMBERS).to_bytes(4, rng.choice(("big", "little")))
            number = number[-rng.choice((1, 2, 4)) :] if number[0] == 0 else number[: rng.choice((1, 2, 4))]
            out[at : at + len(number)] = number
        elif kind == 5 and tokens:
            token = rng.choice(tokens)
            out[at : at + rng.choice((0, len(token)))] = token
        elif kind == 6:
            del out[at:]
        else:
            to = rng.randrange(len(out) + 1)
            out[to:to] = piece
    return bytes(out)


def rearranged(parts: Sequence[T], rng: random.Random, strangers: Sequence[T] = ()) -> list[T]:
    """One part left out, repeated, moved, or put in from elsewhere."""
    out = list(parts)
    if not out:
        return out
    at, to = rng.randrange(len(out)), rng.randrange(len(out) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        del out[at]
    elif kind == 1:
        out[to:to] = [out[at]] * rng.choice((1, 1, 3, 200))
    elif kind == 2:
        out.insert(min(to, len(out) - 1), out.pop(at))
    elif strangers:
        out.insert(to, rng.choice(strangers))
    return out
