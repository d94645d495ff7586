"""Permits and deadlines."""

from __future__ import annotations

import pytest

from gateway.admission import Admission, Deadline
from gateway.errors import DeadlineExceeded, Overloaded


def test_more_than_the_budget_is_refused_at_once() -> None:
    """Images and bytes are bounded; what was held is free again afterwards."""
    door = Admission(max_images=10, max_bytes=1000)
    with door.permit(6, 100):
        with pytest.raises(Overloaded) as refused, door.permit(5, 10):
            raise AssertionError("must not be let in")
        assert refused.value.retry_after >= 1
        with pytest.raises(Overloaded), door.permit(1, 901):
            raise AssertionError("must not be let in")
        with door.permit(4, 900):
            pass
    with door.permit(10, 1000):
        pass


def test_a_request_larger_than_the_budget_is_let_in_alone() -> None:
    """Else it could never be answered."""
    door = Admission(max_images=10, max_bytes=1000)
    with door.permit(20, 5000), pytest.raises(Overloaded), door.permit(1, 1):
        raise AssertionError("must not be let in")


def test_a_failure_gives_its_permit_back() -> None:
    """An exception inside does not leak budget."""
    door = Admission(max_images=1, max_bytes=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), door.permit(1, 1):
            raise ZeroDivisionError


def test_deadline() -> None:
    """A deadline tells what is left, and says so when nothing is."""
    assert 9 < Deadline.after(10).remaining() <= 10
    with pytest.raises(DeadlineExceeded):
        Deadline.after(-0.1).remaining()
