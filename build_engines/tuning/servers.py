"""A Triton that serves one setting: one of our own for each, or a running one that loads it."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import grpc
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from build_engines import publish
from build_engines.configs import Entry
from build_engines.errors import TuneError
from build_engines.tuning.choice import InvalidError
from build_engines.tuning.entry import copy_entry, served_config
from build_engines.tuning.settings import Setting, changed, setting_of

_READY_S = 180.0
_LOAD_S = 600.0
_CALL_S = 10.0
_STOP_S = 30.0


class Server(Protocol):
    """Where settings are measured."""

    @property
    def variant(self) -> str:
        """Of the configuration that it reads: "cpu", or "" on GPUs."""
        ...

    @property
    def cores(self) -> int | None:
        """Processors that it may use; None when nobody here knows."""
        ...

    def today(self) -> Setting:
        """The setting in use before anything is changed."""
        ...

    def serving(self, setting: Setting | None) -> AbstractContextManager[str]:
        """A Triton that serves `setting`, or with None exactly what is configured today; gives its `host:port`.

        Raises `InvalidError` when the model cannot be served so.
        """
        ...


class Embedded:
    """For each setting a new `tidegate up` in front of a changed copy of the model."""

    variant = "cpu"

    def __init__(self, entry: Entry) -> None:
        if importlib.util.find_spec("gateway") is None:
            raise TuneError("The gateway, which starts Triton, is not installed here: name a running one by --triton.")
        if not (entry.folder / "configs" / f"{self.variant}.pbtxt").is_file():
            raise TuneError(
                f"{entry.network} has no configuration for CPUs ({entry.folder}/configs/{self.variant}.pbtxt): "
                "measure it on a Triton that serves it, by --triton HOST:PORT."
            )
        self._entry = entry
        self.cores = len(os.sched_getaffinity(0))

    def today(self) -> Setting:
        return setting_of(served_config(self._entry, self.variant))

    @contextmanager
    def serving(self, setting: Setting | None) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="tidegate-tune-") as name:
            folder = Path(name)
            (folder / "models").mkdir()
            copy = copy_entry(self._entry, folder / "models")
            if setting is not None:
                publish.retune(copy, self.variant, setting.tuning)
                _check(setting, setting_of(served_config(copy, self.variant)))
            with _tidegate_up(copy, folder) as url:
                yield url


@contextmanager
def _tidegate_up(entry: Entry, folder: Path) -> Iterator[str]:
    """The process; what it says goes to a file in `folder`."""
    gateway, http, triton, metrics = map(str, _free_ports(4))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")} | {
        "TIDEGATE_HOST": "127.0.0.1",
        "TIDEGATE_PORT": gateway,
        "TIDEGATE_WORKERS": "1",
        "TIDEGATE_DEFAULT_MODEL": entry.model,
        "TIDEGATE_PROBE_INTERVAL_S": "60",  # the gateway is not measured, so it should not work meanwhile
        "TIDEGATE_MODEL_REPOSITORY": str(entry.repository),
        "TIDEGATE_TRITON_HTTP_PORT": http,
        "TIDEGATE_TRITON_GRPC_PORT": triton,
        "TIDEGATE_TRITON_METRICS_PORT": metrics,
    }
    (folder / "no-samples").mkdir()
    up = [sys.executable, "-m", "gateway.cli", "up", "--no-build", "--samples", str(folder / "no-samples")]
    output = folder / "output.txt"
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.triton.leash", *up],  # it ends with us, even when we are killed
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us, and we stop the server
        )
    try:
        url = f"127.0.0.1:{triton}"
        with Control(url) as control:
            _wait_until_ready(control, entry, process, output)
        yield url
    finally:
        _stop(process)
        _end_stubs(folder)


def _wait_until_ready(control: Control, entry: Entry, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while not control.server_ready():
        if process.poll() is not None:
            said = " ".join(output.read_text(errors="replace").split("\n")[-4:]).strip()
            raise InvalidError(f"the server did not start: {said}")
        if time.monotonic() > deadline:
            raise InvalidError(f"the server was not ready after {_READY_S:g} s")
        time.sleep(0.1)
    control.check_ready(entry)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM until it ends, because between two of its handlers it ignores the signal for a moment."""
    deadline = time.monotonic() + _STOP_S
    while process.poll() is None and time.monotonic() < deadline:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(2)
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its Triton is on a leash and follows
        process.wait()


