"""One target under atheris, until libFuzzer's options say that it is enough; `__main__.py` starts it as a process.

`python -m tests.fuzz.driver TARGET CORPUS [libFuzzer's options]`
"""

from __future__ import annotations

import random
import sys

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]  # not installed everywhere

INSTRUMENTED = ["gateway.images", "gateway.web", "multipart", "image_formats"]


def main() -> None:
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
        from tests.fuzz.targets import load

        target = load(name)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        mutate = target.mutate if rng.random() < 0.7 else lambda d, _: bytes(atheris.Mutate(d, max_size))
        return mutate(data, rng)[:max_size]

    atheris.Setup(sys.argv, target.check, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
