"""`tidegate triton`: the Triton of `tidegate up` alone, for gateways elsewhere; the CPU container runs it."""

from __future__ import annotations

import argparse
import signal
import sys

from gateway.observe import logging as logs
from gateway.settings import load_settings
from gateway.triton.local import LocalTriton, LocalTritonError, Ports


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the subcommand."""
    parser = commands.add_parser("triton", help="Triton alone on this machine, no GPU needed", description=__doc__)
    parser.add_argument("arguments", nargs="*", metavar="-- OPTION", help="options for tritonserver, after --")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serves `TIDEGATE_MODEL_REPOSITORY` on `TIDEGATE_HOST` until SIGINT or SIGTERM; 0 after a clean stop."""
    settings = load_settings()
    logs.configure(settings.log_level, settings.log_format)
    ports = Ports(settings.triton_http_port, settings.triton_grpc_port, settings.triton_metrics_port)
    triton = LocalTriton(
        [settings.model_repository],
        ports=ports,
        address=settings.host,
        log_to_stderr=True,
        # Here readiness is what a health check asks, and means every model; `tidegate up` asks the gateway instead.
        arguments=["--strict-readiness=true", *options.arguments],
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        with triton:
            signal.pause()
    except LocalTritonError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0
