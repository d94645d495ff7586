"""`tidegate up`: a Triton of its own and the gateway in front of it; classifies sample photos, then serves."""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path

from gateway.cli.serve import serve
from gateway.observe import logging as logs
from gateway.settings import Settings, load_settings
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, check_port_free

PATIENCE_S = 10.0
_OURS = ssl.create_default_context()  # we ask ourselves, by an address that no certificate needs to name
_OURS.check_hostname, _OURS.verify_mode = False, ssl.CERT_NONE
SAMPLES = Path(__file__).parents[2] / "examples" / "photos"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the subcommand."""
    parser = commands.add_parser("up", help="gateway and Triton on this machine, no GPU needed", description=__doc__)
    parser.add_argument("--samples", type=Path, default=SAMPLES, help="folder of photos to classify once")
    parser.add_argument("--no-build", action="store_true", help="serve what is in the repository as it is")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM; 0 after a clean stop, 1 with a sentence when something is missing."""
    settings = load_settings()
    logs.configure(settings.log_level, settings.log_format)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also before the gateway has its own handlers
    _take_the_terminal()
    try:
        check_port_free(settings.host, settings.port, "TIDEGATE_PORT")
        if settings.default_model == Settings().default_model and not options.no_build:
            _build_default_model(settings.model_repository)
        return _serve_with_triton(settings, options.samples)
    except LocalTritonError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _take_the_terminal() -> None:
    """Under make, Ctrl-C would end make with an error before we have stopped: take it for ourselves alone."""
    if "MAKELEVEL" in os.environ and sys.stdin.isatty():
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # or we would be stopped for what follows
        os.setpgid(0, 0)
        maker = os.getpgid(os.getppid())
        os.tcsetpgrp(sys.stdin.fileno(), os.getpgrp())
        atexit.register(os.tcsetpgrp, sys.stdin.fileno(), maker)


def _build_default_model(repository: Path) -> None:
    """Runs the builder as its own process: it says what it does, and is quick when there is nothing to do."""
    if importlib.util.find_spec("build_engines") is None:
        return  # a gateway without the builder serves what is in the repository
    work = repository.parent / ".build_engines"
    command = [sys.executable, "-m", "build_engines", "defaults", "--repository", str(repository), "--work", str(work)]
    if subprocess.run(command, check=False).returncode != 0:
        raise LocalTritonError("The default model could not be built, so there is nothing to serve.")


def _serve_with_triton(settings: Settings, samples: Path) -> int:
    ports = Ports(settings.triton_http_port, settings.triton_grpc_port, settings.triton_metrics_port)
    start = time.monotonic()
    with LocalTriton([settings.model_repository], ports=ports) as triton:
        _say(f"Triton is starting on ports {ports.http}, {ports.grpc}, {ports.metrics}; its log: {triton.log_file}")
        triton.wait_ready()
        os.environ["TIDEGATE_TRITON_URL"] = triton.url  # workers read their settings from the environment
        if settings.tls_client_ca_file is None:  # we have no certificate to show
            threading.Thread(target=_greet, args=(settings, triton, samples, start), daemon=True).start()
        return serve(load_settings())


def _greet(settings: Settings, triton: LocalTriton, samples: Path, start: float) -> None:
    """Waits until the gateway is ready, shows what it makes of the sample photos, and says where it is."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104  # compared, not bound
    base = settings.model_copy(update={"host": host}).url
    patience = time.monotonic() + PATIENCE_S
    while not _answers(f"{base}/readyz"):
        if time.monotonic() > patience:
            _say(f"The model is not ready. {triton.reasons()} Triton's log: {triton.log_file}")
            patience = float("inf")  # said once; it may be mended while we run
        time.sleep(0.2)
    _say(f"Ready after {time.monotonic() - start:.1f} s.")
    photos = sorted(p for p in samples.glob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp"))
    if photos and not settings.api_keys_file:  # of a key we know no more than its hash
        try:
            _show(_classify(f"{base}/v1/classify", photos))
        except (OSError, ValueError, KeyError) as error:
            _say(f"The sample photos could not be classified: {error}")
    _say(f"Serving on {base}: open it in a browser, or try\n\n  curl -F files=@photo.jpg {base}/v1/classify\n")
    _say("Ctrl-C stops everything.")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10, context=_OURS) as answer:  # noqa: S310  # our own address
            return bool(answer.status == 200)
    except OSError:
        return False


def _classify(url: str, photos: Sequence[Path]) -> list[dict[str, object]]:
    boundary = uuid.uuid4().hex
    body = b"".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="{photo.name}"\r\n\r\n'.encode()
        + photo.read_bytes()
        + b"\r\n"
        for photo in photos
    )
    request = urllib.request.Request(  # noqa: S310  # our own address
        url,
        data=body + f"--{boundary}--\r\n".encode(),
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
    )
    with urllib.request.urlopen(request, timeout=60, context=_OURS) as answer:  # noqa: S310
        results: list[dict[str, object]] = json.load(answer)["results"]
        return results


def _show(results: Sequence[dict[str, object]]) -> None:
    """The top-5 of each photo as a table."""
    lines = [f"{'photo':<16} {'probability':>11}  label", "-" * 50]
    for result in results:
        name = str(result["filename"])
        for prediction in result.get("predictions", []):  # type: ignore[attr-defined]  # decoded JSON
            lines.append(f"{name:<16} {prediction['probability']:>11.3f}  {prediction['label']}")
            name = ""
        if "error" in result:
            lines.append(f"{name:<16} {'-':>11}  {result['error']}")
    _say("\n" + "\n".join(lines) + "\n")


def _say(text: str) -> None:
    print(text, flush=True)
