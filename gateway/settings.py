"""The one place that reads the environment: variables with the prefix `TIDEGATE_`, or a `.env` file."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway.fetch.guard import Guard, parse_hosts, parse_networks

PREFIX = "TIDEGATE_"
Port = Annotated[int, Field(ge=1, le=65535)]
MIB = 1024 * 1024


class SettingsError(Exception):
    """A setting that cannot be used; the text names it and says what would do."""


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _one_endpoint(url: str) -> str:
    target = url.removeprefix("dns:///")
    name, _, port = target.rpartition(":")
    if not name or not port.isdigit() or "/" in target or "," in target:
        raise ValueError("write host:port or dns:///name:port, for example localhost:8001")
    return url


def _collector(endpoint: str | None) -> str | None:
    if not endpoint:  # as compose and Kubernetes leave a variable that nobody filled in
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("write the collector's OTLP/HTTP address, for example http://localhost:4318")
    try:
        import gateway.observe.tracing  # noqa: F401  # only where it is asked for: it brings OpenTelemetry
    except ImportError as missing:
        raise ValueError("traces need more packages: pip install 'tidegate[otel]'") from missing
    return endpoint


def _fetcher(allowed: bool) -> bool:
    if allowed:
        try:
            import gateway.fetch.fetcher  # noqa: F401  # only where it is asked for: it brings httpcore
        except ImportError as missing:
            raise ValueError("fetching images needs more packages: pip install 'tidegate[urls]'") from missing
    return allowed


def _hosts(text: str) -> str:
    parse_hosts(text)
    return text


def _networks(text: str) -> str:
    parse_networks(text)
    return text


class Settings(BaseSettings):
    """Every setting, its default and its meaning. `tidegate serve --help` prints this list."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """Address to listen on. The default is this machine only; containers set 0.0.0.0."""
    port: Port = 8080
    """Port of the gateway."""
    workers: int = Field(default=1, ge=1, le=64)
    """Gateway processes. One carries about 1,000 photos a second; they share the port and the metrics."""

    triton_url: Annotated[str, AfterValidator(_one_endpoint)] = "localhost:8001"
    """Triton's gRPC endpoint: `host:port`, or `dns:///name:port` to spread over all addresses of a name."""
    default_model: str = "ensemble_model"
    """The model that answers when the caller names none; its probe decides readiness."""
    probe_interval_s: float = Field(default=5.0, gt=0, le=60)
    """Seconds between two probes (a real tiny inference) of a ready Triton; every 0.5 s while it is not ready."""
    allow_random_weights: bool = False
    """Let a model with random weights be the default one: for load tests, because its labels mean nothing."""

    max_body_bytes: int = Field(default=64 * MIB, ge=1)
    """Largest request body, in bytes."""
    max_file_bytes: int = Field(default=20 * MIB, ge=1)
    """Largest single image file, in bytes."""
    max_images: int = Field(default=256, ge=1)
    """Most images in one request."""
    max_pixels: int = Field(default=64_000_000, ge=1)
    """Largest picture, in pixels, read from its header before anything is decoded."""
    request_timeout_s: float = Field(default=10.0, gt=0, le=600)
    """Seconds from the last byte of the body to the answer; a caller may ask for less by X-Request-Timeout."""
    head_timeout_s: float = Field(default=20.0, gt=0, le=600)
    """Seconds that a client may take for a request's line and headers."""
    body_idle_timeout_s: float = Field(default=20.0, gt=0, le=600)
    """Longest silence of a client in the middle of a body, in seconds."""
    body_min_bytes_per_s: int = Field(default=1024, ge=1)
    """Slowest body that is tolerated, in bytes a second on average, once it has taken longer than a silence may."""
    keep_alive_s: int = Field(default=75, ge=1, le=3600)
    """Seconds that an idle connection is kept: longer than the usual 60 s of load balancers."""
    shutdown_grace_s: int = Field(default=30, ge=0, le=600)
    """Seconds that requests in flight may take to finish after SIGTERM."""
    max_in_flight_images: int = Field(default_factory=lambda: max(256, 64 * cores()), ge=1)
    """Images admitted at one time in one worker; more are `overloaded`. Default: 64 a processor, at least 256."""
    max_in_flight_bytes: int = Field(default=512 * MIB, ge=1)
    """Bytes of request bodies held at one time in one worker, those that are still arriving included."""

    allow_urls: Annotated[bool, AfterValidator(_fetcher)] = False
    """Fetch images that a caller names by http or https address, from public hosts only: docs/urls.md."""
    url_allowed_hosts: Annotated[str, AfterValidator(_hosts)] = ""
    """Hosts that are fetched from, such as `images.example.com, *.example.org, store:9000`. Empty: any public host.
    Without a port, 80 and 443 are meant."""
    url_allowed_networks: Annotated[str, AfterValidator(_networks)] = ""
    """Networks that are fetched from although they are not public, such as an object store's `10.1.2.0/24`."""
    url_timeout_s: float = Field(default=5.0, gt=0, le=600)
    """Seconds that one image may take, redirects included; never more than what is left of the request's time."""
    url_max_redirects: int = Field(default=3, ge=0, le=20)
    """Redirects that are followed for one image; each is checked like a first address."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line that is written."""
    log_format: Literal["auto", "json", "plain"] = "auto"
    """`json` for machines, `plain` for people, `auto` for plain on a terminal."""
    access_log: bool = False
    """Log a line for every request; without it only failures of this side (500 and above) are logged."""

    traces_endpoint: Annotated[str | None, AfterValidator(_collector)] = None
    """OTLP/HTTP address of an OpenTelemetry collector, such as `http://localhost:4318`. Unset: no traces."""
    traces_sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of requests that are traced; a caller that sends a `traceparent` has decided it for its request."""

    model_repository: Path = Path("model_repository")
    """Where `tidegate up` finds the models of the embedded Triton."""
    triton_http_port: Port = 8000
    """HTTP port of the embedded Triton."""
    triton_grpc_port: Port = 8001
    """gRPC port of the embedded Triton."""
    triton_metrics_port: Port = 8002
    """Metrics port of the embedded Triton."""

    @property
    def guard(self) -> Guard:
        """What may be fetched, where `allow_urls` is set."""
        return Guard(parse_hosts(self.url_allowed_hosts), parse_networks(self.url_allowed_networks))


def load_settings(**overrides: object) -> Settings:
    """Settings from the environment; raises `SettingsError` with one line for each thing that is wrong."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    unknown = sorted(key for key in os.environ if key.upper().startswith(PREFIX) and key.upper() not in known)
    if unknown:
        # A misspelt limit or key file must not be dropped without a word.
        raise SettingsError("\n".join(_unknown(name, known) for name in unknown))
    try:
        return Settings(**overrides)  # type: ignore[arg-type]  # pydantic checks the values
    except ValidationError as error:
        raise SettingsError(
            "\n".join(
                f"{PREFIX}{str(e['loc'][0]).upper()}={e['input']!r}: {e['msg'].removeprefix('Value error, ')}"
                for e in error.errors()
            )
        ) from error


def _unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name.upper(), known, n=1)
    return f"{name} is not a setting of this version" + (f"; did you mean {near[0]}?" if near else ".")


def describe_settings() -> str:
    """A table of every variable, its default and its meaning, for a terminal."""
    lines = []
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        lines += [f"  {PREFIX}{name.upper()} = {default}", f"      {field.description}"]
    return "\n".join(lines)
