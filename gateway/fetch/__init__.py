"""Images that a caller names by address instead of sending them. Off unless `TIDEGATE_ALLOW_URLS` is set.

    Address ──► guard: form, scheme, host, port ──► resolver ──► guard: every IP address ──► connection ──► bytes
                  ▲                                                                             │
                  └───────────────────────────── redirect ◄─────────────────────────────────────┘

`Fetch` is the port; `gateway.fetch.fetcher` goes out to the network through it, `fetch_nothing` refuses.
What may be fetched is decided in `gateway.fetch.guard`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gateway.errors import ItemProblem

if TYPE_CHECKING:  # the settings know the guard, and need not know metrics
    from gateway.admission import Deadline


@dataclass(frozen=True)
class Address:
    """Where an image is to be fetched, in the caller's words. Its query may be a secret: it is in no repr."""

    url: str = field(repr=False)


Content = bytes | Address | ItemProblem
"""One image of a request before the fetch: its bytes, where they are, or why there are none."""


class Fetch(Protocol):
    """Puts bytes, or a problem, in the place of every address; what is no address stays as it is.

    `grow` is told of fetched bytes before they are kept. Raises what it raises, `BodyTooLarge`, or `DeadlineExceeded`.
    """

    async def __call__(
        self, contents: Sequence[Content], deadline: Deadline, grow: Callable[[int], None]
    ) -> list[bytes | ItemProblem]: ...


_OFF = ItemProblem("url_forbidden", "This gateway does not fetch images from addresses.")


async def fetch_nothing(
    contents: Sequence[Content], deadline: Deadline, grow: Callable[[int], None]
) -> list[bytes | ItemProblem]:
    """The `Fetch` of a gateway that fetches nothing."""
    return [_OFF if isinstance(content, Address) else content for content in contents]
