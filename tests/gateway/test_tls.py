"""TLS in front, and to Triton, with real certificates on real sockets."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

import httpx
import pytest

from gateway.errors import UpstreamUnavailable
from gateway.settings import Settings
from gateway.triton.client import Tls, TritonClient
from gateway.triton.fake import FakeTriton
from tests.certificates import Pair, make_authority, make_certificate
from tests.grpc_triton import grpc_triton
from tests.pictures import encode, noise
from tests.servers import running_gateway, wait_for

PICTURE = encode(noise(8, 8), "JPEG")


@dataclass(frozen=True)
class Files:
    """An authority, a server and a client of it, and an authority that nobody knows."""

    authority: Pair
    server: Pair
    client: Pair
    stranger: Pair


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Made once."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = make_authority(folder)
    server, client = (make_certificate(authority, folder, name) for name in ("server", "client"))
    return Files(authority, server, client, make_authority(folder, "stranger"))


def trusting(pair: Pair, shown: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(pair.certificate))
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


def test_https(files: Files) -> None:
    """Who trusts the authority is answered; plain HTTP on the same port is not."""
    settings = Settings(tls_cert_file=files.server.certificate, tls_key_file=files.server.key)
    with running_gateway(settings, FakeTriton()) as plain:
        base = str(plain.base_url).replace("http:", "https:")
        with httpx.Client(base_url=base, verify=trusting(files.authority)) as client:
            answer = client.post("/v1/classify", content=PICTURE)
            assert answer.status_code == 200
            large = client.post("/v1/classify", content=bytes(3_000_000))
            assert large.json()["code"] == "no_usable_image"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(base, verify=trusting(files.stranger))
        with pytest.raises(httpx.TransportError):
            plain.get("/livez")


def test_callers_with_certificates(files: Files) -> None:
    """Where an authority of callers is set, nobody else gets a connection."""
    settings = Settings(
        tls_cert_file=files.server.certificate,
        tls_key_file=files.server.key,
        tls_client_ca_file=files.authority.certificate,
    )
    with running_gateway(settings, FakeTriton()) as plain:
        base = str(plain.base_url).replace("http:", "https:")
        shown = trusting(files.authority, files.client)
        assert httpx.get(f"{base}/livez", verify=shown).status_code == 200
        for context in (trusting(files.authority), trusting(files.authority, files.stranger)):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{base}/livez", verify=context)


@pytest.mark.parametrize("mutual", [False, True])
def test_grpc_to_triton(files: Files, mutual: bool) -> None:
    """The whole way to a Triton that speaks TLS, and to one that wants to see a certificate."""
    own = (files.server, files.authority if mutual else None)
    with grpc_triton(FakeTriton(), tls=own) as triton:
        settings = Settings(
            triton_url=triton.url,
            triton_tls_ca_file=files.authority.certificate,
            triton_tls_cert_file=files.client.certificate if mutual else None,
            triton_tls_key_file=files.client.key if mutual else None,
        )
        with running_gateway(settings) as client:
            wait_for(client, "/readyz", seconds=10)
            assert client.post("/v1/classify", content=PICTURE).status_code == 200


@pytest.mark.parametrize("case", ["plain", "stranger", "no certificate to show"])
def test_a_triton_that_is_not_ours(files: Files, case: str) -> None:
    """Plain gRPC to a port with TLS, a certificate of others, and none where one is wanted: not reached."""
    own = (files.server, files.authority if case == "no certificate to show" else None)
    authority = files.stranger if case == "stranger" else files.authority
    tls = None if case == "plain" else Tls(authority.certificate.read_bytes())

    async def ask(url: str) -> None:
        client = TritonClient(url, tls)
        try:
            await client.index(timeout=2)
        finally:
            await client.close()

    with grpc_triton(FakeTriton(), tls=own) as triton, pytest.raises(UpstreamUnavailable):
        asyncio.run(ask(triton.url))
