"""Every way in which a run, a request, or one input of it, can fail.

    BulkError                  the run ends; the text is a sentence for a person
    ├── InputsError            a list of paths cannot be read
    ├── SpoolError             what an earlier run left cannot be used, or nothing can be written
    │   ├── SpoolInUse         another process has it
    │   └── NoRoom             a disk is full
    ├── DifferentModel         another model, or version, than the one before
    ├── Refused                every other request would be answered in the same way
    ├── GatewayAway            nobody answers, and waiting did not help, or would take too long
    └── Interrupted            Ctrl-C, or SIGTERM

    RequestFailed              one request; `tidegate.delivery` knows what to do about it
    ├── TooLarge               the gateway takes fewer images, or bytes, in one request
    └── Unanswered             it may be answered at another time

    Problem                    a value, not an exception: one input's trouble stays in its row

Codes of the contract are passed on as they are; `tidegate.reading` and `tidegate.client` add a few for this side.
"""

from __future__ import annotations

from dataclasses import dataclass


class BulkError(Exception):
    """The run ends; the text says what is wrong, where, and what to do."""


class InputsError(BulkError):
    """A list of paths cannot be read."""


class SpoolError(BulkError):
    """What an earlier run left cannot be used, or nothing can be written."""


class SpoolInUse(SpoolError):
    """Another process has it."""


class NoRoom(SpoolError):
    """A disk is full; what was committed before is whole."""


class DifferentModel(BulkError):
    """Another model, or version, than the one that answered before: their answers do not mix."""


class Refused(BulkError):
    """Every other request would be answered in the same way."""


class GatewayAway(BulkError):
    """Nobody answers, and waiting did not help, or would take too long."""


class Interrupted(BulkError):
    """The run was told to end by the signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__("Interrupted.")
        self.number = number


class RequestFailed(Exception):
    """One request failed, with a `code` of the contract, or one of ours, and a sentence."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class TooLarge(RequestFailed):
    """The gateway takes fewer images, or bytes, in one request."""


class Unanswered(RequestFailed):
    """It may be answered at another time: not within `retry_after` seconds, if the gateway said so.

    `again`: it is worth sending the same request again.
    """

    def __init__(self, code: str, detail: str, *, retry_after: float | None = None, again: bool = True) -> None:
        super().__init__(code, detail)
        self.retry_after = retry_after
        self.again = again


@dataclass(frozen=True)
class Problem:
    """Why one input has no answer: a code and a sentence for a person.

    `passing`: another try, at another time, may bring one.
    """

    code: str
    message: str
    passing: bool = False
