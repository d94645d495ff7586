"""Permits and deadlines."""

from __future__ import annotations

import pytest

from gateway.admission import Admission, Deadline
from gateway.errors import DeadlineExceeded, Overloaded


def test_more_images_than_the_budget_are_refused_at_once() -> None:
    """Images are bounded; what was held is free again afterwards."""
    door = Admission(max_images=10, max_bytes=1000)
    with door.permit(6):
        with pytest.raises(Overloaded) as refused, door.permit(5):
            raise AssertionError("must not be let in")
        assert refused.value.retry_after >= 1
        with door.permit(4):
            pass
    with door.permit(10):
        pass


def test_bodies_are_counted_while_they_arrive() -> None:
    """The bodies of all requests together are bounded, chunk by chunk, and given back at their end."""
    door = Admission(max_images=10, max_bytes=1000)
    with door.hold() as first, door.hold() as second:
        first(600)
        second(400)
        with pytest.raises(Overloaded):
            second(1)
        with pytest.raises(Overloaded):
            first(1)
    with door.hold() as third:
        third(1000)


def test_a_request_larger_than_the_budget_is_let_in_alone() -> None:
    """Else it could never be answered."""
    door = Admission(max_images=10, max_bytes=1000)
    with door.permit(20), pytest.raises(Overloaded), door.permit(1):
        raise AssertionError("must not be let in")
    with door.hold() as grow:
        grow(5000)
        grow(5000)


def test_a_failure_gives_its_permit_back() -> None:
    """An exception inside does not leak budget."""
    door = Admission(max_images=1, max_bytes=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), door.permit(1):
            raise ZeroDivisionError


def test_deadline() -> None:
    """A deadline tells what is left, and says so when nothing is."""
    assert 9 < Deadline.after(10).remaining() <= 10
    with pytest.raises(DeadlineExceeded):
        Deadline.after(-0.1).remaining()
