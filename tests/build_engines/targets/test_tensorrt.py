from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_engines.errors import TargetError
from build_engines.sources import INPUT, OUTPUTS
from build_engines.stages import Stages
from build_engines.targets import Calibration, modelopt
from build_engines.targets import tensorrt as target
from build_engines.targets.tensorrt import MAX_BATCH, TensorRT
from tests.build_engines.targets.api_walk import VERSIONS, missing, recorded, used
from tests.build_engines.targets.fakes import SIZE, WIDTH, Error, FakeCuda, install, network
from tests.build_engines.targets.strict_tensorrt import StrictTensorRT

each_release = pytest.mark.parametrize("version", VERSIONS)

HALF = json.dumps({"Layers": [{"Name": "c", "LayerType": "CaskConvolution", "Inputs": [{"Datatype": "Half"}]}]})
FULL = HALF.replace("Half", "Float")

OLD_HABITS = """
builder = trt.Builder(logger)
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
config = builder.create_builder_config()
config.set_flag(trt.BuilderFlag.FP16)
config.int8_calibrator = calibrator
network.get_layer(0).precision = trt.float16
"""


@pytest.fixture(autouse=True)
def fresh_logger() -> Iterator[None]:
    """The logger is one for the process, and belongs to the TensorRT that it was made with."""
    target._logger.cache_clear()
    yield
    target._logger.cache_clear()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A GPU."""
    return FakeCuda()


def strict(monkeypatch: pytest.MonkeyPatch, version: str, cuda: FakeCuda, **answers: Any) -> StrictTensorRT:
    """TensorRT of a release, installed. Its engines give the means of each picture's channels."""
    trt = StrictTensorRT(
        recorded(version),
        {
            "IBuilderConfig.get_timing_cache": None,
            "EngineInspector.get_engine_information": HALF,
            **{name.replace("__", ".", 1): answer for name, answer in answers.items()},
        },
    )

    def execute(stream: int) -> bool:
        addresses = dict(trt.arguments["IExecutionContext.set_tensor_address"][-2:])
        batch = trt.arguments["IExecutionContext.set_input_shape"][-1][1][0]
        pixels = ctypes.string_at(addresses[INPUT], batch * SIZE * SIZE * 3)
        images = np.frombuffer(pixels, np.uint8).reshape(-1, SIZE, SIZE, 3)
        content = images.mean(axis=(1, 2)).astype(np.float32).tobytes()
        ctypes.memmove(addresses[OUTPUTS["classify"]], content, len(content))
        return True

    trt.answers.setdefault("IExecutionContext.set_input_shape", True)
    trt.answers["IExecutionContext.execute_async_v3"] = execute
    install(monkeypatch, cuda, trt)
    return trt


@each_release
def test_every_name_exists_in_every_release(version: str) -> None:
    """Whatever the target uses of TensorRT is there in 10 and in 11."""
    api = recorded(version)
    names = used(Path(target.__file__).read_text(), api)
    assert {
        "Builder.create_network",
        "Builder.build_serialized_network",
        "BuilderFlag.TF32",
        "EngineInspector.get_engine_information",
        "IBuilderConfig.profiling_verbosity",
        "IExecutionContext.execute_async_v3",
        "IOptimizationProfile.set_shape",
        "ITimingCache.serialize",
        "NetworkDefinitionCreationFlag.STRONGLY_TYPED",
        "OnnxParser.get_error",
    } <= names
    assert not missing(names, api)


def test_what_11_removed_is_found() -> None:
    """The same search over the habits of TensorRT 8 finds all that is gone, and nothing to object to in 10."""
    assert not missing(used(OLD_HABITS, recorded("10.16.1.11")), recorded("10.16.1.11")) - {"float16"}
    for version in ("11.2.1.2", "11.4.0.106"):
        api = recorded(version)
        assert missing(used(OLD_HABITS, api), api) - {"float16"} == {
            "NetworkDefinitionCreationFlag.EXPLICIT_BATCH",
            "BuilderFlag.FP16",
            "IBuilderConfig.int8_calibrator",
            "ILayer.precision",
        }


