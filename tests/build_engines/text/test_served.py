"""Text models on a real Triton: raw strings in, labels and features out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpc_client

from build_engines import publish
from build_engines.configs import Entry
from build_engines.text import build_text
from build_engines.text.serving.engine import load
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, find_installation, free_ports
from tests.build_engines.text.conftest import SMALL, small_order

TWENTY = (
    "Oil prices rise as demand grows",
    "Striker scores twice in the final",
    "Rebels and the army agree on a ceasefire",
    "Scientists find water on a distant moon",
    "the the the",
    "prices",
    "caf\u00e9 owners fear higher prices",
    "cafe\u0301 owners fear higher prices",
    "\u0e15\u0e25\u0e32\u0e14\u0e2b\u0e38\u0e49\u0e19",
    "\u80a1\u5e02\u4e0a\u6da8",
    "\U0001f680\U0001f680 to the moon",
    "",
    "   ",
    "zxqv wvut",
    "one\0two prices",
    "Prices " * 3000,
    "x" * 30_000,
    '"quoted", it#39;s & <b>bold</b>',
    "\u0410\u043a\u0446\u0438\u0438 \u0440\u0430\u0441\u0442\u0443\u0442",
    "Coach names an unchanged team",
)
OUTPUTS = {"text_classifier": "CLASSIFICATION", "text_embedder": "EMBEDDING"}
Rows = npt.NDArray[np.float32]

each_model = pytest.mark.parametrize("model", OUTPUTS)


@pytest.fixture(scope="module")
def repository(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples; a candidate beside the classifier; and models that must not be served."""
    repository = Path(shutil.copytree(built, tmp_path_factory.mktemp("served") / "repository"))
    table = repository.parent / "table.csv"
    table.write_text("\n".join(["label,title", *SMALL]) + "\n")
    build_text(small_order(str(table), repository, promote=False), lambda line: None)
    publish.beside(Entry(repository, "text_classifier", "text_classify"), "2")
    for name in ("changed", "other_unicode", "other_width"):
        shutil.copytree(built / "text_classifier", repository / name)
        config = repository / name / "config.pbtxt"
        config.write_text(config.read_text().replace('name: "text_classifier"', f'name: "{name}"'))
    words = repository / "changed" / "1" / "words.py"
    words.write_text(words.read_text().replace("casefold", "lower"))
    certificate = repository / "other_unicode" / "1" / "certificate.json"
    document = json.loads(certificate.read_bytes())
    document["vectoriser"]["unicode"] = "9.0.0"
    certificate.write_text(json.dumps(document))
    config = repository / "other_width" / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [ 4 ]", "dims: [ 3 ]"))
    return repository


@pytest.fixture(scope="module")
def triton(repository: Path) -> Iterator[grpc_client.InferenceServerClient]:
    """A client of a real Triton that serves the repository."""
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))
    http, grpc, metrics = free_ports(3)
    log = repository.parent / "triton.log"
    with LocalTriton([repository], ports=Ports(http, grpc, metrics), log_file=log) as server:
        server.wait_ready()
        with grpc_client.InferenceServerClient(server.url) as client:
            yield client


def ask(client: grpc_client.InferenceServerClient, model: str, texts: Sequence[bytes | str]) -> tuple[Rows, Rows]:
    """Both outputs for some texts, in one request."""
    given = grpc_client.InferInput("TEXT", [len(texts), 1], "BYTES")
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    given.set_data_from_numpy(np.array(encoded, object).reshape(-1, 1))
    answer = client.infer(model, [given])
    return answer.as_numpy(OUTPUTS.get(model, "CLASSIFICATION")), answer.as_numpy("KNOWN_WORDS")


@each_model
def test_a_text_is_answered_the_same_wherever_it_stands(triton: grpc_client.InferenceServerClient, model: str) -> None:
    """20 texts alone, in one request, and from 20 callers at once: one answer each; features have length 1."""
    alone, known = (np.concatenate(parts) for parts in zip(*(ask(triton, model, [t]) for t in TWENTY), strict=True))
    together = ask(triton, model, TWENTY)
    with ThreadPoolExecutor(20) as pool:
        at_once = [*pool.map(lambda text: ask(triton, model, [text])[0][0], TWENTY * 5)]
    np.testing.assert_array_equal(together[1], known)
    for other in (together[0], *np.split(np.array(at_once), 5)):
        np.testing.assert_allclose(other, alone, atol=1e-6)
        lengths = np.linalg.norm(alone, axis=1) * np.linalg.norm(other, axis=1)
        assert ((alone * other).sum(axis=1) >= 0.9999 * lengths).all()
    if model == "text_embedder":
        np.testing.assert_allclose(np.linalg.norm(alone, axis=1), known[:, 0] > 0, atol=1e-6)
    else:
        np.testing.assert_allclose(alone.sum(axis=1), 1, atol=1e-5)


