"""`tidegate serve`: the gateway alone, in front of the Triton at `TIDEGATE_TRITON_URL`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import ssl
import sys
import tempfile
from contextlib import ExitStack
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from gateway.access.callers import is_loopback
from gateway.observe import logging as logs
from gateway.observe.scrape import scraped_at
from gateway.settings import Settings, describe_settings, load_settings
from gateway.triton.local import LocalTritonError, check_port_free
from gateway.web.protocol import Protocol

log = logging.getLogger(__name__)

BACKLOG = 2048


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the subcommand."""
    parser = commands.add_parser(
        "serve",
        help="the gateway alone, in front of any Triton",
        description=__doc__,
        epilog="Settings (environment variables, or a .env file):\n\n" + describe_settings().replace("%", "%%"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM; 0 after a clean stop."""
    settings = load_settings()
    logs.configure(settings.log_level, settings.log_format)
    return serve(settings)


def serve(settings: Settings) -> int:
    """Serves with `settings` until a signal; 1 when the port cannot be had."""
    try:
        check_port_free(settings.host, settings.port, "TIDEGATE_PORT")
        if settings.metrics_port:
            check_port_free(settings.host, settings.metrics_port, "TIDEGATE_METRICS_PORT")
    except LocalTritonError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1
    log.info(
        "Tidegate is listening",
        extra={"url": settings.url, "triton": settings.triton_url},
    )
    _say_who_may_call(settings)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn has its own handler, and repeats the signal at its end
    with ExitStack() as stack:
        if settings.workers > 1:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-metrics-"))
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # inherited by the workers, read at their first import
        if settings.metrics and settings.metrics_port:
            stack.enter_context(scraped_at(settings.host, settings.metrics_port))
        if settings.workers > 1:
            config = uvicorn.Config("gateway.app:worker", **server_options(settings))
            Workers(config, sockets=[config.bind_socket()]).run()
        else:
            uvicorn.run("gateway.app:worker", **server_options(settings))
    return 0


class Workers(Multiprocess):
    """Lets go of the port when it is told to end: a listener that it kept would let callers in to nobody."""

    def terminate_all(self) -> None:
        for listener in self.sockets:
            listener.close()
        super().terminate_all()


def _say_who_may_call(settings: Settings) -> None:
    if settings.api_keys_file is not None:
        return
    sentence = "There are no API keys: whoever reaches the port may call"
    log.log(logging.INFO if is_loopback(settings.host) else logging.WARNING, sentence)


def server_options(settings: Settings) -> dict[str, Any]:
    """All options of the HTTP server in one place."""
    return {
        "factory": True,
        "host": settings.host,
        "port": settings.port,
        "workers": settings.workers,
        "loop": "uvloop",
        "http": Protocol,
        "ws": "none",
        "lifespan": "on",
        "backlog": BACKLOG,
        "timeout_keep_alive": settings.keep_alive_s,
        "timeout_graceful_shutdown": settings.shutdown_grace_s,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,  # believed by `gateway.access.callers`, from whom the settings say
        "ssl_certfile": settings.tls_cert_file,
        "ssl_keyfile": settings.tls_key_file,
        "ssl_ca_certs": settings.tls_client_ca_file,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if settings.tls_client_ca_file else ssl.CERT_NONE,
    }
