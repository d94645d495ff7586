"""A batch of files, until each has an answer: sent again, in halves, or given up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.client import Answer, Client, Model
from tidegate.errors import GatewayAway, Problem, TooLarge, Unanswered
from tidegate.pace import Pace
from tidegate.progress import duration
from tidegate.wording import code as code_in
from tidegate.wording import sentence

LONGEST_WAIT_S = 30.0
LONGEST_RETRY_AFTER_S = 300.0
"""A gateway may ask for so long a pause; for a longer one nobody waits in front of a terminal."""


class Task(Protocol):
    """What is asked of the gateway for each file, and what is kept of its answer."""

    @property
    def route(self) -> str:
        """Such as `/v1/embed`."""

    @property
    def fields(self) -> Mapping[str, str]:
        """Text fields of every request."""

    def kept(self, result: Mapping[str, Any], model: Model) -> bytes | Problem:
        """What is stored of one result whose status is ok, or why it is of no use.

        Raises `ValueError` with what is wrong when it is not as the contract says.
        """


@dataclass(frozen=True)
class Retries:
    """How often a request is sent again, and after how many seconds the first time; then after twice as many."""

    most: int = 8
    first_wait_s: float = 0.5


class Delivery:
    """Sends batches in turns of `pace`; `answered_by` is called with the model of every answer, and may raise."""

    def __init__(
        self,
        client: Client,
        task: Task,
        pace: Pace,
        retries: Retries,
        answered_by: Callable[[Model], None],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._task = task
        self._pace = pace
        self._retries = retries
        self._answered_by = answered_by
        self._sleep = sleep
        self._most_images: int | None = None

    async def deliver(self, files: Sequence[bytes]) -> list[bytes | Problem]:
        """What is kept of each file's answer, or why there is none.

        A batch that is too large, or that brings no answer from a gateway that is well, is sent in halves, so that no
        file pays for its neighbour. Raises `GatewayAway` when the gateway is not well or asks for too long a pause, and
        `Refused`.
        """
        if self._most_images and len(files) > self._most_images:
            return await self._in_two(files, self._most_images)
        try:
            answer = await self._send(files)
        except TooLarge as error:
            if len(files) == 1:
                return [Problem(error.code, error.detail)]
            if error.code == "too_many_images":
                self._most_images = min(self._most_images or len(files), max(1, len(files) // 2))
            return await self._in_two(files, len(files) // 2)
        except Unanswered as error:
            if not await self._client.is_well():
                raise GatewayAway(
                    f"The gateway at {self._client.url} is not there or not ready, after {self._retries.most + 1} "
                    f"tries ({error})"
                ) from error
            if len(files) == 1 or error.code in ("overloaded", "rate_limited"):
                return [Problem(error.code, error.detail, passing=True)] * len(files)
            return await self._in_two(files, len(files) // 2)
        return [self._outcome(result, answer.model) for result in answer.results]

    async def _in_two(self, files: Sequence[bytes], cut: int) -> list[bytes | Problem]:
        return [*await self.deliver(files[:cut]), *await self.deliver(files[cut:])]

    async def _send(self, files: Sequence[bytes]) -> Answer:
        tried = 0
        while True:
            async with self._pace.turn() as turn:
                try:
                    answer = await self._client.ask(self._task.route, files, self._task.fields)
                except Unanswered as error:
                    self._check_patience(error)
                    turn.refused(error.retry_after)
                    failure = error
                else:
                    turn.answered(len(files))
                    if answer.model is not None:
                        self._answered_by(answer.model)
                    return answer
            tried += 1
            if tried > self._retries.most or not failure.again:
                raise failure
            wait = min(LONGEST_WAIT_S, self._retries.first_wait_s * 2 ** (tried - 1))
            wait *= random.uniform(0.5, 1)  # noqa: S311  # spreads requests, and keeps no secret
            await self._sleep(max(wait, failure.retry_after or 0))

    def _check_patience(self, error: Unanswered) -> None:
        if error.retry_after is not None and error.retry_after > LONGEST_RETRY_AFTER_S:
            raise GatewayAway(
                f"The gateway at {self._client.url} asks to be left alone for {duration(error.retry_after)} "
                f"({error.code}), and a run waits for {duration(LONGEST_RETRY_AFTER_S)} at most: start it again then."
            ) from error

    def _outcome(self, result: Mapping[str, Any], model: Model | None) -> bytes | Problem:
        error = result.get("error")
        if result.get("status") == "error" and isinstance(error, dict):
            code = code_in(error.get("code"))
            message = sentence(error.get("message"), "The gateway did not say why.")
            return Problem(code, message, passing=code == "bad_upstream_response")
        if result.get("status") != "ok" or model is None:
            self._client.no_gateway("a result is neither ok nor an error")
        try:
            return self._task.kept(result, model)
        except ValueError as wrong:
            self._client.no_gateway(str(wrong))
