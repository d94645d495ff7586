"""Certificates for tests, made on the spot by the program openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Pair:
    """Files in PEM: a certificate and its private key."""

    certificate: Path
    key: Path


def make_authority(folder: Path, name: str = "authority") -> Pair:
    """An authority that signs others; skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here")
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl("req", "-x509", "-subj", f"/CN={name}", "-days", "2", *_new(pair.key), "-out", pair.certificate)
    return pair


def make_certificate(authority: Pair, folder: Path, name: str) -> Pair:
    """Of `authority`, for 127.0.0.1 and localhost; for servers and for clients."""
    pair, request, extensions = Pair(folder / f"{name}.pem", folder / f"{name}.key"), folder / "request", folder / "ext"
    extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    _openssl("req", "-new", "-subj", f"/CN={name}", *_new(pair.key), "-out", request)
    signed_by: list[str | Path] = [
        "-CA",
        authority.certificate,
        "-CAkey",
        authority.key,
        "-CAcreateserial",
        "-days",
        "2",
    ]
    _openssl("x509", "-req", "-in", request, "-extfile", extensions, *signed_by, "-out", pair.certificate)
    return pair


def _new(key: Path) -> list[str | Path]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key]


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
