from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build_engines import publish
from build_engines.__main__ import main
from build_engines.configs import Entry
from build_engines.errors import BuildError
from build_engines.text import TextOrder, build_samples, build_text
from build_engines.text.build import SAMPLES
from build_engines.text.serving.engine import load
from tests.build_engines.text.conftest import SMALL, small_order
from tests.servers import ROOT

Table = Callable[..., str]


def config(repository: Path, model: str) -> Any:
    """A configuration, read as strictly as Triton reads it."""
    text = (repository / model / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def silent(line: str) -> None:
    """Says nothing."""


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    """The repository of the samples, to be changed."""
    return Path(shutil.copytree(built, tmp_path / "copied"))


@pytest.mark.parametrize(
    ("model", "task", "output", "width"),
    [("text_classifier", "text_classify", "CLASSIFICATION", 4), ("text_embedder", "text_embed", "EMBEDDING", 128)],
)
def test_what_triton_reads(built: Path, model: str, task: str, output: str, width: int) -> None:
    """One text a row and no dimension for the batch; floats out; labels, task, certificate; one version, on the CPU."""
    found = config(built, model)
    assert (found.name, found.backend, found.max_batch_size) == (model, "python", 256)
    assert [(t.name, t.data_type, list(t.dims)) for t in found.input] == [("TEXT", model_config_pb2.TYPE_STRING, [1])]
    floats = model_config_pb2.TYPE_FP32
    outputs = [(t.name, t.data_type, list(t.dims)) for t in found.output]
    assert outputs == [(output, floats, [width]), ("KNOWN_WORDS", floats, [1])]
    assert found.output[0].label_filename == ("1/labels.txt" if task == "text_classify" else "")
    assert list(found.version_policy.specific.versions) == [1]
    assert [group.kind for group in found.instance_group] == [model_config_pb2.ModelInstanceGroup.KIND_CPU]
    assert found.HasField("dynamic_batching")
    parameters = {key: value.string_value for key, value in found.parameters.items()}
    assert parameters["task"] == task
    assert parameters.get("normalised") == ("l2" if task == "text_embed" else None)
    shown = json.loads(parameters["certificate"])
    assert (shown["version"], shown["task"], shown["model"]) == ("1", task, model)
    assert sorted(path.name for path in (built / model).iterdir()) == ["1", "config.pbtxt"]


def test_the_certificate_says_what_the_model_is(built: Path) -> None:
    """Source, versions, tokeniser, agreement and speed; the same command and texts make the same again."""
    certificate = publish.read_certificate(built / "text_classifier" / "1")
    assert certificate is not None
    source = certificate["source"]
    assert (source["name"], source["weights"], source["rows"]) == ("headlines.csv", "file", 240)
    assert len(source["sha256"]) == 64
    assert set(certificate["versions"]) == {"numpy", "onnx", "onnxruntime", "scikit-learn", "skl2onnx", "unicode"}
    assert certificate["vectoriser"]["words_sha256"] == certificate["files"]["words.py"]
    agreement = certificate["agreement"]
    assert (agreement["kind"], agreement["texts"], agreement["top1"], agreement["labelled"]) == ("given", 60, 1.0, 60)
    assert agreement["largest"] < 1e-5
    assert agreement["accuracy"] == agreement["source_accuracy"] > 0.5
    assert [figure["batch"] for figure in certificate["performance"]["speed"]] == [1, 8, 32]
    assert (built / "text_classifier" / "1" / "labels.txt").read_text() == "Business\nSci/Tech\nSports\nWorld\n"


def test_nothing_is_trained_twice(copied: Path) -> None:
    """What is up to date is left as it is, and so quickly that scikit-learn is not even imported."""
    program = (
        "import sys; from pathlib import Path; from build_engines.text import build_samples; "
        f"build_samples(Path({str(copied)!r})); print(*(sys.modules.keys() & {{'sklearn', 'skl2onnx', 'onnxruntime'}}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    models = ("text_classifier", "text_embedder")
    assert done.stdout.splitlines() == [
        *(f"{model}: version 1 is up to date in {copied / model / '1'}" for model in models),
        "",
    ]


def test_what_a_person_chose_is_left(copied: Path, table: Table) -> None:
    """A model of other texts, and a version that was promoted by hand, stay where builds run by themselves."""
    said: list[str] = []
    build_text(small_order(table(), copied), silent)
    build_samples(copied, said.append)
    assert said[0] == "text_classifier: version 2, made of table.csv, is served: left as it is"
    assert main(["--model", "text_classifier", "--repository", str(copied), "--rollback"]) == 0
    entry = Entry(copied, "text_classifier", "text_classify")
    assert (publish.served(entry, ""), publish.pinned(entry)) == ("1", "1")
    build_samples(copied, said.append)
    assert said[-2] == "text_classifier: version 1 was chosen by hand: left as it is"


def test_a_changed_source_is_learnt_anew(table: Table, tmp_path: Path) -> None:
    """Other texts or --force make a new version; the same ones do not."""
    repository = tmp_path / "repository"
    repository.mkdir()
    order, more = small_order(table(), repository), table(*SMALL, "tool,one more", name="more.csv")
    numbers = []
    for changes in ({}, {}, {"train": more}, {"train": more, "force": True}):
        folder = build_text(TextOrder(**{**vars(order), **changes}), silent)
        assert folder is not None
        numbers.append(folder.name)
    assert numbers == ["1", "1", "2", "3"]


def test_a_staged_version_is_not_served(copied: Path, table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be promoted, or served beside the other under a name of its own."""
    arguments = ["--repository", str(copied), "--model", "text_classifier"]
    assert main(["text", "--train", table(), "--min-accuracy", "0", "--stage", *arguments]) == 0
    assert "staged, not served, version 2 from 8 texts" in capsys.readouterr().out
    assert list(config(copied, "text_classifier").version_policy.specific.versions) == [1]
    assert main(["--beside", "2", "--weight", "0.25", *arguments]) == 0
    candidate = config(copied, "text_classifier.v2")
    parameters = {key: value.string_value for key, value in candidate.parameters.items()}
    assert (parameters["version_of"], parameters["weight"]) == ("text_classifier", "0.25")
    assert (copied / "text_classifier.v2" / candidate.output[0].label_filename).read_text() == "fruit\ntool\n"
    assert main(["--promote", "2", *arguments]) == 0
    assert list(config(copied, "text_classifier").output[0].dims) == [2]
    assert not (copied / "text_classifier.v2").exists()


def test_a_command_names_no_folders_and_no_secrets(table: Table, tmp_path: Path) -> None:
    """The certificate, which everyone sees, says how to build the same again from files of the same names."""
    repository = tmp_path / "repository"
    repository.mkdir()
    train = table()
    arguments = ["--train", train, f"--valid={train}", "--text", "title", "--model", "fruit", "--force"]
    assert main(["text", *arguments, "--repository", str(repository)]) == 0
    certificate = publish.read_certificate(repository / "fruit" / "1")
    assert certificate is not None
    again = "python -m build_engines text --train table.csv --valid=table.csv --text title --model fruit"
    assert certificate["command"] == f"{again} --repository repository"
    assert publish.pinned(Entry(repository, "fruit", "text_classify")) == "1"


def test_moderation_comes_with_the_model(table: Table, tmp_path: Path) -> None:
    """A label is reported as a category from a threshold on; a label that there is not is refused."""
    file = tmp_path / "moderation.json"
    file.write_text('{"tool": {"category": "violence", "threshold": 0.5}}')
    build_text(small_order(table(), tmp_path, moderation=file), silent)
    parameters = config(tmp_path, "text_classifier").parameters
    assert json.loads(parameters["moderation"].string_value)["tool"] == {"category": "violence", "threshold": 0.5}
    file.write_text('{"knife": {"category": "violence", "threshold": 0.5}}')
    with pytest.raises(BuildError, match="names the label 'knife'"):
        build_text(small_order(table(), tmp_path, moderation=file), silent)


def test_contradictions_are_said_and_counted(table: Table, tmp_path: Path) -> None:
    """A line says how many rows were left out because they say another label, and the certificate keeps the number."""
    said: list[str] = []
    folder = build_text(small_order(table(*SMALL, "tool,apples", "tool,sweet pears"), tmp_path), said.append)
    assert folder is not None
    sentence = "text_classifier: rows of table.csv with another label for a text that it has already: 2, left out"
    assert said[:-1] == [sentence, sentence]  # it is learnt from, and judged with
    certificate = publish.read_certificate(folder)
    assert certificate is not None
    assert (certificate["source"]["rows"], certificate["source"]["contradictions"]) == (10, 2)


def test_texts_that_are_too_long_to_be_served_are_not_judged_with(table: Table, tmp_path: Path) -> None:
    """They are learnt from as far as they are read, and a line says how many are left out of the judgement."""
    said: list[str] = []
    rows = (*SMALL, f"tool,{'saw ' * 10_000}")
    folder = build_text(small_order(table(*rows), tmp_path), said.append)
    assert folder is not None
    assert said[0] == "text_classifier: texts to judge with that are longer than 32,768 characters: 1, left out"
    certificate = publish.read_certificate(folder)
    assert certificate is not None
    assert (certificate["source"]["rows"], certificate["agreement"]["texts"]) == (11, 10)


@pytest.mark.parametrize("task", ["text_classify", "text_embed"])
@pytest.mark.parametrize("words", [("apple", "pear", "plum", "saw", "nail", "drill"), ("apple", "apple", "saw", "saw")])
def test_texts_of_one_word_each(table: Table, tmp_path: Path, task: str, words: tuple[str, ...]) -> None:
    """No pairs of words to learn, and few words: a model nevertheless."""
    rows = [
        f"{'fruit' if k < len(words) // 2 else 'tool'},{word}{'!' * n}"
        for n in range(5)
        for k, word in enumerate(words)
    ]
    folder = build_text(small_order(table(*rows), tmp_path, task=task, dim=1, min_accuracy=0), silent)
    assert folder is not None
    assert load(folder)([*words])[1].max() == 1  # one dimension has no place for more than one of the words


@pytest.mark.parametrize("number", [60, 400])
def test_features_of_few_words_that_are_all_common(table: Table, tmp_path: Path, number: int) -> None:
    """No word is left out for being common where there would be too few left, or too few texts to tell."""
    rows = [f"the red {'apple' if k % 2 else 'saw'} {'.' * k}" for k in range(number)]
    order = small_order(table(*rows, header="title"), tmp_path, task="text_embed", dim=2)
    folder = build_text(order, silent)
    assert folder is not None
    assert load(folder)(["the red saw"])[1] == [[1]]


@pytest.mark.parametrize("option", ["--moderation", "--train", "--valid", "--feed"])
def test_a_device_is_no_file(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever option names it: one sentence, and not a read without an end."""
    assert main(["text", option, "/dev/zero", "--repository", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "/dev/zero cannot be read (no regular file): name a file.\n"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train": "nothing.csv"}, r"nothing\.csv cannot be read"),
        ({"columns": ("text",)}, "with no text: name them"),
        ({"task": "text_embed"}, "too few for 128 dimensions"),
        ({"valid": str(SAMPLES / "held-out.csv")}, "held-out.csv has the label 'Business', which table.csv has not"),
        ({"moderation": Path("nothing.json")}, r"nothing\.json cannot be read"),
        ({"moderation": ROOT / "pyproject.toml", "task": "text_embed"}, "Features have no labels"),
        ({"min_accuracy": 1.0, "valid": None}, "--min-accuracy asks for 100"),
    ],
)
def test_nothing_is_published_of_what_does_not_do(
    table: Table, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    """One sentence says what is wrong, and the repository stays empty."""
    repository = tmp_path / "repository"
    repository.mkdir()
    rows = (*SMALL[:4], "fruit,a chisel", *SMALL[5:9], "tool,pears")  # every fifth is of the other kind
    with pytest.raises(BuildError, match=sentence):
        build_text(small_order(**{"train": table(*rows), "repository": repository, **changes}), silent)
    assert not [path for path in repository.rglob("*") if path.is_file()]
