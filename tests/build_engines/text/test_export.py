from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from build_engines.errors import GateError, TextSetError
from build_engines.text.build import SAMPLE, SAMPLE_HELD_OUT, SAMPLES
from build_engines.text.export import OPSETS, export
from build_engines.text.gate import judge
from build_engines.text.serving.engine import Engine
from build_engines.text.texts import Material, Text, TextSet
from build_engines.text.train import Trained, train
from tests.build_engines.text.conftest import SMALL
from tests.servers import ROOT

NEWS = ROOT.parent / "shared" / "data" / "news"
SCRIPTS = (
    "собака лает, кошка спит",
    "猫が寝る。犬が吠える",
    "แมวนอนหลับ",
    "कुत्ता भौंकता है",
    "der Fuß, die Füße, DAS CAFE\u0301",
    "it#39;s 5% & rising -- \"quoted\" <b>[x]</b> a.b.c $1,000",
)  # fmt: skip
ODD = ("", " ", "zzz", "\U0001f642", "a\0b", "steel", "ripe ripe ripe saw", "x" * 300)


def small(task: str = "text_classify", extra: tuple[str, ...] = (), labels: int = 2) -> TextSet:
    """Few texts, also of many scripts."""
    rows = [Text((row.split(",")[1],), row.split(",")[0]) for row in SMALL]
    rows += [Text((text,), "fruit") for text in extra]
    rows += [Text((f"number {k} of kind {label}",), f"kind {label}") for label in range(labels - 2) for k in range(5)]
    return TextSet(("title",), tuple(rows))


def exported(trained: Trained, folder: Path) -> Engine:
    """The engine of a trained model."""
    (folder / "model.onnx").write_bytes(export(trained))
    (folder / "vocabulary.txt").write_text("\n".join(sorted(trained.words)), "utf-8")
    words = ROOT / "build_engines" / "text" / "serving" / "words.py"
    (folder / "words.py").write_bytes(words.read_bytes())
    return Engine(folder)


@pytest.mark.parametrize(
    ("task", "labels"), [("text_classify", 2), ("text_classify", 3), ("text_classify", 12), ("text_embed", 2)]
)
def test_the_exported_model_answers_as_scikit_learn_does(task: str, labels: int, tmp_path: Path) -> None:
    """Within 1e-5 on every script, on words it never saw, on none, and repeated ones; alone and in any batch."""
    texts = small(task, SCRIPTS, labels)
    trained = train(task, texts, 6)
    engine = exported(trained, tmp_path)
    asked = [*(text.joined for text in texts.texts), *SCRIPTS, *ODD] * 3
    rows, known = engine(asked)
    expected, expected_known = trained.answers(asked)
    assert rows.dtype == known.dtype == np.float32
    assert (rows.shape, known.shape) == ((len(asked), trained.width), (len(asked), 1))
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    np.testing.assert_allclose(known, expected_known, atol=1e-6)
    alone = [engine([text.encode()]) for text in asked]
    np.testing.assert_allclose(np.concatenate([row for row, _ in alone]), rows, atol=1e-6)
    np.testing.assert_array_equal(np.concatenate([share for _, share in alone]), known)
    lengths = np.linalg.norm(rows, axis=1)
    if task == "text_embed":
        np.testing.assert_allclose(lengths, known[:, 0] > 0, atol=1e-6)
    else:
        np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-5)


def test_the_graph_is_of_standard_operators_only(tmp_path: Path) -> None:
    """No operator of onnxruntime's own is left: all that a runtime must know are two versions of the standard."""
    for task in ("text_classify", "text_embed"):
        model = onnx.load_from_string(export(train(task, small(), 3)))
        assert {node.domain for node in model.graph.node} <= {"", "ai.onnx.ml"}
        assert {opset.domain: opset.version for opset in model.opset_import}[""] == OPSETS[""]
        assert [given.name for given in model.graph.input] == ["WORDS"]


def test_known_words_is_a_share(tmp_path: Path) -> None:
    """Of all words of the text, also of those that come twice; 0 where there are none."""
    engine = exported(train("text_classify", small(), 0), tmp_path)
    shares = engine(["ripe apples", "ripe bananas", "ripe, ripe, bananas!", "bananas", "", " \0"])[1]
    np.testing.assert_allclose(shares[:, 0], [1, 1 / 2, 2 / 3, 0, 0, 0])


