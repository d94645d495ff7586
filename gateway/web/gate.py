"""What routes may use: the joined parts, through one alias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from gateway.access.callers import Network
from gateway.access.keys import Keys
from gateway.access.rates import Rates
from gateway.admission import Admission
from gateway.fetch import Fetch
from gateway.inference import Inference
from gateway.settings import Settings
from gateway.triton.discovery import Discovery


@dataclass(frozen=True)
class Gate:
    """The parts of one gateway process, joined by `gateway.app.create_app`."""

    settings: Settings
    admission: Admission
    discovery: Discovery
    inference: Inference
    fetch: Fetch
    keys: Keys | None
    rates: Rates
    proxies: tuple[Network, ...]


async def _gate(request: Request) -> Gate:
    gate: Gate = request.app.state.gate
    return gate


GateDep = Annotated[Gate, Depends(_gate)]
