"""The models of the default repository: what `make up` and the images serve, built where it is missing.

One process for all of them, and quick when there is nothing to do. A model that a person put in the place of one of
them stays. The classifier must be there in the end; of the others each may be missing, and then says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from build_engines.build import DEFAULT_TARGET, Order, build, chosen
from build_engines.configs import DEFAULT_EMBEDDER, DEFAULT_MODEL, Entry
from build_engines.errors import BuildError
from build_engines.sources import Wish
from build_engines.targets.registry import find_target

MODERATOR = "open_nsfw"

Say = Callable[[str], object]


def orders(repository: Path, work: Path, target: str = DEFAULT_TARGET) -> list[Order]:
    """The models for pictures; the embedder comes behind the classifier, whose preprocessor it shares."""
    shown = "" if target == DEFAULT_TARGET else f" --target {target}"
    return [
        Order(
            source=source,
            wish=wish,
            repository=repository,
            model=model,
            target=target,
            work=work,
            command=f"python -m build_engines {source}{options}{shown}",
        )
        for source, wish, model, options in (
            ("efficientnet_lite0", Wish(), DEFAULT_MODEL, ""),
            ("efficientnet_lite0", Wish(task="embed"), DEFAULT_EMBEDDER, f" --task embed --model {DEFAULT_EMBEDDER}"),
            ("open_nsfw", Wish(), MODERATOR, f" --model {MODERATOR}"),
        )
    ]


def build_defaults(
    repository: Path, work: Path, *, target: str = DEFAULT_TARGET, force: bool = False, say: Say = print
) -> Path | None:
    """Builds what is missing, or all with `force`; returns the classifier's folder, None where a person chose another.

    Says a line about each model that was built, or could not be, or was left alone, and one about those that were
    there. Raises the `BuildError` of the classifier; every other model is tried before that.
    """
    lines = _Lines(say)
    folder: Path | None = None
    failed: BuildError | None = None
    for order in orders(repository, work, target):
        try:
            built = _image_model(order, force, lines)
        except BuildError as error:
            if order.model == DEFAULT_MODEL:
                failed = error
            else:
                say(f"{order.model}: not built. {error}")
        else:
            folder = built if order.model == DEFAULT_MODEL else folder
    try:
        from build_engines.text import build_samples

        build_samples(repository, lines)
    except BuildError as error:
        say(f"models for texts: not built. {error}")
    if lines.there:
        say(f"up to date in {repository}: {', '.join(lines.there)}")
    if failed is not None:
        raise failed
    return folder


def _image_model(order: Order, force: bool, say: Say) -> Path | None:
    entry = Entry(order.repository, order.model, order.wish.task or "classify")
    variant = find_target(order.target).variant
    if not force and (reason := chosen(entry, variant, order.source)):
        say(f"{order.model}: {reason}: left as it is")
        return None
    return build(replace(order, force=force), say)


@dataclass
class _Lines:
    """What the builders of single models say, for somebody who asked for all: a line for each model."""

    say: Say
    there: list[str] = field(default_factory=list)
    """Models that were up to date, with their versions."""
    _begun: bool = False

    def __call__(self, line: str) -> None:
        model, colon, rest = line.partition(": ")
        words = rest.split()
        if rest.startswith("version") and "is up to date" in rest:
            self.there.append(f"{model} {words[1]}")
        elif colon and " " not in model:
            self.say(line)
        elif not self._begun:
            self._begun = True
            self.say("building models, once: each takes some seconds")