@each_model
def test_no_text_harms(triton: grpc_client.InferenceServerClient, model: str) -> None:
    """Numbers for every text, also for one of no words and of bytes that are no UTF-8; both forms of \u00e9 are one."""
    rows, known = ask(triton, model, [*TWENTY, b"\xff\xfe\xc3", b"prices \xe2\x82"])
    assert np.isfinite(rows).all()
    assert np.isfinite(known).all()
    assert ((known >= 0) & (known <= 1)).all()
    np.testing.assert_array_equal(rows[6], rows[7])
    without_words = [TWENTY.index(text) for text in ("", "   ", "zxqv wvut")] + [20]
    assert not known[without_words].any()
    np.testing.assert_array_equal(rows[5], rows[21])
    assert known[21] == known[5] == 1


@each_model
def test_a_text_that_is_too_long_is_said_to_be(triton: grpc_client.InferenceServerClient, model: str) -> None:
    """Known words of -1 for a text that is not read to its end; its neighbours in the request are answered as ever."""
    long: list[bytes | str] = [TWENTY[0] + " x" * 20_000, b"\xff" * 40_000, "\ufdfa" * 2000, "x" * 10_000_000]
    alone = ask(triton, model, TWENTY[:1])
    rows, known = ask(triton, model, [long[0], TWENTY[0], *long[1:], "\u200b" * 30_000 + TWENTY[0]])
    assert known[:, 0].tolist() == [-1, alone[1][0, 0], -1, -1, -1, alone[1][0, 0]]
    assert np.isfinite(rows).all()
    np.testing.assert_allclose(rows[[1, 5]], alone[0][[0, 0]], atol=1e-6)
    if model == "text_embedder":
        assert not rows[[0, 2, 3, 4]].any()


@each_model
def test_triton_answers_as_the_builder_measured(
    triton: grpc_client.InferenceServerClient, repository: Path, model: str
) -> None:
    """The engine in this process and in Triton's give the same, for as many texts as a request may hold."""
    texts = (TWENTY * 13)[:256]
    expected, expected_known = load(repository / model / "1")(texts)
    rows, known = ask(triton, model, texts)
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    np.testing.assert_array_equal(known, expected_known)


def test_triton_names_the_classes(triton: grpc_client.InferenceServerClient) -> None:
    """The classification extension gives labels of the very version that answers, the candidate's its own."""
    for model, labels in (
        ("text_classifier", {"Business", "Sci/Tech", "Sports", "World"}),
        ("text_classifier.v2", {"fruit", "tool"}),
    ):
        given = grpc_client.InferInput("TEXT", [1, 1], "BYTES")
        given.set_data_from_numpy(np.array([[b"ripe apples"]], object))
        wanted = grpc_client.InferRequestedOutput("CLASSIFICATION", class_count=len(labels))
        answer = triton.infer(model, [given], outputs=[wanted])
        found = [row.decode().split(":")[2] for row in answer.as_numpy("CLASSIFICATION").ravel()]
        assert set(found) == labels
        assert answer.get_response().model_version == ("2" if model.endswith("v2") else "1")
    assert found[0] == "fruit"


def test_a_model_that_is_not_as_certified_is_not_served(triton: grpc_client.InferenceServerClient) -> None:
    """Another tokeniser, Unicode or width than the published one is refused at the start, with words that say it."""
    index = {model.name: model for model in triton.get_model_repository_index().models}
    for name, words in (
        ("changed", "words.py is not the file that was published: build the model again"),
        ("other_unicode", "was made by a Python with Unicode 9.0.0"),
        ("other_width", "config.pbtxt promises CLASSIFICATION [3], and version 1 gives CLASSIFICATION [4]"),
    ):
        assert index[name].state == "UNAVAILABLE"
        assert words in index[name].reason
    assert index["text_classifier"].state == index["text_classifier.v2"].state == "READY"
