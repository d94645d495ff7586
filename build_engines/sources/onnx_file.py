"""ONNX files: a network for normalised FP32 or FP16 pictures, or one that takes UINT8 pixels already.

The layout is read from the graph: three channels first (NCHW) or last (NHWC). How pictures are prepared is not in
such a file, so a `preprocess.json` must be there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from build_engines.errors import SourceError
from build_engines.sources import INPUT, OUTPUTS, Network, Wish, whole_network_task
from build_engines.sources.libraries import needing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx

    from build_engines.preprocessing import Normalisation

    Run: TypeAlias = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]

# How far the answers for several pictures may be from those of the original, in units of the largest.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class OnnxFile:
    """A file that somebody exported."""

    path: Path
    task: str

    @classmethod
    def of(cls, path: Path, wish: Wish) -> OnnxFile:
        """The file, or `SourceError` when it is not there or the wish is not possible."""
        return cls(path, whole_network_task(path, wish))

    @property
    def name(self) -> str:
        return self.path.name

    def identity(self) -> Mapping[str, Any]:
        """With the hash of the file and of the files beside it that hold weights."""
        digest = hashlib.sha256()
        with needing("build"):
            for path in (self.path, *self._external()):
                try:
                    digest.update(path.read_bytes())
                except OSError as error:
                    raise SourceError(f"{path} cannot be read ({error.strerror}).") from error
        return {
            "name": self.name,
            "weights": "file",
            "task": self.task,
            "file": self.path.name,
            "sha256": digest.hexdigest(),
        }

    def preprocess(self) -> None:
        return None

    def load(self, normalisation: Normalisation) -> Network:
        with needing("build"):
            return network_of(self._read(), str(self.path), normalisation, self.task)

    def _read(self) -> onnx.ModelProto:
        import onnx

        try:
            onnx.checker.check_model(str(self.path), full_check=True)
            return onnx.load(self.path)
        except Exception as error:  # protobuf, the checker and missing weights each raise their own
            raise SourceError(
                f"{self.path} cannot be used, it is damaged or not ONNX ({str(error).strip().splitlines()[0]:.200})."
            ) from error

    def _external(self) -> list[Path]:
        """Files that hold weights of this one."""
        import onnx
        from google.protobuf.message import DecodeError

        try:
            graph = onnx.load(self.path, load_external_data=False).graph
        except (OSError, DecodeError) as error:
            raise SourceError(f"{self.path} cannot be read, it is damaged or not ONNX ({error}).") from error
        places = {
            entry.value
            for tensor in (*graph.initializer, *_constants(graph))
            if tensor.data_location == onnx.TensorProto.EXTERNAL
            for entry in tensor.external_data
            if entry.key == "location"
        }
        folder = self.path.parent.resolve()
        for place in places:
            file = (folder / place.partition("\0")[0]).resolve()
            if not file.is_relative_to(folder) or not file.is_file():  # a pipe would never end
                raise SourceError(f"{self.path} keeps weights in {place!r:.80}, which is no file beside it.")
        return [self.path.parent / place for place in sorted(places)]


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Tensors that stand in nodes, in those of inner graphs, too."""
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from (*inner.initializer, *_constants(inner))


