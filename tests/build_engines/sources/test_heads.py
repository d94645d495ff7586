from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from build_engines.errors import SourceError
from build_engines.preprocessing import Normalisation
from build_engines.sources import Network, Wish, find_source
from build_engines.sources.heads import read_head
from build_engines.sources.outputs import softmax, synthetic_pictures
from tests.build_engines.sources.test_onnx_file import NORMALISATION, network

RANDOM = np.random.default_rng(7)
HEAD: dict[str, Any] = {
    "weight": RANDOM.normal(0, 3, (4, 5)).astype(np.float32),
    "bias": RANDOM.normal(0, 1, 4).astype(np.float32),
    "labels": np.array(["oak", "ash", "elm", "black alder"]),
    "normalised": np.array(True),
}


def saved(path: Path, **changes: Any) -> Path:
    """A head's file; what is None is left out of it."""
    arrays = {key: value for key, value in {**HEAD, **changes}.items() if value is not None}
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


def loaded(backbone: Path, head: Path, normalisation: Normalisation = NORMALISATION) -> Network:
    """The backbone with the head."""
    return find_source(str(backbone), Wish(head=head)).load(normalisation)


@pytest.mark.parametrize("normalised", [True, False, "l2", "none"])
def test_a_backbone_and_a_head_are_a_classifier(tmp_path: Path, normalised: bool | str) -> None:
    """Probabilities by the head's matrix and bias, on features of the length that the file says."""
    backbone = network(tmp_path / "backbone.onnx")
    found = loaded(backbone, saved(tmp_path / "head.npz", normalised=np.array(normalised)))
    pixels = synthetic_pictures(8)
    features = find_source(str(backbone), Wish(task="embed", normalise="none")).load(NORMALISATION).reference(pixels)
    if normalised in (True, "l2"):
        features = features / np.linalg.norm(features, axis=1, keepdims=True)
    expected = softmax(np.asarray(features @ HEAD["weight"].T + HEAD["bias"], np.float32))
    session = onnxruntime.InferenceSession(found.graph, providers=["CPUExecutionProvider"])
    (answer,) = session.get_outputs()
    assert (answer.name, answer.shape) == ("CLASSIFICATION", ["N", 4])
    (answers,) = session.run(None, {"PREPROCESSED_IMAGE": pixels})
    np.testing.assert_allclose(answers, expected, atol=1e-5)
    np.testing.assert_allclose(found.reference(pixels), expected, atol=1e-5)
    assert (found.task, found.width, found.labels) == ("classify", 4, ("oak", "ash", "elm", "black alder"))
    assert found.shown == {}


def test_the_head_is_part_of_what_a_model_is_made_of(tmp_path: Path) -> None:
    """The identity, and so the certificate, has the hash of the head beside that of the backbone's weights."""
    backbone = network(tmp_path / "backbone.onnx")
    first = find_source(str(backbone), Wish(head=saved(tmp_path / "head.npz"))).identity()
    other = find_source(str(backbone), Wish(head=saved(tmp_path / "head.npz", bias=2 * HEAD["bias"]))).identity()
    assert first["sha256"] == other["sha256"]
    assert first["head"]["sha256"] != other["head"]["sha256"]
    assert (first["task"], first["head"]["file"], first["head"]["normalised"]) == ("classify", "head.npz", "l2")


def test_double_precision_is_taken(tmp_path: Path) -> None:
    """What scikit-learn gives is FP64: it becomes FP32."""
    head = read_head(saved(tmp_path / "head.npz", weight=HEAD["weight"].astype(np.float64)))
    assert head.weight.dtype == np.float32
    np.testing.assert_array_equal(head.weight, HEAD["weight"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": None}, "must hold weight, bias, labels and normalised: it lacks 'labels'"),
        ({"normalised": None, "labels": None}, "it lacks 'labels', 'normalised'"),
        ({"scale": np.ones(1)}, "it has 'scale'"),
        ({"weight": np.ones((4, 5), np.int64)}, r"weight is int64 \[4, 5\], and must be FP32 \[classes, dim\]"),
        ({"weight": np.ones(5, np.float32)}, r"weight is float32 \[5\]"),
        ({"weight": np.ones((4, 0), np.float32)}, r"weight is float32 \[4, 0\]"),
        (
            {"weight": HEAD["weight"][:1], "bias": HEAD["bias"][:1], "labels": HEAD["labels"][:1]},
            "give two: zeros for no",
        ),
        ({"bias": np.ones(3, np.float32)}, r"bias is float32 \[3\], and must be FP32 \[4\]"),
        ({"labels": np.array(["a", "b", "c"])}, r"labels are <U1 \[3\], and must be 4 texts"),
        ({"labels": np.arange(4)}, "must be 4 texts"),
        ({"labels": np.array(["a", "b", "c", "a"])}, "two classes have the same label"),
        ({"labels": np.array(["a", "b", "c", " "])}, "the label ' ' is empty"),
        ({"labels": np.array(["a", "b", "c", "a "])}, r"the label 'a ' begins or ends with a space"),
        ({"labels": np.array(["a", "b", "c", "d\ne"])}, r"the label 'd\\ne' is empty, too long, or more than a line"),
        ({"labels": np.array(["a", "b", "c", "d" * 201])}, "too long"),
        ({"weight": np.full((4, 5), np.inf, np.float32)}, "not finite"),
        ({"weight": np.full((4, 5), 1e300)}, "not finite"),
        ({"bias": np.full(4, np.nan, np.float32)}, "not finite"),
        ({"normalised": np.array("l1")}, "normalised must be true"),
        ({"normalised": np.array([True, False])}, "normalised must be true"),
        ({"normalised": np.array(2)}, "normalised must be true"),
    ],
)
def test_a_head_that_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """The error names the file, the array and what it should be."""
    with pytest.raises(SourceError, match=words) as refusal:
        read_head(saved(tmp_path / "head.npz", **changes))
    assert "head.npz" in str(refusal.value)