def test_a_text_that_the_features_cannot_tell_is_as_one_of_unknown_words(tmp_path: Path) -> None:
    """Its word is known, and points nowhere in the smaller space: zeros that say so, and not noise of length 1."""
    several = ("a b", "a b x", "b a y", "a b", "c d", "c d z", "d c w", "d c", "lonely")
    texts = TextSet(("title",), tuple(Text((text,)) for text in several))
    engine = exported(train("text_embed", texts, 2), tmp_path)
    rows, known = engine(["a b", "lonely", "lonely a"])
    assert known[1] == 0
    assert not rows[1].any()
    np.testing.assert_allclose(np.linalg.norm(rows[[0, 2]], axis=1), 1, atol=1e-6)


def test_the_gate_refuses_what_answers_otherwise(tmp_path: Path) -> None:
    """A graph that takes the logarithm of counts unlike scikit-learn, as skl2onnx writes it, is not published."""
    texts = small()
    trained = train("text_classify", texts, 0)
    trained.vectoriser.sublinear_tf = True
    engine = exported(trained, tmp_path)
    with pytest.raises(GateError, match=r"differs from scikit-learn's by up to .* nothing was published"):
        judge(trained, engine, texts, TextSet(("title",), (Text(("ripe ripe ripe saw",), "fruit"),)), "given", 0.0)


def test_the_gate_refuses_labels_that_are_not_those_of_the_texts(tmp_path: Path) -> None:
    """A model that is right no more often than one that always says the same, or than was asked for."""
    texts = small()
    engine = exported(trained := train("text_classify", texts, 0), tmp_path)
    swapped = TextSet(
        ("title",), tuple(Text(text.columns, {"tool": "fruit", "fruit": "tool"}[text.label]) for text in texts.texts)
    )
    with pytest.raises(GateError, match=r"right on 0\.0% of 10 texts .* same answer would be on 50\.0%"):
        judge(trained, engine, texts, swapped, "given", None)
    assert judge(trained, engine, texts, swapped, "given", 0.0).accuracy == 0
    with pytest.raises(GateError, match=r"--min-accuracy asks for 90\.0%"):
        judge(trained, engine, texts, swapped, "given", 0.9)


def test_too_few_words_for_the_dimensions() -> None:
    """A space as large as all texts or words needs is no smaller one; a text without words teaches nothing."""
    with pytest.raises(TextSetError, match="too few for 128 dimensions: give more, or at most 9 with --dim"):
        train("text_embed", small(), 128)
    with pytest.raises(TextSetError, match="no words to learn from"):
        train("text_classify", TextSet(("title",), (Text(("!",), "a"), Text(("\U0001f642",), "b"))), 0)


def test_the_sample_is_in_two_parts() -> None:
    """Four labels, 60 headlines each to learn from and 15 others to judge with."""
    learnt, held_out = (
        Material.of(str(SAMPLES / name)).texts((), None, needs_labels=True) for name in (SAMPLE, SAMPLE_HELD_OUT)
    )
    for part, each in ((learnt, 60), (held_out, 15)):
        labels = [text.label for text in part.texts]
        assert {label: labels.count(label) for label in labels} == dict.fromkeys(learnt.labels, each)
    assert learnt.labels == ("Business", "Sci/Tech", "Sports", "World")
    assert not {text.joined for text in learnt.texts} & {text.joined for text in held_out.texts}


@pytest.mark.skipif(not NEWS.is_dir(), reason=f"no labelled news at {NEWS}")
def test_real_news_are_learnt(tmp_path: Path) -> None:
    """On 1,000 news that it never saw the ONNX file is right on at least 80 %, and nearly as often on bare titles."""
    learnt, held_out = (
        Material.of(str(NEWS / name)).texts((), None, needs_labels=True) for name in ("train.csv", "valid.csv")
    )
    engine = exported(train("text_classify", learnt, 0), tmp_path)
    for column, least in ((None, 0.85), (0, 0.75)):
        texts = [text.joined if column is None else text.columns[column] for text in held_out.texts]
        best = engine(texts)[0].argmax(axis=1)
        right = [learnt.labels[k] == text.label for k, text in zip(best, held_out.texts, strict=True)]
        assert np.mean(right) >= least
