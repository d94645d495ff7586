"""Prometheus metrics, exact under several workers.

With `PROMETHEUS_MULTIPROC_DIR` set (the `serve` command does it when there is more than one worker), every
worker writes its own files there and any of them answers a scrape for all, dead ones included.
No label takes a value from a caller.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

disable_created_metrics()  # type: ignore[no-untyped-call]  # half of all series, and nobody reads them

REQUESTS = Counter("tidegate_http_requests", "HTTP requests answered", ["route", "method", "status"])
REQUEST_SECONDS = Histogram(
    "tidegate_http_request_seconds",
    "From the request's head to the answer's end",
    ["route"],
    buckets=_SECONDS,
)
IMAGES = Counter("tidegate_images", "Images by outcome: ok, or the error code", ["model", "outcome"])
TEXTS = Counter("tidegate_texts", "Texts by outcome: ok, or the error code", ["model", "outcome"])
SHADOW = Counter(
    "tidegate_shadow_agreement",
    "What a candidate said of images or texts that the main version answered: agree, differ, failed, skipped",
    ["model", "outcome"],
)
INFERENCE_SECONDS = Histogram("tidegate_inference_seconds", "One call to Triton", ["model"], buckets=_SECONDS)
BATCH_IMAGES = Histogram("tidegate_batch_images", "Images, or texts, in one call to Triton", ["model"], buckets=_IMAGES)
PAYLOAD_BYTES = Counter("tidegate_payload_bytes", "Bytes of image files and texts sent to Triton")
PADDING_BYTES = Counter("tidegate_padding_bytes", "Bytes of padding sent to Triton")
IN_FLIGHT = Gauge("tidegate_in_flight_images", "Images admitted and not yet answered", multiprocess_mode="livesum")
LIMIT = Gauge(
    "tidegate_in_flight_limit_images",
    "Images that may be in flight for a model: what it answers in time, the operator's cap at most",
    ["model"],
    multiprocess_mode="livesum",
)
CACHE = Counter("tidegate_cache", "Images looked up in the cache: hit, miss", ["outcome"])
CACHE_BYTES = Gauge("tidegate_cache_bytes", "Bytes of the answers that are kept", multiprocess_mode="livesum")
URL_FETCHES = Counter("tidegate_url_fetches", "Images given by address: ok, the error code, cancelled", ["outcome"])
REJECTED = Counter("tidegate_rejected", "Requests refused at the door", ["reason"])
RATE_STORAGE_UP = Gauge(
    "tidegate_rate_storage_up",
    "1 while the rates are counted in TIDEGATE_RATE_STORAGE, 0 while each worker counts its own",
    ["storage"],
    multiprocess_mode="livemin",
)
TRITON_READY = Gauge(
    "tidegate_triton_ready",
    "1 when the last probe, a real inference, succeeded",
    ["endpoint"],
    multiprocess_mode="livemin",
)
TRITON_RETRIES = Counter("tidegate_triton_retries", "Calls to Triton that were made once more: no connection, or lost")
MODELS = Gauge(
    "tidegate_models",
    "Models of Triton by state: ready, not_loaded, certificate (it does not fit what runs), unusable",
    ["state"],
    multiprocess_mode="livemax",
)


def announce_routes(routes: Iterable[tuple[str, Iterable[str] | None]]) -> None:
    """Starts the series of every route and its methods at zero, so that a first request shows as an increase."""
    for route, methods in routes:
        REQUEST_SECONDS.labels(route)
        for method in methods or ():
            REQUESTS.labels(route, method, 200)


def render() -> tuple[bytes, str]:
    """The text of a scrape and its content type."""
    directory = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if not directory:
        return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
    _bury_the_dead(Path(directory))
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _bury_the_dead(directory: Path) -> None:
    """Drops the live gauges of workers that are gone; their counters stay."""
    for file in directory.glob("gauge_live*_*.db"):
        pid = int(re.findall(r"\d+", file.stem)[-1])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