@each_release
def test_the_whole_way(version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: FakeCuda) -> None:
    """One sequence, whose every call and argument fits the signatures of each release, and an engine that answers."""
    trt = strict(monkeypatch, version, cuda, EngineInspector__get_engine_information=FULL)
    engine = TensorRT().build(network(), "fp32", Calibration(), Stages(tmp_path, lambda line: None))
    assert trt.calls[: trt.calls.index("Runtime")] == [
        "Builder",
        "Builder.create_network",
        "OnnxParser",
        "OnnxParser.parse_from_file",
        "Builder.create_builder_config",
        "IBuilderConfig.set_memory_pool_limit",
        "IBuilderConfig.clear_flag",
        "IBuilderConfig.profiling_verbosity =",
        "Builder.create_optimization_profile",
        "IOptimizationProfile.set_shape",
        "IBuilderConfig.add_optimization_profile",
        "IBuilderConfig.progress_monitor =",
        "IBuilderConfig.create_timing_cache",
        "IBuilderConfig.set_timing_cache",
        "Builder.build_serialized_network",
        "IBuilderConfig.get_timing_cache",
    ]
    assert engine.files == {"model.plan": b"IHostMemory"}
    assert engine.layers == {"fp32": 1}
    assert engine.device == "NVIDIA H200 (compute capability 9.0)"
    images = np.random.default_rng(0).integers(0, 256, (MAX_BATCH + 5, SIZE, SIZE, 3), dtype=np.uint8)
    answers = engine.run(images)
    assert answers.shape == (MAX_BATCH + 5, WIDTH)
    np.testing.assert_allclose(answers, images.mean(axis=(1, 2)), rtol=1e-6)


@each_release
def test_arguments(version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: FakeCuda) -> None:
    """Strongly typed, batches of 1 to 256 for one shape, and half of the free memory to work in."""
    trt = strict(monkeypatch, version, cuda, EngineInspector__get_engine_information=FULL)
    TensorRT(usual_batch=32).build(network(), "fp32", Calibration(), Stages(tmp_path, lambda line: None))
    (typed,) = trt.arguments["Builder.create_network"]
    assert typed == (1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED),)
    assert trt.arguments["IOptimizationProfile.set_shape"] == [
        (INPUT, (1, SIZE, SIZE, 3), (32, SIZE, SIZE, 3), (MAX_BATCH, SIZE, SIZE, 3))
    ]
    assert trt.arguments["IBuilderConfig.set_memory_pool_limit"] == [(trt.MemoryPoolType.WORKSPACE, 4 << 30)]
    assert trt.arguments["IBuilderConfig.clear_flag"] == [(trt.BuilderFlag.TF32,)]


RELEASE = VERSIONS[1]


def test_the_timing_cache_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: FakeCuda) -> None:
    """What a build learns about kernels is there for the next, by GPU and release; a damaged file is forgotten."""
    trt = strict(monkeypatch, RELEASE, cuda, EngineInspector__get_engine_information=FULL)
    del trt.answers["IBuilderConfig.get_timing_cache"]
    stages = Stages(tmp_path, lambda line: None)
    TensorRT().build(network(), "fp32", Calibration(), stages)
    (cache,) = tmp_path.glob("timing-*")
    assert cache.name == "timing-nvidia-h200-11.2.1.cache"
    assert cache.read_bytes() == b"IHostMemory"
    TensorRT(usual_batch=8).build(network(), "fp32", Calibration(), stages)
    given = trt.arguments["IBuilderConfig.create_timing_cache"]
    trt.answers["IBuilderConfig.set_timing_cache"] = lambda cache, ignore: given[-1] == (b"",)
    TensorRT(usual_batch=9).build(network(), "fp32", Calibration(), stages)
    assert [content for (content,) in given] == [b"", b"IHostMemory", b"IHostMemory", b""]


