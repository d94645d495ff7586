"""gRPC's words → ours."""

from __future__ import annotations

import asyncio
import os
import socket

import grpc
import psutil
import pytest

from gateway.errors import (
    BadUpstreamResponse,
    DeadlineExceeded,
    ModelNotReady,
    Overloaded,
    TidegateError,
    UpstreamUnavailable,
)
from gateway.triton.client import TritonClient, error_of
from gateway.triton.fake import FakeTriton
from gateway.triton.local import free_ports
from tests.grpc_triton import grpc_triton

MEANING: dict[grpc.StatusCode, type[TidegateError]] = {
    grpc.StatusCode.CANCELLED: DeadlineExceeded,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAVAILABLE: UpstreamUnavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
}


@pytest.mark.parametrize("status", list(grpc.StatusCode), ids=lambda s: s.name)
def test_every_status_has_a_place(status: grpc.StatusCode) -> None:
    """No status is left to chance; Triton's words are private."""
    error = error_of(status, "in ensemble 'x', at /tmp/y")
    assert type(error) is MEANING.get(status, BadUpstreamResponse)
    assert "/tmp/y" not in error.detail
    assert "/tmp/y" in (error.private or "")


@pytest.mark.parametrize(
    ("status", "details", "meaning"),
    [
        ("UNAVAILABLE", "Exceeds maximum queue size", Overloaded),
        ("UNAVAILABLE", "in ensemble 'e', [request id: x] Exceeds maximum queue size", Overloaded),
        ("UNAVAILABLE", "Request timeout expired", DeadlineExceeded),
        ("UNAVAILABLE", "Request for unknown model: 'x' is not found", ModelNotReady),
        ("UNAVAILABLE", "in ensemble 'e', 'classifier' version 1 is not ready", ModelNotReady),
        ("NOT_FOUND", "Request for unknown model: 'x' has no available versions", ModelNotReady),
        ("UNAVAILABLE", "failed to connect to all addresses", UpstreamUnavailable),
        ("INTERNAL", "Failed to process the request(s)", BadUpstreamResponse),
    ],
)
def test_words_of_triton_that_matter(status: str, details: str, meaning: type[TidegateError]) -> None:
    """A full queue, an expired wait and a missing model are told apart from a dead server."""
    assert type(error_of(grpc.StatusCode[status], details)) is meaning


def test_nobody_listens() -> None:
    """A closed port is `UpstreamUnavailable`, at once."""

    async def ask() -> None:
        client = TritonClient(f"127.0.0.1:{free_ports(1)[0]}")
        try:
            await client.index(timeout=5)
        finally:
            await client.close()

    with pytest.raises(UpstreamUnavailable):
        asyncio.run(ask())


def test_no_call_is_sent_without_time() -> None:
    """What could not be answered in time is not sent."""

    async def ask() -> None:
        client = TritonClient(f"127.0.0.1:{free_ports(1)[0]}")
        try:
            await client.index(timeout=0.001)
        finally:
            await client.close()

    with pytest.raises(DeadlineExceeded):
        asyncio.run(ask())


def test_a_machine_that_vanishes_is_noticed() -> None:
    """Data that nobody acknowledges for 10 s end the connection: the kernel was told so."""

    def user_timeouts(port: int) -> list[int]:
        found = []
        for each in psutil.Process().net_connections("tcp"):
            if each.raddr and each.raddr.port == port:
                with socket.socket(fileno=os.dup(each.fd)) as theirs:
                    found.append(theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        return found

    async def ask(url: str) -> list[int]:
        client = TritonClient(url)
        try:
            await client.index(timeout=5)
            return user_timeouts(int(url.rpartition(":")[2]))
        finally:
            await client.close()

    with grpc_triton(FakeTriton()) as triton:
        assert asyncio.run(ask(triton.url)) == [10_000]