def _end_stubs(folder: Path) -> None:
    """Ends the processes of models in `folder`: a Triton that is stopped while it loads them leaves them behind."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"{folder}/".encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Remote:
    """A running Triton with `--model-control-mode=explicit`; what it served is loaded again at the end."""

    cores = None

    def __init__(self, entry: Entry, url: str) -> None:
        self._entry = entry
        self._control = Control(url)
        self._changed = False
        try:
            if not self._control.server_ready():
                raise TuneError(f"No Triton answers at {url}: name its gRPC port, usually 8001.")
            self._network = self._control.config(entry.network)
            self._ensembles = [self._control.config(entry.model), *self._sharing()]
        except InvalidError as error:
            self._control.close()
            raise TuneError(f"The Triton at {url} does not serve {entry.model}: {error}.") from error
        except TuneError:
            self._control.close()
            raise

    def _sharing(self) -> list[Any]:
        """The configuration of the other ensemble that asks this network, where one is served."""
        dependent, found = self._entry.dependent, []
        if dependent is not None:
            with suppress(InvalidError):
                config = self._control.config(dependent.name)
                if self._entry.network in [step.model_name for step in config.ensemble_scheduling.step]:
                    found.append(config)
        return found

    @property
    def variant(self) -> str:
        cpu = model_config_pb2.ModelInstanceGroup.KIND_CPU
        return "cpu" if any(group.kind == cpu for group in self._network.instance_group) else ""

    def today(self) -> Setting:
        return setting_of(self._network)

    @contextmanager
    def serving(self, setting: Setting | None) -> Iterator[str]:
        self._changed = True
        self._load(self._network if setting is None else changed(self._network, setting))
        yield self._control.url

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._changed:
                self._load(self._network)
        except InvalidError as failure:
            raise TuneError(
                f"What {self._control.url} served before cannot be loaded again ({failure}): "
                f"load {self._entry.network} and {self._entry.model} there by hand."
            ) from error
        finally:
            self._control.close()

    def _load(self, network: Any) -> None:
        """Loads the network's configuration; no ensemble of it promises larger batches at any moment."""
        ensembles = [_smaller(ensemble, network.max_batch_size) for ensemble in self._ensembles]
        for ensemble in ensembles:
            with suppress(InvalidError):  # after a setting that did not load there is none
                if self._control.config(ensemble.name).max_batch_size > ensemble.max_batch_size:
                    self._control.load(ensemble)
        for config in (network, *ensembles):
            self._control.load(config)
        self._control.check_ready(self._entry)
        _check(setting_of(network), setting_of(self._control.config(self._entry.network)))


def _smaller(config: Any, most: int) -> Any:
    """A copy of a `ModelConfig` message with batches of at most `most`."""
    new = type(config)()
    new.CopyFrom(config)
    new.max_batch_size = min(config.max_batch_size, most)
    return new


def _check(wanted: Setting, found: Setting) -> None:
    if wanted != found:
        raise InvalidError(f"the configuration then says: {found}")


class Control:
    """Triton's own questions and commands over gRPC; refusals are `InvalidError`s with its words."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._channel = grpc.insecure_channel(url)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def server_ready(self) -> bool:
        """Whether a server answers, and says so."""
        try:
            return bool(self._stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=_CALL_S).ready)
        except grpc.RpcError:
            return False

    def check_ready(self, entry: Entry) -> None:
        """Raises `InvalidError` with Triton's reasons unless the ensemble is ready."""
        request = service_pb2.ModelReadyRequest(name=entry.model)
        if not self._call(self._stub.ModelReady, request).ready:
            index = self._call(self._stub.RepositoryIndex, service_pb2.RepositoryIndexRequest())
            reasons = [f"{each.name}: {each.reason}" for each in index.models if each.reason not in ("", "unloaded")]
            raise InvalidError("the model did not load: " + "; ".join(reasons))

    def config(self, model: str) -> Any:
        """The `ModelConfig` that is served."""
        return self._call(self._stub.ModelConfig, service_pb2.ModelConfigRequest(name=model)).config

    def load(self, config: Any) -> None:
        """Loads the model of this name with this configuration in place of its file's."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=config.name)
        override = json_format.MessageToJson(config, preserving_proto_field_name=True, indent=None)
        request.parameters["config"].string_param = override
        self._call(self._stub.RepositoryModelLoad, request, _LOAD_S)

    def _call(self, method: Any, request: Any, timeout: float = _CALL_S) -> Any:
        try:
            return method(request, timeout=timeout)
        except grpc.RpcError as error:
            words = str(error.details())
            if "explicit model load" in words:
                raise TuneError(
                    f"The Triton at {self.url} must be started with --model-control-mode=explicit."
                ) from error
            raise InvalidError(words) from error