def network_of(
    model: onnx.ModelProto,
    name: str,
    normalisation: Normalisation,
    task: str,
    run: Run | None = None,
    module: Callable[[bool], Any] | None = None,
) -> Network:
    """The network with the ends that the gateway's models have.

    `run` is the original, from pixels to what it gives; without it, that is the graph in onnxruntime. `module`
    makes the torch module, told whether to put a softmax behind it. `name` is for messages.

    Raises `SourceError` for a graph that takes or gives something else than one picture and one row of numbers.
    """
    from build_engines import onnx_graph
    from build_engines.sources import outputs

    picture = _Picture.of(model, name, normalisation.size)
    run = run or _original(model, name, picture, normalisation)
    answers = outputs.tried(run, normalisation.size, name)
    softmax = task == "classify" and not outputs.are_probabilities(answers, name)
    free = onnx_graph.with_known_opset(model)
    if picture.alone:
        free = onnx_graph.with_free_batch(free)
    width = answers.shape[1]
    graph = onnx_graph.finished(onnx_graph.served(free, normalisation, task, width=width, softmax=softmax))
    expected = outputs.softmax(answers) if softmax else answers
    _check_batch(graph, task, expected, normalisation.size, name)

    def reference(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        found = run(pixels)
        return outputs.softmax(found) if softmax else found

    return Network(task, graph, reference, width, module=module and module(softmax))


@dataclass(frozen=True)
class _Picture:
    """What a graph takes."""

    input: str
    dtype: str
    """Of numpy; uint8 is not normalised."""
    channels_first: bool
    alone: bool
    """One at a time."""

    @classmethod
    def of(cls, model: onnx.ModelProto, name: str, size: int) -> _Picture:
        from onnx import TensorProto

        from build_engines import onnx_graph

        images = onnx_graph.inputs(model)
        if len(images) != 1 or len(model.graph.output) != 1:
            raise SourceError(
                f"{name} has {len(images)} inputs and {len(model.graph.output)} outputs: one of each is needed."
            )
        (image,) = images
        kinds: dict[int, str] = {
            TensorProto.UINT8: "uint8",
            TensorProto.FLOAT: "float32",
            TensorProto.FLOAT16: "float16",
        }
        dtype = kinds.get(image.type.tensor_type.elem_type)
        sides = onnx_graph.shape(image)
        first = len(sides) == 4 and sides[1] == 3
        last = len(sides) == 4 and sides[3] == 3
        if dtype is None or not (first or last) or (first and dtype == "uint8"):
            raise SourceError(
                f"{name} takes {image.name} {sides}: needed are FP32 or FP16 [N, 3, size, size] or "
                "[N, size, size, 3], or UINT8 [N, size, size, 3]."
            )
        for side in sides[2:] if first else sides[1:3]:
            if side not in (None, size):
                raise SourceError(f"{name} takes pictures of {side} pixels, and preprocess.json has the size {size}.")
        if sides[0] not in (None, 1):
            raise SourceError(f"{name} takes {sides[0]} pictures at a time: export it with a free batch.")
        return cls(image.name, dtype, first, sides[0] == 1)


def _original(model: onnx.ModelProto, name: str, picture: _Picture, normalisation: Normalisation) -> Run:
    """The graph as it came, in onnxruntime, normalised in numpy: FP32 rows from UINT8 pixels."""
    import numpy as np
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own, a dozen of them
        raise SourceError(f"{name} does not run in onnxruntime ({error}).") from error

    def run(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        x: npt.NDArray[Any] = pixels
        if picture.dtype != "uint8":
            mean, std = (np.asarray(part, np.float32) for part in (normalisation.mean, normalisation.std))
            x = ((pixels.astype(np.float32) - mean) / std).astype(picture.dtype)
        if picture.channels_first:
            x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        try:
            parts = np.split(x, len(x)) if picture.alone else [x]
            answers = [session.run(None, {picture.input: part})[0] for part in parts]
        except Exception as error:
            raise SourceError(f"{name} does not run in onnxruntime ({error}).") from error
        result: npt.NDArray[np.float32] = np.concatenate(answers).astype(np.float32)
        return result

    return run


def _check_batch(graph: bytes, task: str, expected: npt.NDArray[np.float32], size: int, name: str) -> None:
    """The served graph gives several pictures together what the original gives."""
    import numpy as np
    import onnxruntime

    from build_engines.sources import outputs

    words = f"{name} does not answer several pictures at once as it does alone: export it with a free batch."
    try:
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        (found,) = session.run([OUTPUTS[task]], {INPUT: outputs.synthetic_pictures(size)})
    except Exception as error:
        raise SourceError(words) from error
    if found.shape != expected.shape or np.abs(found - expected).max() > _TOLERANCE * np.abs(expected).max():
        raise SourceError(words)
