"""Triton's gRPC service on a real socket, answered by the Triton in memory; keeps the metadata of inferences."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.errors import TidegateError
from gateway.triton import Tensor
from gateway.triton.fake import FakeTriton
from tests.certificates import Pair

CALL_S = 10.0


class GrpcTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # generated, untyped
    """`metadata` has one entry for each inference so far. `refuse_with` ends every inference with that status."""

    def __init__(self, fake: FakeTriton) -> None:
        self.fake = fake
        self.url = ""
        self.metadata: list[dict[str, str]] = []
        self.refuse_with: grpc.StatusCode | None = None

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        if self.refuse_with is not None:
            context.abort(self.refuse_with, "at /secret/path")
        wanted = request.outputs[0].parameters
        inputs = [
            Tensor(i.name, i.datatype, tuple(i.shape), data)
            for i, data in zip(request.inputs, request.raw_input_contents, strict=True)
        ]
        classes = wanted["classification"].int64_param if "classification" in wanted else 0
        if not classes:
            self.metadata.append(dict(context.invocation_metadata()))
        try:
            names = [output.name for output in request.outputs]
            call = self.fake.infer(request.model_name, inputs, names, timeout=CALL_S, top_classes=classes)
            answer = asyncio.run(call)
        except TidegateError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version=answer.model_version)
        for name, array in answer.outputs.items():
            kind = {"O": "BYTES", "i": "INT32", "f": "FP32"}[array.dtype.kind]
            response.outputs.add(name=name, datatype=kind, shape=array.shape)
            response.raw_output_contents.append(_packed(array) if kind == "BYTES" else array.tobytes())
        return response

    def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        states = asyncio.run(self.fake.index(timeout=CALL_S))
        models = [{"name": state.name, "version": state.version, "state": "READY"} for state in states]
        return service_pb2.RepositoryIndexResponse(models=models)

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        config = asyncio.run(self.fake.config(request.name, timeout=CALL_S))
        response = service_pb2.ModelConfigResponse()
        response.config.name, response.config.max_batch_size = config.name, config.max_batch
        for name, dims in config.outputs.items():
            response.config.output.add(name=name, dims=dims)
        for key, value in config.parameters.items():
            response.config.parameters[key].string_value = value
        for step in config.steps:
            response.config.ensemble_scheduling.step.add(model_name=step.model, model_version=step.version)
        return response


@contextmanager
def grpc_triton(fake: FakeTriton, tls: tuple[Pair, Pair | None] | None = None) -> Iterator[GrpcTriton]:
    """Serves `fake` at its `url`; with `tls` by that certificate, to clients of that authority if there is one."""
    server = grpc.server(ThreadPoolExecutor(8))
    triton = GrpcTriton(fake)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    if tls is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", _credentials(*tls))
    triton.url = f"127.0.0.1:{port}"
    server.start()
    try:
        yield triton
    finally:
        server.stop(None).wait()


def _credentials(own: Pair, clients: Pair | None) -> grpc.ServerCredentials:
    pairs = [(own.key.read_bytes(), own.certificate.read_bytes())]
    authority = clients.certificate.read_bytes() if clients else None
    return grpc.ssl_server_credentials(pairs, authority, require_client_auth=clients is not None)


def _packed(strings: np.ndarray[Any, Any]) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in strings.ravel().tolist())