def test_a_finished_plan_is_not_built_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: FakeCuda) -> None:
    """A build that was interrupted after the plan goes on with it."""
    trt = strict(monkeypatch, RELEASE, cuda, EngineInspector__get_engine_information=FULL)
    for _ in range(2):
        TensorRT().build(network(), "fp32", Calibration(), Stages(tmp_path, lambda line: None))
    assert trt.calls.count("Builder.build_serialized_network") == 1


def test_progress_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> None:
    """A line when ten seconds have passed, none for every step, and the build is never cancelled."""
    strict(monkeypatch, RELEASE, cuda)
    lines: list[str] = []
    clock = iter([0.0, 1.0, 11.0, 12.0])
    monkeypatch.setattr("build_engines.targets.tensorrt.time.monotonic", lambda: next(clock))
    progress = target._progress(lines.append)
    progress.phase_start("Tactics", None, 40)
    assert [progress.step_complete("Tactics", step) for step in (3, 4, 5)] == [True] * 3
    progress.phase_finish("Tactics")
    assert lines == ["TensorRT: Tactics, step 5 of 40"]


def test_the_identity(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> None:
    """An engine depends on TensorRT's release, on the GPU's type, on its profile, and on what made its graph."""
    strict(monkeypatch, RELEASE, cuda)
    monkeypatch.setattr(modelopt, "find_python", lambda given: Path("python"))
    monkeypatch.setattr(modelopt, "versions", lambda python: {"nvidia-modelopt": "0.47.0"})
    identity = TensorRT().identity("fp32")
    assert identity == {
        "name": "tensorrt",
        "tensorrt": "11.2.1",
        "gpu": "NVIDIA H200",
        "compute_capability": "9.0",
        "profile": [1, 64, 256],
    }
    assert TensorRT().identity("int8") == {**identity, "modelopt": {"nvidia-modelopt": "0.47.0"}}


def test_no_tensorrt(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> None:
    """Without TensorRT the message names the container and the extra."""
    install(monkeypatch, cuda, None)
    with pytest.raises(TargetError, match=r"tensorrt is not installed: .*container.*tidegate\[tensorrt\]"):
        TensorRT().identity("fp16")


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT without a GPU is refused before anything is converted."""
    strict(monkeypatch, RELEASE, FakeCuda(Error.cudaErrorInsufficientDriver))
    with pytest.raises(TargetError, match=r"No usable NVIDIA GPU"):
        TensorRT().identity("fp16")


def test_another_precision(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> None:
    """A precision that is not built is refused by name."""
    strict(monkeypatch, RELEASE, cuda)
    with pytest.raises(TargetError, match=r"fp16, int8, fp32, not in fp8"):
        TensorRT().identity("fp8")


def test_a_graph_that_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: FakeCuda) -> None:
    """All of the parser's errors are told."""
    strict(
        monkeypatch,
        RELEASE,
        cuda,
        OnnxParser__parse_from_file=lambda path: not Path(path).is_file(),
        OnnxParser__num_errors=2,
        OnnxParser__get_error=lambda index: ["no importer for Foo", "node 7 is invalid"][index],
    )
    with pytest.raises(TargetError, match=r"no importer for Foo; node 7 is invalid"):
        TensorRT().build(network(), "fp32", Calibration(), Stages(tmp_path, lambda line: None))


def test_a_builder_that_gives_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: FakeCuda) -> None:
    """No plan is an error with the last that TensorRT wrote, and nothing is kept of it."""

    def fail(network: Any, config: Any) -> None:
        logger = target._logger()
        logger.log(trt.ILogger.Severity.WARNING, "a warning")
        logger.log(trt.ILogger.Severity.ERROR, "could not find any implementation for node conv1\n")

    trt = strict(monkeypatch, RELEASE, cuda, Builder__build_serialized_network=fail)
    with pytest.raises(TargetError, match=r"could not build the engine \(could not find any .* conv1\)"):
        TensorRT().build(network(), "fp32", Calibration(), Stages(tmp_path, lambda line: None))
    assert not list(tmp_path.iterdir())


def test_a_broken_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: FakeCuda) -> None:
    """Where TensorRT gives no builder, the message says where it would."""

    def null(logger: Any) -> None:
        raise TypeError("pybind11::init(): factory function returned nullptr")

    trt = strict(monkeypatch, RELEASE, cuda)
    trt.answers["Builder.__init__"] = null
    with pytest.raises(TargetError, match=r"does not start .*container"):
        TensorRT().build(network(), "fp32", Calibration(), Stages(tmp_path, lambda line: None))


