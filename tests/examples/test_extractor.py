"""`examples/extractor.ipynb` is executed as a user would, against a real gateway; and what git has of it is whole."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

from gateway.triton.local import free_ports
from tests.servers import ROOT

EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "extractor.ipynb"
FACTS = """
print(json.dumps({
    "work": str(WORK),
    "labels": labels.tolist(),
    "nearest": nearest.tolist(),
    "accuracy": accuracy,
    "judge": judge.tolist(),
    "served": served,
    "agreeing": agreeing,
    "exit": server.returncode,
}))
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This very interpreter is the kernel; nothing is read from a home or written there; all goes with `tmp_path`."""
    kernel = tmp_path / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "tests", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    work = tmp_path / "tmp"
    work.mkdir()
    monkeypatch.setenv("TMPDIR", str(work))
    monkeypatch.delenv("TIDEGATE_PHOTOS", raising=False)
    monkeypatch.delenv("TIDEGATE_API_KEY", raising=False)


def saved() -> Any:
    return nbformat.read(NOTEBOOK, 4)  # type: ignore[no-untyped-call]  # it has no types


def executed(until: str | None = None, then: str = "") -> Any:
    """The notebook with fresh outputs, up to a heading, and the code `then` behind it."""
    notebook = saved()
    if until is not None:
        headings = [cell.source for cell in notebook.cells]
        (end,) = [index for index, text in enumerate(headings) if re.search(f"^## {until}$", text, re.MULTILINE)]
        del notebook.cells[end:]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    if then:
        notebook.cells.append(nbformat.v4.new_code_cell(then))  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook,
        timeout=240,
        interrupt_on_timeout=True,  # and not killed, so that it stops its own server
        kernel_name="python3",
        resources={"metadata": {"path": str(EXAMPLES)}},
    )
    client.execute()
    return notebook


def printed(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


@pytest.mark.timeout(400)
def test_from_pictures_to_a_served_model(gate: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours are alike, half of the pictures teach the other half, and what is served says what was learned."""
    monkeypatch.setenv("TIDEGATE_URL", str(gate.base_url))
    facts = json.loads(printed(executed(then=FACTS).cells[-1]))
    labels, nearest = np.array(facts["labels"]), np.array(facts["nearest"])
    assert len(labels) == 176
    assert len(np.unique(labels)) == 8

    same = labels[nearest] == labels[:, None]
    assert same.mean() > 0.8  # 1 in 8 by chance
    assert same[labels == "stripes"].mean() > 0.7

    chance = facts["accuracy"]["chance"]
    assert chance == pytest.approx(1 / 8)
    assert facts["accuracy"]["5-NN"] > chance + 0.7
    assert facts["accuracy"]["linear probe"] > chance + 0.7

    work, judge = Path(facts["work"]), np.array(facts["judge"])
    with np.load(work / "head.npz") as head, np.load(work / "features.npz") as file:
        logits = file["embeddings"][judge] @ head["weight"].T + head["bias"]
        names = head["labels"].tolist()
    given = np.array([[answer[name] for name in names] for answer in facts["served"]])
    expected = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(given, expected / expected.sum(1, keepdims=True), atol=0.01)
    assert (np.array(names)[given.argmax(1)] == labels[judge]).mean() > chance + 0.7
    assert facts["agreeing"] >= 0.97 * len(judge)  # with the probe, as scikit-learn has it
    assert facts["exit"] == 0

    version = work / "models" / "my_pictures_classifier" / "1"
    assert (version / "labels.txt").read_text().split() == names
    certificate = json.loads((version / "certificate.json").read_text())
    assert certificate["source"]["head"]["sha256"] == hashlib.sha256((work / "head.npz").read_bytes()).hexdigest()


@pytest.mark.timeout(200)
def test_a_folder_of_ones_own(gate: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sub-folders are the classes; what is no picture, and a class of one picture, are left out with a word."""
    for number in range(6):
        for label, colour in (("red things", (230, 8 * number, 0)), ("blue", (0, 8 * number, 230))):
            (tmp_path / "own" / label).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (60, 50 + number), colour).save(tmp_path / "own" / label / f"{number}.PNG")
    (tmp_path / "own" / "blue" / "notes.jpg").write_text("no picture")
    (tmp_path / "own" / "lonely").mkdir()
    Image.new("RGB", (60, 60)).save(tmp_path / "own" / "lonely" / "one.png")
    monkeypatch.setenv("TIDEGATE_URL", str(gate.base_url))
    monkeypatch.setenv("TIDEGATE_PHOTOS", str(tmp_path / "own"))
    notebook = executed("A new model", "print(json.dumps([labels.tolist(), accuracy]))")
    text = "".join(printed(cell) for cell in notebook.cells if cell.cell_type == "code")
    assert "left out: notes.jpg (unsupported_image)" in text
    assert "left out: the class lonely, which has 1 of at least 4 pictures" in text
    labels, accuracy = json.loads(printed(notebook.cells[-1]))
    assert sorted(labels) == ["blue"] * 6 + ["red things"] * 6
    assert accuracy["linear probe"] == 1


def test_without_a_gateway_it_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody answers, the first cell says so, where, and what to do."""
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setenv("TIDEGATE_URL", url)
    with pytest.raises(CellExecutionError) as raised:
        executed("Pictures")
    assert raised.value.evalue.startswith(f"No gateway answers at {url} (")
    assert raised.value.evalue.endswith("run `make up` in another terminal, or set TIDEGATE_URL.")


def saved_outputs() -> Iterator[Any]:
    for cell in saved().cells:
        if cell.cell_type == "code":
            yield from cell.outputs


def test_what_git_has_was_run_from_top_to_bottom() -> None:
    """The saved notebook is valid, was executed in order without an error, and shows its four figures."""
    notebook = saved()
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert {output.output_type for output in saved_outputs()} <= {"stream", "display_data"}
    assert sum("image/jpeg" in output.get("data", {}) for output in saved_outputs()) == 4


def test_what_git_has_is_small_and_of_no_machine() -> None:
    """Under 400 kB, with no folder of a machine and no warning in its outputs."""
    assert NOTEBOOK.stat().st_size < 400_000
    assert not any(output.get("name") == "stderr" for output in saved_outputs())
    text = "".join(output.get("text", "") for output in saved_outputs())
    assert not re.search(r"/(tmp|home|root|work|usr|Users)/", text)
