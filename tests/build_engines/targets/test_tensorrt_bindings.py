"""The TensorRT target against the real bindings, without TensorRT: `make test-tensorrt` prepares each release."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from build_engines.errors import TargetError
from build_engines.stages import Stages
from build_engines.targets import gpu
from build_engines.targets import tensorrt as target
from build_engines.targets.gpu import Gpu
from build_engines.targets.tensorrt import TensorRT
from tests.build_engines.targets.api_walk import RECORDED, living, missing, recorded, used
from tests.build_engines.targets.fakes import FakeCuda, graph, install
from tests.build_engines.targets.strict_tensorrt import StrictTensorRT
from tests.build_engines.targets.test_tensorrt import OLD_HABITS

bindings = pytest.importorskip("tensorrt_bindings", reason="the bindings of TensorRT are not here: make test-tensorrt")

GPU = Gpu("NVIDIA H200", "9.0", 8 << 30)


@pytest.fixture(autouse=True)
def fresh_logger() -> Iterator[None]:
    """The logger is one for the process, and belongs to the TensorRT that it was made with."""
    target._logger.cache_clear()
    yield
    target._logger.cache_clear()


def stages(folder: Path) -> Stages:
    return Stages(folder, lambda line: None)


def test_every_name_exists() -> None:
    """Whatever the target uses of TensorRT is there."""
    api = living(bindings)
    names = used(Path(target.__file__).read_text(), api)
    assert len(names) > 30
    assert not missing(names, api)


def test_what_11_removed_is_gone() -> None:
    """The search is no formality: these very bindings lack the habits of TensorRT 8, from release 11 on."""
    api = living(bindings)
    gone = missing(used(OLD_HABITS, api), api) - {"float16"}
    assert ("BuilderFlag.FP16" in gone) == (not bindings.__version__.startswith("10."))


def test_the_recorded_names_are_these() -> None:
    """What the other tests believe of this release is what it has."""
    if not (RECORDED / f"tensorrt-{bindings.__version__}.json").is_file():
        pytest.skip("this release is not recorded in ../shared")
    api, real = recorded(bindings.__version__), living(bindings)
    names = used(Path(target.__file__).read_text(), real)
    for name in names:
        owner, _, member = name.partition(".")
        assert owner in api
        assert not member or member in api[owner]


def test_the_sequence_fits_the_signatures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Real enumerations, the real logger and progress monitor, and every argument of the type that is asked for."""
    trt = StrictTensorRT(
        living(bindings),
        {"IBuilderConfig.get_timing_cache": None, "Builder.build_serialized_network": lambda network, config: b"plan"},
        real=bindings,
    )
    install(monkeypatch, FakeCuda(), trt)
    assert TensorRT()._plan(graph(), GPU, stages(tmp_path)) == b"plan"
    assert isinstance(trt.set["IBuilderConfig.progress_monitor"], bindings.IProgressMonitor)
    assert trt.set["IBuilderConfig.profiling_verbosity"] is bindings.ProfilingVerbosity.DETAILED
    assert isinstance(target._logger(), bindings.ILogger)


def test_the_double_is_as_strict_as_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number where TensorRT wants one of its own values is an error for both."""
    config = (
        StrictTensorRT(living(bindings), real=bindings).construct("Builder", bindings.Logger()).create_builder_config()
    )
    with pytest.raises(TypeError):
        config.set_memory_pool_limit(0, 1 << 30)
    with pytest.raises(TypeError):
        bindings.IBuilderConfig.set_memory_pool_limit(None, 0, 1 << 30)


def test_no_library_behind_the_bindings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real `Builder` on a machine without TensorRT: the target says what is wrong, and where it would work."""
    if "stubs" not in Path(_library()).parts:
        pytest.skip("a real TensorRT is here")
    install(monkeypatch, FakeCuda(), bindings)
    with pytest.raises(TargetError, match=r"TensorRT does not start .*container"):
        TensorRT()._plan(graph(), GPU, stages(tmp_path))


@pytest.mark.parametrize("method", ["phase_start", "phase_finish", "step_complete"])
def test_what_tensorrt_calls_back(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress monitor's methods have the names and the parameters that the bindings call."""
    install(monkeypatch, FakeCuda(), bindings)
    signature = (getattr(bindings.IProgressMonitor, method).__doc__ or "").partition("\n")[0]
    expected = re.findall(r"(\w+): ", signature)
    own: Any = getattr(type(target._progress(print)), method)
    assert list(inspect.signature(own).parameters) == expected


def test_errors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logger, as TensorRT calls it, keeps errors and lets everything else go."""
    install(monkeypatch, FakeCuda(), bindings)
    logger = target._logger()
    severity = bindings.ILogger.Severity
    for level, line in (
        (severity.VERBOSE, "a"),
        (severity.WARNING, "b"),
        (severity.ERROR, "c\n"),
        (severity.INTERNAL_ERROR, "d"),
    ):
        logger.log(level, line)
    assert logger.last() == "c; d"


def test_the_real_cuda_bindings() -> None:
    """Every function of the CUDA runtime that is used is there, and a machine without a GPU is told so."""
    runtime = pytest.importorskip("cuda.bindings.runtime")
    names = set(re.findall(r"cudart\.(\w+)", Path(gpu.__file__).read_text()))
    assert "cudaMemcpyAsync" in names
    assert {name for name in names if not hasattr(runtime, name)} == set()
    assert runtime.cudaMemcpyKind.cudaMemcpyHostToDevice.value == 1
    try:
        assert gpu.find_gpu().free > 0
    except TargetError as error:
        assert re.search(r"No usable NVIDIA GPU .*cudaError\w+", str(error))  # noqa: PT017  # either is right


def _library() -> str:
    """The file that the bindings took for TensorRT."""
    maps = Path("/proc/self/maps").read_text()
    return next((line.split()[-1] for line in maps.splitlines() if "libnvinfer.so" in line), "")


def test_the_release_under_test() -> None:
    """Says which release this was, so that a run over three of them shows three."""
    sys.stdout.write(json.dumps({"tensorrt": bindings.__version__, "library": _library()}))
    assert target._logger.cache_info().currsize == 0
    assert int(bindings.__version__.partition(".")[0]) in (10, 11)
