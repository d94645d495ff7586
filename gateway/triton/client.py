"""Triton over gRPC: the only module that imports tritonclient and grpc.

The generated stubs are used directly, not tritonclient's own client class: a request is then one protobuf
message around the caller's bytes, without a numpy round trip, and the channel's options are ours.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.errors import (
    BadUpstreamResponse,
    DeadlineExceeded,
    ModelNotReady,
    Overloaded,
    TidegateError,
    UpstreamUnavailable,
)
from gateway.observe import stages
from gateway.triton import Answer, ModelConfig, ModelState, Step, Tensor

CHANNEL_OPTIONS: tuple[tuple[str, object], ...] = (
    ("grpc.max_send_message_length", -1),  # the caps on requests are the gateway's, not the transport's
    ("grpc.max_receive_message_length", -1),  # the default of 4 MB is 1,000 rows of 1,000 classes
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),  # a Triton that comes back is used within about a second
    # A Triton that was started anew has another address behind its DNS name; gRPC's own 30 s are long to wait for it.
    ("grpc.dns_min_time_between_resolutions_ms", 5000),
    # Data that nobody acknowledges for 10 s end the connection (TCP_USER_TIMEOUT, which gRPC sets only together with
    # keepalive): a machine that vanished says nothing. Triton ends one that is pinged more often than every 300 s.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
)

_OK = {"rpc.response.status_code": "OK"}

# Below this a call is not worth sending, and Triton 2.51 was seen to fall over calls that end at once.
SHORTEST_CALL_S = 0.005

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
        "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
        "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
    }.items()
}  # fmt: skip

# When a full queue of Triton's is worth another try; it does not say so itself.
_RETRY_AFTER_S = 1.0


def error_of(status: grpc.StatusCode, details: str) -> TidegateError:
    """The gateway's error for a gRPC status; Triton's words stay private."""
    private = f"{status.name}: {details}"
    if status is grpc.StatusCode.DEADLINE_EXCEEDED or status is grpc.StatusCode.CANCELLED:
        return DeadlineExceeded("The inference server did not answer in time.", private=private)
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED or _queue_is_full(status, details):
        return Overloaded("The inference server's queue is full.", retry_after=_RETRY_AFTER_S, private=private)
    if status is grpc.StatusCode.UNAVAILABLE and _queue_expired(details):
        return DeadlineExceeded("The request waited too long at the inference server.", private=private)
    if _model_is_missing(details):
        return ModelNotReady("The model is not loaded at the inference server.", private=private)
    if status is grpc.StatusCode.UNAVAILABLE:
        return UpstreamUnavailable("The inference server cannot be reached.", private=private)
    return BadUpstreamResponse("The inference server could not process the request.", private=private)


def _queue_is_full(status: grpc.StatusCode, details: str) -> bool:
    return status is grpc.StatusCode.UNAVAILABLE and "exceeds maximum queue size" in details.lower()


def _queue_expired(details: str) -> bool:
    return "request timeout expired" in details.lower()


def _model_is_missing(details: str) -> bool:
    text = details.lower()
    return "unknown model" in text or "is not ready" in text or "has no available versions" in text


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        stages.note({"rpc.response.status_code": error.code().name})
        raise error_of(error.code(), error.details() or "") from error
    except (grpc.aio.UsageError, grpc.aio.InternalError) as error:
        raise UpstreamUnavailable("The inference server cannot be reached.", private=str(error)) from error


def _attributes(endpoint: str) -> dict[str, str | int]:
    """What a span says of each inference, after the semantic conventions for gRPC."""
    host, _, port = endpoint.removeprefix("dns:///").rpartition(":")
    return {
        "rpc.system.name": "grpc",
        "rpc.method": "inference.GRPCInferenceService/ModelInfer",
        "server.address": host,
        "server.port": int(port),
    }


@dataclass(frozen=True)
class Tls:
    """PEM: the authorities that Triton's certificate must come from, and what is shown to Triton, if anything."""

    authorities: bytes
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


class TritonClient:
    """A `Triton` at `endpoint` (`host:port` or `dns:///name:port`). Make it after a fork, in a running loop."""

    def __init__(self, endpoint: str, tls: Tls | None = None) -> None:
        self.endpoint = endpoint
        self._channel = _channel(endpoint, tls)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._attributes = _attributes(endpoint)

    async def infer(
        self,
        model: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        *,
        timeout: float,
        top_classes: int = 0,
    ) -> Answer:
        request = service_pb2.ModelInferRequest(model_name=model)
        for tensor in inputs:
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            request.raw_input_contents.append(tensor.data)
        for name in outputs:
            wanted = request.outputs.add(name=name)
            if top_classes:
                wanted.parameters["classification"].int64_param = top_classes
        # Triton drops a request that is still queued when this has passed (microseconds).
        request.parameters["timeout"].int64_param = max(1, int(timeout * 1e6))
        stages.note(self._attributes)
        response = await self._call(self._stub.ModelInfer, request, timeout, stages.metadata())
        stages.note(_OK)
        return Answer(response.model_version, _outputs(response), self.endpoint)

    async def index(self, *, timeout: float) -> list[ModelState]:
        response = await self._call(self._stub.RepositoryIndex, service_pb2.RepositoryIndexRequest(), timeout)
        return [ModelState(m.name, m.version, m.state == "READY", m.reason) for m in response.models]

    async def config(self, model: str, *, timeout: float) -> ModelConfig:
        response = await self._call(self._stub.ModelConfig, service_pb2.ModelConfigRequest(name=model), timeout)
        config = response.config
        return ModelConfig(
            name=config.name,
            max_batch=config.max_batch_size,
            outputs={o.name: tuple(o.dims) for o in config.output},
            parameters={key: value.string_value for key, value in config.parameters.items()},
            steps=tuple(Step(s.model_name, s.model_version) for s in config.ensemble_scheduling.step),
        )

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self, method, message, timeout: float, metadata: stages.Metadata = ()):  # type: ignore[no-untyped-def]  # stubs are untyped
        if timeout < SHORTEST_CALL_S:
            raise DeadlineExceeded("The deadline passed before the inference server was asked.")
        with _translated():
            return await method(message, timeout=timeout, metadata=metadata)


def _channel(endpoint: str, tls: Tls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.authorities, tls.key, tls.certificate)
    return grpc.aio.secure_channel(endpoint, credentials, options=CHANNEL_OPTIONS)


def _outputs(response) -> dict[str, NDArray[Any]]:  # type: ignore[no-untyped-def]  # generated, untyped
    if len(response.raw_output_contents) != len(response.outputs):
        raise BadUpstreamResponse(
            "The inference server gave an unusable answer.", private="outputs without raw contents"
        )
    arrays = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        try:
            if output.datatype == "BYTES":
                array = np.array(_strings(raw), dtype=object)
            else:
                array = np.frombuffer(raw, dtype=DTYPES[output.datatype])
            arrays[output.name] = array.reshape(tuple(output.shape))
        except (KeyError, ValueError, struct.error) as error:
            raise BadUpstreamResponse(
                "The inference server gave an unusable answer.",
                private=f"{output.name} {output.datatype} {list(output.shape)} does not fit {len(raw)} bytes",
            ) from error
    return arrays


def _strings(raw: bytes) -> list[bytes]:
    """Length-prefixed strings, as Triton packs BYTES tensors."""
    strings, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        strings.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
    return strings
