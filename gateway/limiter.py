"""How many images a model may have in flight so that it still answers in time: a limit that follows what it carries.

Whoever is let in waits for what is ahead, in Triton's queues. If `ahead` images took `seconds`, then at the same rate
`ahead` × target / `seconds` images take the target time: to that the limit falls at once when an answer was late. It
rises by what was answered in time while it was in use, the slower the closer to the target. So it starts at the
operator's cap, finds the knee of a slow model with the first late answer, and never holds back a fast one.
docs/adr/0013-limiter.md says why it is this one.
"""

from __future__ import annotations


class Limiter:
    """The limit of one model, in images; between `floor`, a full batch, and `cap`. `target_s` is in seconds."""

    def __init__(self, floor: int, cap: int, target_s: float) -> None:
        self._floor = min(floor, cap)
        self._cap = cap
        self._target_s = target_s
        self.limit = float(cap)
        self.seconds_an_image = 0.02  # a first guess; follows what was measured

    def answered(self, ahead: int, images: int, seconds: float) -> None:
        """A request of `images` was answered after `seconds`, or given up after more than the target; with its own,
        `ahead` images were in flight when it was let in."""
        self.seconds_an_image += 0.1 * (seconds / max(ahead, 1) - self.seconds_an_image)
        if seconds > self._target_s:
            self.limit = max(self._floor, min(self.limit, ahead * self._target_s / seconds))
        elif ahead > self.limit / 2:
            self.limit = min(self._cap, self.limit + images * (1 - seconds / self._target_s))

    def given_up(self, ahead: int, images: int, seconds: float) -> None:
        """Its deadline passed, or nobody waits for it any more: that tells something only if it took long."""
        if seconds > self._target_s:
            self.answered(ahead, images, seconds)
