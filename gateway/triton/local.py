"""A real `tritonserver` out of a Python wheel: find it, check that it can run here, start, watch, stop.

The wheel (nvidia-pytriton) carries the server and its Python backend. What it needs from its surroundings is
arranged here: the stub of this Python's version beside the backend, this interpreter's own libpython first on
the loader's path, and this environment's packages for the models. Its docker images need none of this.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import logging
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

log = logging.getLogger(__name__)

OLDEST_GLIBC = (2, 35)  # the wheel's tag: manylinux_2_35
STOP_S = 20.0
WATCH_INTERVAL_S = 0.5
RESTART_DELAYS_S = (1.0, 2.0, 5.0, 10.0, 30.0)
STEADY_S = 60.0  # a server that lived this long is restarted after the first delay again


class LocalTritonError(Exception):
    """Why a Triton cannot run here, in a sentence, with what to do about it."""


@dataclass(frozen=True)
class Ports:
    """TCP ports of a Triton on this machine."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002


@dataclass(frozen=True)
class Installation:
    """Where the wheel's parts lie."""

    server: Path
    backends: Path
    caches: Path
    libraries: Path
    stub: Path
    libpython: Path = field(default=Path())


def find_installation() -> Installation:
    """The wheel's parts for this Python; raises `LocalTritonError` naming what is missing and the remedy."""
    _check_platform()
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise LocalTritonError("No Triton is installed here: pip install 'tidegate[local]'.")
    package = Path(next(iter(spec.submodule_search_locations)))
    root, version = package / "tritonserver", f"{sys.version_info[0]}.{sys.version_info[1]}"
    installation = Installation(
        server=root / "bin" / "tritonserver",
        backends=root / "backends",
        caches=root / "caches",
        libraries=package.parent / "nvidia_pytriton.libs",
        stub=root / "python_backend_stubs" / version / "triton_python_backend_stub",
        libpython=_find_libpython(),
    )
    for part in (installation.server, installation.backends, installation.libraries, installation.stub):
        if not part.exists():
            raise LocalTritonError(f"The Triton wheel lacks {part.name}: reinstall it, pip install 'tidegate[local]'.")
    return installation


def _check_platform() -> None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise LocalTritonError(
            f"The Triton wheel is for Linux on x86_64, this is {platform.system()} on {platform.machine()}: "
            "run Triton's own container and `tidegate serve` in front of it."
        )
    if not (3, 10) <= sys.version_info[:2] < (3, 13):
        raise LocalTritonError(f"Python 3.10 to 3.12 is needed, this is {platform.python_version()}.")
    libc, version = platform.libc_ver()
    if libc == "glibc" and tuple(int(x) for x in version.split(".")[:2]) < OLDEST_GLIBC:
        raise LocalTritonError(
            f"The Triton wheel needs glibc 2.35 (Debian 12, Ubuntu 22.04 or newer), this machine has {version}."
        )
    numpy = metadata.version("numpy")
    if int(numpy.split(".")[0]) >= 2:
        raise LocalTritonError(
            f"numpy {numpy} is installed, and Triton 2.51 hands its arrays to models as 0xFF bytes: "
            "pip install 'numpy<2'."
        )


def _find_libpython() -> Path:
    """The shared library of this very interpreter; the stub is linked to it by name."""
    name = f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0"
    configured = sysconfig.get_config_var("LIBDIR") or ""
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    folders = [Path(configured), Path(configured) / multiarch, Path(sys.base_prefix) / "lib"]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    if ctypes.util.find_library(name.removeprefix("lib").removesuffix(".so.1.0")):
        return Path()  # the loader knows it
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    raise LocalTritonError(
        f"{name} is not on this machine (this Python was built without a shared library), and Triton's Python "
        f"backend needs it: apt-get install libpython{minor}, or use a Python built with --enable-shared."
    )