class Program:
    """A pickle that would run something."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


def test_nothing_in_a_head_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle, or an array of objects: refused, and what they would do is not done."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Program()))
    objects = np.array([Program()], object)
    for path in (tmp_path / "pickle.npz", saved(tmp_path / "objects.npz", labels=objects)):
        with pytest.raises(SourceError, match=r"is not a head, or is damaged .*numpy\.savez"):
            read_head(path)
    assert not (tmp_path / "ran").exists()


def test_a_damaged_head_is_refused(tmp_path: Path) -> None:
    """Cut anywhere, or with a bit turned over, it is an error of one sentence or the same head."""
    content = saved(tmp_path / "whole.npz").read_bytes()
    for length in range(0, len(content), 97):
        (tmp_path / "cut.npz").write_bytes(content[:length])
        with pytest.raises(SourceError, match="is not a head, or is damaged"):
            read_head(tmp_path / "cut.npz")
    for place in range(0, len(content), 31):
        (tmp_path / "cut.npz").write_bytes(content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :])
        try:
            head = read_head(tmp_path / "cut.npz")
        except SourceError:
            continue
        np.testing.assert_array_equal(head.weight, HEAD["weight"])


@pytest.mark.parametrize("name", sorted(HEAD))
def test_a_member_that_is_no_array_is_refused(tmp_path: Path, name: str) -> None:
    """An archive with other files under the names of the arrays is no head."""
    path = saved(tmp_path / "head.npz", **{name: None})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{name}.npy", b"[1, 2, 3]")
    with pytest.raises(SourceError, match=r"head\.npz is not a head, or is damaged .*numpy\.savez"):
        read_head(path)


def test_a_head_that_would_unpack_to_gigabytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes of compressed zeros are not unpacked first."""
    monkeypatch.setattr("build_engines.sources.heads.LARGEST", 1 << 20)
    np.savez_compressed(tmp_path / "bomb.npz", **{**HEAD, "weight": np.zeros((4, 1 << 18), np.float32)})
    assert (tmp_path / "bomb.npz").stat().st_size < 1 << 14
    with pytest.raises(SourceError, match="larger than 1 MiB"):
        read_head(tmp_path / "bomb.npz")


def test_a_head_of_other_features_is_refused(tmp_path: Path) -> None:
    """The error has both numbers: it was trained with another network, size or pooling."""
    head = saved(tmp_path / "head.npz", weight=np.ones((4, 7), np.float32))
    with pytest.raises(SourceError, match=r"for features of 7 numbers, and backbone\.onnx gives 5"):
        loaded(network(tmp_path / "backbone.onnx"), head)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"task": "embed"}, "leave --task embed out"),
        ({"classes": 4}, "leave --classes out"),
        ({"normalise": "l2"}, "leave --normalise out"),
    ],
)
def test_a_wish_that_contradicts_the_head_is_refused(tmp_path: Path, wish: dict[str, Any], words: str) -> None:
    """The file says how many classes there are, and which features they are for."""
    backbone = network(tmp_path / "backbone.onnx")
    with pytest.raises(SourceError, match=words):
        find_source(str(backbone), Wish(head=saved(tmp_path / "head.npz"), **wish))


def test_a_head_that_is_not_there_is_named(tmp_path: Path) -> None:
    """So is one that is a folder."""
    for path in (tmp_path / "nowhere.npz", tmp_path):
        with pytest.raises(SourceError, match=rf"The head {path} cannot be read"):
            read_head(path)
