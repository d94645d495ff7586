"""The gauge that counts Triton's models by what may be done with them."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY

from gateway.errors import UpstreamUnavailable
from gateway.triton import ModelState
from gateway.triton.discovery import Discovery
from gateway.triton.fake import FakeTriton
from tests.gateway.triton.test_discovery import Nameless, Two, certify


def states(triton: FakeTriton) -> dict[str, float]:
    """The gauge after one look at `triton`, without the zeros."""

    async def work() -> None:
        await Discovery(triton, "ensemble_model", 5).check()

    asyncio.run(work())
    names = ("ready", "not_loaded", "certificate", "unusable")
    counts = {name: REGISTRY.get_sample_value("tidegate_models", {"state": name}) for name in names}
    return {name: count for name, count in counts.items() if count}


def test_a_model_that_is_served_counts_as_ready(fake: FakeTriton) -> None:
    """Its steps are no models of their own here."""
    assert states(fake) == {"ready": 1}


def test_a_certificate_of_something_else_shows(fake: FakeTriton) -> None:
    """This is what the alert on certificates watches; it is gone with the cause."""
    certify(fake, version="2")
    assert states(fake) == {"certificate": 1}
    certify(fake, version="1")
    assert states(fake) == {"ready": 1}


def test_a_model_that_triton_could_not_load_shows() -> None:
    """Beside the one that answers."""
    triton = Two()
    triton.other = ModelState("other", "1", False, "failed to load")
    assert states(triton) == {"ready": 1, "not_loaded": 1}


def test_an_ensemble_without_one_of_its_steps_is_not_loaded() -> None:
    """Nothing is said against its certificate: it could not be read."""

    class Stepless(FakeTriton):
        async def index(self, *, timeout: float) -> list[ModelState]:
            return [ModelState(name, "1", name != "classifier") for name in self.parameters]

    assert states(Stepless()) == {"not_loaded": 2}


def test_a_model_that_answers_wrongly_is_unusable() -> None:
    """Here one that has lost a label."""
    assert states(Nameless()) == {"unusable": 1}


def test_a_triton_that_is_away_changes_nothing(fake: FakeTriton) -> None:
    """What it serves is not known then; `tidegate_triton_ready` tells of the outage."""
    assert states(fake) == {"ready": 1}
    fake.failure = UpstreamUnavailable("gone")
    assert states(fake) == {"ready": 1}