class LocalTriton:
    """One `tritonserver` on `address` that serves `repositories`; restarted when it dies, until `stop`.

    Use as a context manager. Its log goes to `log_file`, or to this process's standard error.
    """

    def __init__(
        self,
        repositories: Sequence[Path],
        *,
        ports: Ports | None = None,
        address: str = "127.0.0.1",
        log_file: Path | None = None,
        log_to_stderr: bool = False,
        arguments: Sequence[str] = (),
    ) -> None:
        self.ports = ports or Ports()
        self._address = address
        self._host = "127.0.0.1" if address in ("0.0.0.0", "::") else address  # noqa: S104  # compared, not bound
        self._log_to_stderr = log_to_stderr
        self._repositories = [Path(r).resolve() for r in repositories]
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-triton-"))
        self.log_file = log_file or self._folder / "triton.log"
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The gRPC endpoint."""
        return f"{self._host}:{self.ports.grpc}"

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> LocalTriton:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the server; raises `LocalTritonError` when it cannot run here or a port is taken."""
        installation = find_installation()
        for repository in self._repositories:
            if not repository.is_dir():
                raise LocalTritonError(f"There is no model repository at {repository}.")
        for name, port in (
            ("HTTP", self.ports.http),
            ("GRPC", self.ports.grpc),
            ("METRICS", self.ports.metrics),
        ):
            check_port_free(self._address, port, f"TIDEGATE_TRITON_{name}_PORT")
        self._arrange_backends(installation)
        self._launch(installation)
        self._watcher = threading.Thread(target=self._watch, args=(installation,), name="triton-watch", daemon=True)
        self._watcher.start()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Returns when the server and its models are ready; raises `LocalTritonError` with its reasons if not."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                break
            if self._is_ready():
                return
            time.sleep(0.1)
        raise LocalTritonError(f"Triton did not become ready. {self.reasons()} Its log: {self.log_file}")

    def _is_ready(self) -> bool:
        """Whether every model has been loaded, or has failed to."""
        try:
            with urllib.request.urlopen(f"http://{self._host}:{self.ports.http}/v2/health/ready", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def reasons(self) -> str:
        """The most telling lines of the server's log, for a person."""
        if not self.log_file.exists():
            return ""
        lines = self.log_file.read_text(errors="replace").splitlines()
        telling = [
            re.sub(r"^E\d+ [\d:.]+ \d+ \S+\] ", "", line).strip('"')
            for line in lines
            if line.startswith("E") and "CUDA" not in line and "NVML" not in line and "DCGM" not in line
        ]
        return " ".join(dict.fromkeys(telling[-3:]))

    def stop(self) -> None:
        """Stops the server and its stubs, and removes its private folder."""
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._watcher is not None:
            self._watcher.join()
        self._clear_up()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _clear_up(self) -> None:
        """Ends what a server left that is gone: stubs that were still loading, and the memory they shared with it."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        for region in Path("/dev/shm").glob(f"{self._folder.name}*"):  # noqa: S108  # where Triton puts them
            region.unlink(missing_ok=True)

    def _arrange_backends(self, installation: Installation) -> None:
        """A folder in which the Python backend lies beside the stub of this Python's version."""
        python = self._folder / "backends" / "python"
        python.mkdir(parents=True, exist_ok=True)
        for file in (installation.backends / "python").iterdir():
            if file.is_file():
                shutil.copy2(file, python / file.name)
        stub = python / "triton_python_backend_stub"
        shutil.copy2(installation.stub, stub)
        stub.chmod(0o755)

    def _launch(self, installation: Installation) -> None:
        command = [
            str(installation.server),
            *(f"--model-repository={repository}" for repository in self._repositories),
            "--model-config-name=cpu",
            f"--backend-directory={self._folder / 'backends'}",
            f"--cache-directory={installation.caches}",
            f"--backend-config=python,shm-region-prefix-name={self._folder.name}",
            *(f"--{kind}-address={self._address}" for kind in ("http", "grpc", "metrics")),
            f"--http-port={self.ports.http}",
            f"--grpc-port={self.ports.grpc}",
            f"--metrics-port={self.ports.metrics}",
            "--exit-on-error=false",  # one broken model does not take the others down
            "--strict-readiness=false",
            "--disable-auto-complete-config",
            *self._arguments,
        ]
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gateway.triton.leash", *command],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if self._log_to_stderr else file,
                stderr=subprocess.STDOUT,
                env=_environment(installation),
                start_new_session=True,  # Ctrl-C is for the gateway, which stops the server when it is done
            )

    def _watch(self, installation: Installation) -> None:
        """Restarts a server that died, waiting longer each time that it does not live."""
        deaths = 0
        while True:
            assert self._process is not None
            started = time.monotonic()
            code = self._wait_for_the_end()
            if self._stopping.is_set():
                return
            deaths = 0 if time.monotonic() - started > STEADY_S else deaths
            delay = RESTART_DELAYS_S[min(deaths, len(RESTART_DELAYS_S) - 1)]
            deaths += 1
            extra = {"exit_code": code, "restart_in_s": delay, "log_file": str(self.log_file)}
            log.error("Triton died and is started again", extra=extra)
            if self._stopping.wait(delay):
                return
            self._clear_up()
            self._launch(installation)

    def _wait_for_the_end(self) -> int:
        """The server's exit code; ends a server that has lost a stub, because this Triton never restarts one."""
        assert self._process is not None
        stubs: set[int] = set()
        ready = False
        # Where models come and go while the server runs, a stub that ends is no sign of trouble.
        fixed = not any(argument.startswith("--model-control-mode") for argument in self._arguments)
        while True:
            try:
                return self._process.wait(WATCH_INTERVAL_S)
            except subprocess.TimeoutExpired:
                ready = ready or self._is_ready()
                # Before that a stub may end by itself: that of a model which refuses to load.
                alive = _living_stubs(self._process.pid) if ready and fixed else set()
                if stubs - alive and not self._stopping.is_set():
                    log.error("A model's process died: Triton is stopped", extra={"log_file": str(self.log_file)})
                    self._process.kill()
                stubs = alive


def _living_stubs(server: int) -> set[int]:
    """Process ids of the Python backend's stubs that run under `server`."""
    stubs = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # pid (comm) state ppid …: the kernel cuts comm to 15 characters
            _, _, rest = stat.read_text().partition("(triton_python_b) ")
            state, parent = [*rest.split(), "", "0"][:2]
            if state not in ("", "Z", "X") and int(parent) == server:
                stubs.add(int(stat.parent.name))
    return stubs


def _environment(installation: Installation) -> dict[str, str]:
    libraries = [installation.libpython.parent] if installation.libpython.name else []
    inherited: Mapping[str, str] = os.environ
    return {
        **{k: v for k, v in inherited.items() if not k.startswith("TIDEGATE_")},
        "LD_LIBRARY_PATH": os.pathsep.join([*map(str, libraries), str(installation.libraries)]),
        # The stub's Python looks for itself there, and so finds the packages of this environment.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]),
        "PYTHONDONTWRITEBYTECODE": "1",  # the model repository stays as it is in git
    }


def check_port_free(host: str, port: int, setting: str) -> None:
    """Raises `LocalTritonError` when something listens there already."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise LocalTritonError(
                f"Port {port} cannot be used ({error.strerror}): stop what listens there, or set {setting}."
            ) from error


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
