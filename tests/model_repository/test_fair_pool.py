"""A long request waits for itself."""

from __future__ import annotations

import threading

from tests.model_repository.picture_files import PREPROCESSOR, load_by_path

fair_pool = load_by_path(PREPROCESSOR / "fair_pool.py", "fair_pool_under_test")


def test_turns_come_before_arrival() -> None:
    """The first piece of a late request comes before the second of an early one; equal turns keep their order."""
    pool, go_on, done = fair_pool.FairPool(1, "test"), threading.Event(), list[str]()
    pool.submit(0, go_on.wait)
    for name in ("a", "b"):
        for turn in range(3):
            pool.submit(turn, lambda text=f"{name}{turn}": done.append(text))
    go_on.set()
    pool.shutdown()
    assert done == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_shutdown_waits_for_all_work() -> None:
    """Also for what has not begun."""
    pool, done = fair_pool.FairPool(3, "test"), list[int]()
    for i in range(1000):
        pool.submit(i, lambda i=i: done.append(i))
    pool.shutdown()
    assert sorted(done) == list(range(1000))