def test_a_plan_of_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: FakeCuda) -> None:
    """A plan that does not load is an error, not an engine."""
    strict(monkeypatch, RELEASE, cuda, Runtime__deserialize_cuda_engine=lambda plan: None)
    with pytest.raises(TargetError, match=r"cannot be loaded .*another TensorRT or GPU"):
        TensorRT().build(network(), "fp32", Calibration(), Stages(tmp_path, lambda line: None))


def test_fp16_that_became_fp32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: FakeCuda) -> None:
    """An engine whose layers run in FP32 is not passed off as FP16."""
    strict(monkeypatch, RELEASE, cuda, EngineInspector__get_engine_information=FULL)
    prepare(monkeypatch)
    with pytest.raises(TargetError, match=r"fp16 was asked for, and of 1 layers that compute, 1 in fp32 run"):
        TensorRT().build(network(), "fp16", Calibration(), Stages(tmp_path, lambda line: None))


@pytest.mark.parametrize("layers", [{}, {"fp16": 4, "fp32": 5}])
def test_too_little_in_the_precision(layers: dict[str, int]) -> None:
    """Half of the layers at least must run in what was asked for; none at all means that nothing is known."""
    with pytest.raises(TargetError, match=r"no layer|5 in fp32"):
        target.check_layers(layers, "fp16")


def test_features_are_not_called_probabilities() -> None:
    """The comment above an embedder's configuration is its own; all else is the classifier's."""
    assert "features" in target.serving("embed").why["head"]
    assert target.serving("classify") is target.SERVING


def prepare(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """ModelOpt that gives the graph back, and what it was asked."""
    asked: list[Any] = []
    monkeypatch.setattr(modelopt, "find_python", lambda given: Path("python"))
    monkeypatch.setattr(modelopt, "versions", lambda python: {"nvidia-modelopt": "0.47.0"})

    def convert(python: Path, precision: str, graph: bytes, pixels: Any) -> bytes:
        asked.append((precision, pixels))
        return graph

    monkeypatch.setattr(modelopt, "convert", convert)
    return asked


def test_int8_wants_pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: FakeCuda) -> None:
    """INT8 without pictures to calibrate with is refused before the GPU has anything to do."""
    trt = strict(monkeypatch, RELEASE, cuda)
    prepare(monkeypatch)
    for calibration in (None, np.zeros((0, SIZE, SIZE, 3), np.uint8)):
        with pytest.raises(TargetError, match=r"INT8 needs pictures .*--calibration"):
            TensorRT().build(network(), "int8", Calibration(pixels=calibration), Stages(tmp_path, lambda line: None))
    assert not trt.calls


def test_conversion_by_pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: FakeCuda) -> None:
    """FP16 is converted by the pictures where there are some, else by smooth patterns; never by noise."""
    strict(monkeypatch, RELEASE, cuda)
    asked = prepare(monkeypatch)
    pictures = np.full((20, SIZE, SIZE, 3), 9, np.uint8)
    engine = TensorRT().build(network(), "fp16", Calibration(pixels=pictures), Stages(tmp_path, lambda line: None))
    assert engine.layers == {"fp16": 1}
    TensorRT().build(network(), "fp16", Calibration(), Stages(tmp_path, lambda line: None))
    (first, own), (second, patterns) = asked
    assert (first, second) == ("fp16", "fp16")
    assert own is pictures
    np.testing.assert_array_equal(patterns, modelopt.patterns(SIZE))
