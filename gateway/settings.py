"""The one place that reads the environment: variables with the prefix `TIDEGATE_`, or a `.env` file."""

from __future__ import annotations

import difflib
import os
import re
import ssl
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway.access.keys import KeysError, read_keys
from gateway.fetch.guard import Guard, Network, parse_hosts, parse_networks

PREFIX = "TIDEGATE_"
Port = Annotated[int, Field(ge=1, le=65535)]
MIB = 1024 * 1024
OF_CLIENTS = frozenset({"API_KEY"})
"""Variables of `tidegate embed`, which may be set where a gateway starts."""
SECRET = frozenset({"rate_storage"})
"""Settings whose values are not shown: a password may be in them."""


class SettingsError(Exception):
    """A setting that cannot be used; the text names it and says what would do."""


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _endpoints(urls: str) -> str:
    endpoints = [url.strip() for url in urls.split(",")]
    for url in endpoints:
        target = url.removeprefix("dns:///")
        name, _, port = target.rpartition(":")
        if not name or not port.isdigit() or not 1 <= int(port) <= 65535 or "/" in target:
            raise ValueError("write host:port or dns:///name:port, or several with commas: gpu1:8001,gpu2:8001")
    if len(set(endpoints)) < len(endpoints):
        raise ValueError("it names an endpoint twice")
    return ",".join(endpoints)


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


def _unless_empty(value: object) -> object:
    return value or None  # as compose and Kubernetes leave a variable that nobody filled in


def _keys(file: Path | None) -> Path | None:
    if file is not None:
        try:
            read_keys(file)
        except KeysError as error:
            raise ValueError(str(error)) from error
    return file


def _limits(text: str) -> str:
    if text:
        try:
            from gateway.access.storage import parse_limits  # only where it is asked for: it brings limits and redis
        except ImportError as missing:
            raise ValueError("rates need more packages: pip install 'tidegate[rates]'") from missing
        parse_limits(text)
    return text


def _storage(url: SecretStr | None) -> SecretStr | None:
    if url is not None and not re.fullmatch(r"rediss?://[^\s/]+(/\d*)?(\?\S*)?", url.get_secret_value()):
        raise ValueError("write the address of a Redis, for example redis://localhost:6379/0")
    return url


def _origins(text: str) -> str:
    for origin in listed(text):
        if origin != "*" and not re.fullmatch(r"https?://[A-Za-z0-9.\[\]:-]+", origin):
            raise ValueError(f"{origin!r} is not an origin: write * or https://app.example.com, with commas between")
    return text


def _readable(file: Path | None) -> Path | None:
    if file is not None:
        try:
            file.read_bytes()
        except OSError as error:
            raise ValueError(f"{error.strerror}: {file}") from error
    return file


File = Annotated[Path | None, BeforeValidator(_unless_empty), AfterValidator(_readable)]


def listed(text: str) -> list[str]:
    """The entries of a list with commas."""
    return [entry for part in text.split(",") if (entry := part.strip())]


def _hosts(text: str) -> str:
    parse_hosts(text)
    return text


def _networks(text: str) -> str:
    parse_networks(text)
    return text


