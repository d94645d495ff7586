"""The promises of every target, over its seeds, what once broke them, and a few thousand variants; without atheris."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.targets import NAMES, load, regressions

VARIANTS = {"headers": 10_000, "imaging": 12_000, "form": 2_000, "json_body": 2_000}


@pytest.mark.parametrize("name", NAMES)
def test_promises_hold_for_seeds_and_variants(name: str) -> None:
    """Whole inputs, and inputs damaged up to four times over, with lengths and checksums right or wrong."""
    target, rng = load(name), random.Random(name)
    seeds = target.seeds()
    for data in seeds:
        target.check(data)
    for _ in range(VARIANTS[name]):
        data = rng.choice(seeds)
        for _ in range(rng.randint(1, 4)):
            data = target.mutate(data, rng)
        target.check(data)


@pytest.mark.parametrize(("name", "file"), [(name, file) for name in NAMES for file in regressions(name)])
def test_what_once_broke_a_promise(name: str, file: str) -> None:
    """Found by the fuzzer, mended since."""
    load(name).check(regressions(name)[file])
