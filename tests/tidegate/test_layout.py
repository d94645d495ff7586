"""The rules of the layout of the client side."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.gateway.test_layout import importers, imports
from tests.servers import ROOT

CLIENT = sorted((ROOT / "tidegate").rglob("*.py"))
WAY = ["features", "spool", "delivery", "client", "pace", "reading", "inputs"]


def test_the_client_does_not_know_the_gateway() -> None:
    """It runs where only the client is installed."""
    assert importers(CLIENT, "gateway", "build_engines", "fastapi", "pydantic", "uvicorn") == set()
    program = "import sys; sys.modules['gateway'] = None; import tidegate.extraction"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_one_module_speaks_http() -> None:
    """Only the client imports httpx."""
    assert importers(CLIENT, "httpx", "anyio") == {"tidegate/client.py"}


def test_no_table_is_read_by_what_sends() -> None:
    """Only the writer of features knows arrays and Parquet, and the task whose answers they are."""
    assert importers(CLIENT, "pyarrow") == {"tidegate/features.py"}
    assert importers(CLIENT, "numpy") == {"tidegate/extraction.py", "tidegate/features.py"}


@pytest.mark.parametrize("at", range(len(WAY)))
def test_a_file_travels_one_way(at: int) -> None:
    """An earlier part of the way does not import a later one."""
    mine = imports(ROOT / "tidegate" / f"{WAY[at]}.py")
    assert not {f"tidegate.{later}" for later in WAY[:at]} & mine