def _check_tls(cert: Path, key: Path | None, client_ca: Path | None) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=lambda: "")  # it would ask at the terminal else
    except (ssl.SSLError, ValueError) as error:
        names = f"{PREFIX}TLS_CERT_FILE and {PREFIX}TLS_KEY_FILE"
        raise ValueError(f"{names} are not a certificate and its key, in PEM, without a password") from error
    try:
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except ssl.SSLError as error:
        raise ValueError(f"{PREFIX}TLS_CLIENT_CA_FILE has no certificates in PEM") from error


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

    triton_url: Annotated[str, AfterValidator(_endpoints)] = "localhost:8001"
    """Triton's gRPC endpoint: `host:port`, or `dns:///name:port` to spread over all addresses of a name. Several,
    with commas between them, share the load."""
    default_model: str = Field(default="ensemble_model", min_length=1)
    """The model that answers when the caller names none; its probe decides readiness."""
    default_embedder: str = Field(default="embedding_ensemble", min_length=1)
    """The model that `/v1/embed` asks when the caller names none."""
    default_text_model: str = Field(default="text_classifier", min_length=1)
    """The model that `/v1/text/classify` asks when the caller names none."""
    default_text_embedder: str = Field(default="text_embedder", min_length=1)
    """The model that `/v1/embeddings` asks for texts when the caller names none."""
    default_moderator: str = Field(default="open_nsfw", min_length=1)
    """The model that `/v1/moderations` asks when the caller names none."""
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
    max_texts: int = Field(default=2048, ge=1)
    """Most texts in one request."""
    max_text_bytes: int = Field(default=32 * 1024, ge=1)
    """Largest single text, in bytes of UTF-8."""
    max_texts_bytes: int = Field(default=MIB, ge=1)
    """Most bytes of UTF-8 that the texts of one request may have together."""
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
    shutdown_delay_s: float = Field(default=1.0, ge=0, le=600)
    """Seconds after SIGTERM in which requests are still taken, while `/readyz` says 503: balancers need them."""
    shutdown_grace_s: int = Field(default=30, ge=0, le=600)
    """Seconds that requests in flight may take to finish after SIGTERM."""
    max_in_flight_images: int = Field(default_factory=lambda: max(256, 64 * cores()), ge=1)
    """Images admitted at one time in one worker; more are `overloaded`. Default: 64 a processor, at least 256."""
    max_in_flight_bytes: int = Field(default=512 * MIB, ge=1)
    """Bytes of request bodies held at one time in one worker, those that are still arriving included."""

    cache_bytes: int = Field(default=0, ge=0)
    """Bytes of answers that a worker keeps, for images and texts that it is asked for again; 0: none. An answer of
    1,000 classes takes 4,600. Only of models with a certificate."""

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

    api_keys_file: Annotated[Path | None, BeforeValidator(_unless_empty), AfterValidator(_keys)] = None
    """File of API keys, made by `tidegate keys`: docs/access.md. Unset: whoever reaches the port may call."""
    rate_limit: Annotated[str, AfterValidator(_limits)] = ""
    """Images of one key, or else of one address, such as `600/minute` or `10/second; 600/minute`. Empty: no limit."""
    rate_storage: Annotated[SecretStr | None, BeforeValidator(_unless_empty), AfterValidator(_storage)] = None
    """Redis that counts for several workers and gateways: `redis://host:6379/0`. Unset: this worker's memory."""
    trusted_proxies: Annotated[str, AfterValidator(_networks)] = ""
    """Networks of proxies whose X-Forwarded-For is believed, such as `10.0.0.0/8, fd00::/8`. Empty: nobody's."""
    cors_origins: Annotated[str, AfterValidator(_origins)] = ""
    """Origins whose pages may call from a browser, such as `https://app.example.com`, or `*`. Empty: none."""
    docs: bool = True
    """Serve `/docs`, `/openapi.json` and the page at `/`."""
    metrics: bool = True
    """Serve `/metrics`."""
    metrics_port: Annotated[Port | None, BeforeValidator(_unless_empty)] = None
    """Port of its own for `/metrics`, without TLS, which is then not on the gateway's port."""

    tls_cert_file: File = None
    """Certificate, with its chain, in PEM: the gateway then speaks HTTPS. Read at the start."""
    tls_key_file: File = None
    """Its private key, in PEM, without a password. Unset: it is in the certificate's file."""
    tls_client_ca_file: File = None
    """Authorities, in PEM: callers must show a certificate of theirs, probes too."""
    triton_tls_ca_file: File = None
    """Authorities, in PEM, that Triton's certificate must come from: gRPC then goes over TLS. Read at the start."""
    triton_tls_cert_file: File = None
    """Certificate, with its chain, in PEM, that is shown to Triton."""
    triton_tls_key_file: File = None
    """Its private key, in PEM."""

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

    @model_validator(mode="after")
    def _together(self) -> Settings:
        """What does not go with something else."""
        if self.rate_limit and self.workers > 1 and self.rate_storage is None:
            raise ValueError(
                f"{PREFIX}RATE_LIMIT with {PREFIX}WORKERS={self.workers}: each worker would count for itself; "
                f"set {PREFIX}RATE_STORAGE to a Redis, or one worker"
            )
        if self.metrics_port == self.port:
            raise ValueError(f"{PREFIX}METRICS_PORT is the gateway's own port; leave it unset to serve both there")
        if (self.triton_tls_cert_file is None) != (self.triton_tls_key_file is None):
            raise ValueError(f"{PREFIX}TRITON_TLS_CERT_FILE and {PREFIX}TRITON_TLS_KEY_FILE go together")
        if self.triton_tls_cert_file and not self.triton_tls_ca_file:
            raise ValueError(f"{PREFIX}TRITON_TLS_CERT_FILE needs {PREFIX}TRITON_TLS_CA_FILE, which turns TLS on")
        if (self.tls_key_file or self.tls_client_ca_file) and not self.tls_cert_file:
            raise ValueError(f"{PREFIX}TLS_KEY_FILE and {PREFIX}TLS_CLIENT_CA_FILE need {PREFIX}TLS_CERT_FILE")
        if self.tls_cert_file:
            _check_tls(self.tls_cert_file, self.tls_key_file, self.tls_client_ca_file)
        return self

    @property
    def proxies(self) -> tuple[Network, ...]:
        """Whose X-Forwarded-For is believed."""
        return parse_networks(self.trusted_proxies)

    @property
    def url(self) -> str:
        """Where the gateway listens."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert_file else 'http'}://{host}:{self.port}"

    @property
    def triton_endpoints(self) -> list[str]:
        """Those of `triton_url`, each for itself."""
        return self.triton_url.split(",")

    @property
    def guard(self) -> Guard:
        """What may be fetched, where `allow_urls` is set."""
        return Guard(parse_hosts(self.url_allowed_hosts), parse_networks(self.url_allowed_networks))


def load_settings(**overrides: object) -> Settings:
    """Settings from the environment; raises `SettingsError` with one line for each thing that is wrong."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {PREFIX + name for name in OF_CLIENTS}
    unknown = sorted(key for key in os.environ if key.upper().startswith(PREFIX) and key.upper() not in known)
    if unknown:
        # A misspelt limit or key file must not be dropped without a word.
        raise SettingsError("\n".join(_unknown(name, known) for name in unknown))
    try:
        return Settings(**overrides)  # type: ignore[arg-type]  # pydantic checks the values
    except ValidationError as error:
        raise SettingsError("\n".join(map(_wrong, error.errors()))) from error


def _wrong(error: ErrorDetails) -> str:
    sentence = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return sentence  # about several
    name = str(error["loc"][0])
    value = "…" if name in SECRET else repr(error["input"])
    return f"{PREFIX}{name.upper()}={value}: {sentence}"


def keys_file() -> Path | None:
    """What `api_keys_file` is set to, whether or not there is such a file yet."""
    return _KeysFile().api_keys_file


class _KeysFile(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_file=".env", extra="ignore")
    api_keys_file: Annotated[Path | None, BeforeValidator(_unless_empty)] = None


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
