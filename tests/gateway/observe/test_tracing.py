"""Traces: what a collector gets of each request, and what it costs those who asked for none."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")

from gateway.cli import main
from gateway.observe import tracing
from gateway.observe.logging import JsonFormatter
from gateway.observe.tracing import Tracing
from gateway.settings import Settings, SettingsError, load_settings
from gateway.triton.fake import FakeTriton
from gateway.triton.local import LocalTriton, Ports, free_ports
from tests.collector import Collector, Span, collecting
from tests.gateway.test_layout import GATEWAY, importers
from tests.grpc_triton import GrpcTriton, grpc_triton
from tests.pictures import encode, noise
from tests.servers import ROOT, running_gateway, tidegate, wait_for

PICTURE = encode(noise(8, 8))
LARGE = encode(noise(400, 400))
STAGES = ["read", "wait", "pad", "infer", "encode"]
ROUTE = "POST /v1/classify"


def traceparent(number: int, *, sampled: bool = True) -> tuple[str, str, str]:
    """A caller's header, its trace id and its span id."""
    trace_id, span_id = f"{number:032x}", f"{number + 7:016x}"
    return f"00-{trace_id}-{span_id}-{int(sampled):02x}", trace_id, span_id


@pytest.fixture
def collector() -> Iterator[Collector]:
    """An OpenTelemetry collector."""
    with collecting() as collector:
        yield collector


@pytest.fixture
def triton(fake: FakeTriton) -> Iterator[GrpcTriton]:
    """A Triton that keeps the metadata it gets."""
    with grpc_triton(fake) as triton:
        yield triton


def settings(collector: Collector, **others: object) -> Settings:
    return Settings.model_validate({"traces_endpoint": collector.endpoint, **others})


def stages_of(root: Span, spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.parent_id == root.span_id]


def test_one_request_is_one_trace(collector: Collector, triton: GrpcTriton) -> None:
    """The request's span is the child of the caller's, its five stages are its own, and nothing else is there."""
    header, trace_id, caller = traceparent(1)
    with running_gateway(settings(collector, triton_url=triton.url)) as client:
        wait_for(client, "/readyz")
        answer = client.post(
            "/v1/classify?top_k=3", files={"files": ("secret.png", PICTURE)}, headers={"traceparent": header}
        )
        assert answer.status_code == 200
    spans = collector.spans()
    (root,) = collector.spans(name=ROUTE)
    assert {span.trace_id for span in spans} == {trace_id}
    assert (root.parent_id, root.kind, root.status) == (caller, "server", "unset")
    assert root.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/classify",
        "http.response.status_code": 200,
        "network.protocol.version": "1.1",
        "url.scheme": "http",
    }
    assert [span.name for span in stages_of(root, spans)] == STAGES
    assert len(spans) == 6
    read, wait, pad, infer, encoding = stages_of(root, spans)
    assert read.attributes == wait.attributes == {"tidegate.images": 1}
    assert pad.attributes == {"tidegate.images": 1, "tidegate.batches": 1}
    assert encoding.attributes == {}
    host, port = triton.url.split(":")
    assert infer.kind == "client"
    assert infer.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": "inference.GRPCInferenceService/ModelInfer",
        "rpc.response.status_code": "OK",
        "server.address": host,
        "server.port": int(port),
        "tidegate.model": "ensemble_model",
        "tidegate.images": 1,
        "tidegate.bytes": len(PICTURE),
    }
    assert triton.metadata[-1]["traceparent"] == f"00-{trace_id}-{infer.span_id}-01"
    assert "secret" not in str(spans)


def test_spans_nest_and_follow_each_other(collector: Collector, triton: GrpcTriton) -> None:
    """A stage is inside its request, and begins after the one before it has ended: all are read off one clock."""
    before = time.time_ns()
    with running_gateway(settings(collector, triton_url=triton.url)) as client:
        wait_for(client, "/readyz")
        assert client.post("/v1/classify", content=PICTURE).status_code == 200
    (root,) = collector.spans(name=ROUTE)
    instants = [root.start]
    for stage in stages_of(root, collector.spans()):
        instants += [stage.start, stage.end]
    instants.append(root.end)
    assert instants == sorted(instants)
    assert before <= root.start < root.end <= time.time_ns()


def test_the_answer_and_the_trace_have_the_same_times(collector: Collector, fake: FakeTriton) -> None:
    """What `timings_ms` and `Server-Timing` say of a stage is its span's duration."""
    with running_gateway(settings(collector), fake) as client:
        wait_for(client, "/readyz")
        answer = client.post("/v1/classify", content=PICTURE)
    shown = dict(re.findall(r"(\w+);dur=([\d.]+)", answer.headers["server-timing"]))
    for name in ("read", "wait", "infer"):
        (span,) = collector.spans(name=name)
        milliseconds = (span.end - span.start) / 1e6
        assert answer.json()["timings_ms"][name] == pytest.approx(milliseconds, abs=0.00051)
        assert float(shown[name]) == pytest.approx(milliseconds, abs=0.0051)


def test_several_batches_are_several_calls(collector: Collector, triton: GrpcTriton) -> None:
    """Each call to Triton has its own span, child of the request's, and its own `traceparent`."""
    with running_gateway(settings(collector, triton_url=triton.url)) as client:
        wait_for(client, "/readyz")
        files = [("files", PICTURE)] * 9 + [("files", LARGE)]
        assert client.post("/v1/classify", files=files).status_code == 200
    (root,) = collector.spans(name=ROUTE)
    calls = collector.spans(name="infer")
    assert len(calls) == 3
    assert all(call.parent_id == root.span_id and root.start <= call.start < call.end <= root.end for call in calls)
    assert sorted(call.attributes["tidegate.images"] for call in calls) == [1, 1, 8]
    sent = {metadata["traceparent"].split("-")[2] for metadata in triton.metadata if "traceparent" in metadata}
    assert sent == {call.span_id for call in calls}


def test_requests_at_the_same_time_do_not_mix(collector: Collector, triton: GrpcTriton) -> None:
    """Every trace has its own request's stages, and each call to Triton carries its own trace."""
    callers = [traceparent(100 + i) for i in range(16)]
    with running_gateway(settings(collector, triton_url=triton.url)) as client:
        wait_for(client, "/readyz")

        def ask(header: str) -> int:
            return client.post("/v1/classify", content=PICTURE, headers={"traceparent": header}).status_code

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(ask, [header for header, _, _ in callers])) == {200}
    for _, trace_id, caller in callers:
        mine = [span for span in collector.spans() if span.trace_id == trace_id]
        (root,) = [span for span in mine if span.parent_id == caller]
        assert [span.name for span in stages_of(root, mine)] == STAGES
        assert len(mine) == 6
    carried = [metadata["traceparent"] for metadata in triton.metadata if "traceparent" in metadata]
    assert sorted(header.split("-")[1] for header in carried) == sorted(trace_id for _, trace_id, _ in callers)


@pytest.mark.parametrize(
    ("method", "path", "body", "name", "status", "stage"),
    [
        ("POST", "/v1/classify", b"", ROUTE, 422, ("read", "missing_image")),
        ("POST", "/v1/classify?model=nope", PICTURE, ROUTE, 404, None),
        ("POST", "/v1/classify?top_k=0", PICTURE, ROUTE, 422, None),
        ("POST", "/v1/classify", b"secret", ROUTE, 422, ("encode", "no_usable_image")),
        ("GET", "/v1/models/secret", b"", "GET /v1/models/{name}", 404, None),
        ("GET", "/secret.php?q=secret", b"", "GET", 404, None),
        ("PUT", "/v1/classify", b"", "PUT /v1/classify", 405, None),
    ],
)
def test_a_bad_request_is_not_an_error_of_ours(
    collector: Collector,
    fake: FakeTriton,
    method: str,
    path: str,
    body: bytes,
    name: str,
    status: int,
    stage: tuple[str, str] | None,
) -> None:
    """It is named by its route, never by its path; the stage that refused says why, in a word of ours."""
    with running_gateway(settings(collector), fake) as client:
        wait_for(client, "/readyz")
        answer = client.request(method, path, content=body, headers={"user-agent": "secret", "x-request-id": "secret"})
        assert answer.status_code == status
    spans = collector.spans()
    (root,) = [span for span in spans if not span.parent_id]
    assert (root.name, root.attributes["http.response.status_code"]) == (name, status)
    assert {span.status for span in spans} == {"unset"}
    refused = [(span.name, span.attributes["error.type"]) for span in spans if "error.type" in span.attributes]
    assert refused == ([stage] if stage else [])
    assert "secret" not in str(spans)


def test_an_unknown_method_is_not_repeated(collector: Collector, fake: FakeTriton) -> None:
    """A server's HTTP parser lets more through than the conventions list."""
    with running_gateway(settings(collector), fake) as client:
        client.request("PROPFIND", "/livez", headers={"traceparent": traceparent(1)[0]})
    (span,) = collector.spans()
    assert span.name in ("HTTP", "HTTP /livez")
    assert span.attributes["http.request.method"] == "_OTHER"


def test_a_deadline_that_passed_is_marked(collector: Collector, triton: GrpcTriton) -> None:
    """The call says that it was the deadline, in gRPC's word and in ours; the request is an error."""
    with running_gateway(settings(collector, triton_url=triton.url)) as client:
        wait_for(client, "/readyz")
        triton.fake.delay = 5
        answer = client.post("/v1/classify", content=PICTURE, headers={"x-request-timeout": "0.2"})
        assert answer.status_code == 504
        triton.fake.delay = 0
    (root,), (call,) = collector.spans(name=ROUTE), collector.spans(name="infer")
    assert (root.status, root.attributes["error.type"]) == ("error", "504")
    assert (call.status, call.attributes["error.type"]) == ("error", "deadline_exceeded")
    assert call.attributes["rpc.response.status_code"] == "DEADLINE_EXCEEDED"


def test_an_error_has_a_type_and_no_text(collector: Collector, triton: GrpcTriton) -> None:
    """What Triton says is for the log alone: neither message nor event nor attribute has it."""
    with running_gateway(settings(collector, triton_url=triton.url)) as client:
        wait_for(client, "/readyz")
        triton.refuse_with = grpc.StatusCode.INTERNAL
        assert client.post("/v1/classify", content=PICTURE).status_code == 502
    (root,), (call,) = collector.spans(name=ROUTE), collector.spans(name="infer")
    assert (root.status, root.attributes["error.type"]) == ("error", "502")
    assert (call.status, call.attributes["error.type"]) == ("error", "bad_upstream_response")
    assert call.attributes["rpc.response.status_code"] == "INTERNAL"
    assert all(not span.message and not span.events for span in collector.spans())
    assert "secret" not in str(collector.spans())


def test_a_fault_of_ours_is_an_error_by_its_class(collector: Collector, fake: FakeTriton) -> None:
    """An exception that nobody foresaw is named, not quoted."""
    with running_gateway(settings(collector), fake) as client:
        wait_for(client, "/readyz")
        fake.failure = RuntimeError("secret")  # type: ignore[assignment]  # that is the point
        assert client.post("/v1/classify", content=PICTURE).status_code == 500
        fake.failure = None
    (root,), (call,) = collector.spans(name=ROUTE), collector.spans(name="infer")
    assert (root.status, root.attributes["error.type"]) == ("error", "500")
    assert (call.status, call.attributes["error.type"]) == ("error", "RuntimeError")
    assert "secret" not in str(collector.spans())


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("traceparent", "nonsense")],
        [("traceparent", "00-" + "0" * 32 + "-" + "1" * 16 + "-01")],
        [("traceparent", "00-" + "1" * 32 + "-" + "0" * 16 + "-01")],
        [("traceparent", "ff-" + "1" * 32 + "-" + "1" * 16 + "-01")],
        [("traceparent", "00-" + "1" * 32 + "-" + "1" * 16 + "-01-more")],
        [
            ("traceparent", "00-" + "1" * 32 + "-" + "1" * 16 + "-01"),
            ("traceparent", "00-" + "2" * 32 + "-" + "2" * 16 + "-01"),
        ],
        [("traceparent", "00-" + "1" * 32 + "-" + "1" * 16 + "-01" + "x" * 5000)],
        [("tracestate", "a=b")],
    ],
)
def test_a_traceparent_that_is_none_begins_a_new_trace(
    collector: Collector, fake: FakeTriton, headers: list[tuple[str, str]]
) -> None:
    """Nothing of it is kept, and the request is answered."""
    with running_gateway(settings(collector), fake) as client:
        wait_for(client, "/readyz")
        assert client.post("/v1/classify", content=PICTURE, headers=headers).status_code == 200
    (root,) = collector.spans(name=ROUTE)
    assert root.parent_id == ""
    assert root.trace_id not in ("0" * 32, "1" * 32, "2" * 32)


@pytest.mark.parametrize(
    ("state", "passed_on"),
    [
        ("vendor=value,other=1", "vendor=value,other=1"),
        ("vendor=\x80\xff", None),
        ("=,;=", None),
        ("a=" + "b" * 600, None),
    ],
)
def test_tracestate_is_passed_on_if_it_is_one(
    collector: Collector, triton: GrpcTriton, state: str, passed_on: str | None
) -> None:
    """What is not cannot break the call to Triton."""
    headers = [(b"traceparent", traceparent(1)[0].encode()), (b"tracestate", state.encode("latin-1"))]
    with running_gateway(settings(collector, triton_url=triton.url)) as client:
        wait_for(client, "/readyz")
        assert client.post("/v1/classify", content=PICTURE, headers=headers).status_code == 200
    assert triton.metadata[-1].get("tracestate") == passed_on
    assert triton.metadata[-1]["traceparent"].split("-")[1] == traceparent(1)[1]


def test_a_ratio_of_zero_traces_nothing(collector: Collector, triton: GrpcTriton) -> None:
    """Nor is Triton told of a trace, because it would record it whatever the flag says."""
    with running_gateway(settings(collector, triton_url=triton.url, traces_sample_ratio=0)) as client:
        wait_for(client, "/readyz")
        assert client.post("/v1/classify", content=PICTURE).status_code == 200
    assert collector.spans() == []
    assert "traceparent" not in triton.metadata[-1]


@pytest.mark.parametrize(("ratio", "sampled"), [(0, True), (1, False)])
def test_the_caller_has_decided(collector: Collector, triton: GrpcTriton, ratio: float, sampled: bool) -> None:
    """A caller's flag beats our ratio, in both directions."""
    header = traceparent(1, sampled=sampled)[0]
    with running_gateway(settings(collector, triton_url=triton.url, traces_sample_ratio=ratio)) as client:
        wait_for(client, "/readyz")
        assert client.post("/v1/classify", content=PICTURE, headers={"traceparent": header}).status_code == 200
    assert len(collector.spans()) == (6 if sampled else 0)
    assert ("traceparent" in triton.metadata[-1]) == sampled


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
def test_probes_and_scrapes_begin_no_trace(collector: Collector, fake: FakeTriton, path: str) -> None:
    """They would bury the others; but a caller that traces one gets its span."""
    with running_gateway(settings(collector), fake) as client:
        assert client.get(path).status_code == 200
        client.get(path, headers={"traceparent": traceparent(1)[0]})
    (span,) = collector.spans()
    assert (span.trace_id, span.name) == (traceparent(1)[1], f"GET {path}")


def test_log_lines_carry_the_ids(collector: Collector, fake: FakeTriton) -> None:
    """The request's line has the ids of its span; an untraced one has its caller's trace id."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(JsonFormatter().format(record))  # type: ignore[method-assign]
    access = logging.getLogger("gateway.access")
    access.addHandler(handler)
    access.setLevel("INFO")
    try:
        with running_gateway(settings(collector, access_log=True), fake) as client:
            wait_for(client, "/readyz")
            lines.clear()
            client.post("/v1/classify", content=PICTURE, headers={"x-request-id": "a"})
            client.get("/v1/models", headers={"traceparent": traceparent(5, sampled=False)[0]})
            client.get("/livez")
    finally:
        access.removeHandler(handler)
        access.setLevel("NOTSET")
    traced, untraced, probe = map(json.loads, lines)
    (root,) = collector.spans(name=ROUTE)
    assert (traced["request_id"], traced["trace_id"], traced["span_id"]) == ("a", root.trace_id, root.span_id)
    assert untraced["trace_id"] == traceparent(5)[1]
    assert not {"trace_id", "span_id"} & set(probe)


def test_a_collector_that_is_away_touches_no_request(fake: FakeTriton, caplog: pytest.LogCaptureFixture) -> None:
    """Requests are answered, the gateway stops, and the log says once what is lost."""
    away = Settings(traces_endpoint=f"http://127.0.0.1:{free_ports(1)[0]}", shutdown_grace_s=1)
    theirs = logging.getLogger("opentelemetry")
    for handler in [each for each in theirs.handlers if isinstance(each, tracing._Seldom)]:
        theirs.removeHandler(handler)  # another test may have used up its minute
    with running_gateway(away, fake) as client:
        wait_for(client, "/readyz")
        for _ in range(400):  # 2,400 spans: more than the queue holds
            assert client.post("/v1/classify", content=PICTURE).status_code == 200
    reports = [record for record in caplog.records if record.name == "gateway.observe.tracing"]
    assert [record.getMessage() for record in reports].count("Traces are being lost") == 1
    assert not theirs.propagate


def test_a_collector_that_does_not_answer_holds_nobody_up(collector: Collector) -> None:
    """Closing waits no longer than it may."""
    collector.silent = True
    traces = Tracing(collector.endpoint, 1)
    span = traces.timeline(time.perf_counter_ns(), "GET", [], {}).span
    assert span is not None
    span.end(time.perf_counter_ns())
    asyncio.run(traces.close(0.01))
    assert collector.asked.wait(30)
    assert not collector.released.is_set()


def test_what_is_queued_is_sent_at_the_end(collector: Collector) -> None:
    """A worker that stops loses no span of an answer that it gave."""
    traces = Tracing(collector.endpoint, 1)
    for _ in range(1000):
        span = traces.timeline(time.perf_counter_ns(), "GET", [], {}).span
        assert span is not None
        span.end(time.perf_counter_ns())
    asyncio.run(traces.close(30))
    assert len(collector.spans()) == 1000


@pytest.mark.parametrize(("address", "path"), [("", ""), ("/", ""), ("/otlp/custom", "/otlp/custom")])
def test_the_address_may_name_a_path(address: str, path: str) -> None:
    """Without one it is that of OTLP over HTTP."""
    assert tracing._traces_url(f"http://collector:4318{address}") == f"http://collector:4318{path or '/v1/traces'}"


def test_who_sent_it(collector: Collector, fake: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service name and version, and what the operator adds by OpenTelemetry's own variables."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "photos")
    with running_gateway(settings(collector), fake) as client:
        client.get("/v1/models")
    (span,) = collector.spans()
    assert span.sender["service.name"] == "photos"
    assert span.sender["deployment.environment.name"] == "test"
    assert {"service.version", "service.instance.id"} <= set(span.sender)


def test_opentelemetrys_own_switch(collector: Collector, fake: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    """`OTEL_SDK_DISABLED` turns traces off, and nothing else."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with running_gateway(settings(collector), fake) as client:
        wait_for(client, "/readyz")
        assert client.post("/v1/classify", content=PICTURE).status_code == 200
    assert collector.spans() == []


def test_each_worker_sends_its_own(collector: Collector, triton: GrpcTriton) -> None:
    """Two processes, two senders, and every span of every request arrives when they stop."""
    with tidegate("serve", triton_url=triton.url, traces_endpoint=collector.endpoint, workers=2) as (process, client):
        wait_for(client, "/readyz")
        senders: set[object] = set()
        sent = 0
        while len(senders) < 2:  # each connection goes to whichever worker takes it
            for _ in range(90):  # 540 spans: more than one batch, so that it is sent at once
                answer = httpx.post(f"{client.base_url}/v1/classify", content=PICTURE)
                assert answer.status_code == 200
                sent += 1
            senders = {span.sender["service.instance.id"] for span in collector.spans(count=1)}
            assert sent < 2000
        process.terminate()
        assert process.wait(30) == 0
    assert len(collector.spans()) == sent * 6
    assert {span.sender["service.name"] for span in collector.spans()} == {"tidegate"}


def test_a_real_triton_takes_part(collector: Collector, probe_repository: Path, tmp_path: Path) -> None:
    """Triton's own spans hang below our call, when it sends them too; and it has none of unsampled requests."""
    pytest.importorskip("pytriton")
    arguments = ("rate=0", "level=TIMESTAMPS", "count=-1", "mode=opentelemetry")
    url = f"opentelemetry,url={collector.endpoint}/v1/traces"
    real = LocalTriton(
        [probe_repository],
        ports=Ports(*free_ports(3)),
        log_file=tmp_path / "triton.log",
        arguments=[
            f"--trace-config={argument}" for argument in (*arguments, url, "opentelemetry,bsp_schedule_delay=100")
        ],
    )
    with real:
        real.wait_ready()
        options = settings(collector, triton_url=real.url, default_model="probe_ensemble", traces_sample_ratio=0)
        with running_gateway(options) as client:
            wait_for(client, "/readyz")
            assert client.post("/v1/classify", content=PICTURE).status_code == 200
            sampled: set[str] = set()
            while len(sampled) < 10 and not collector.arrives("InferRequest", seconds=2):
                header, trace_id, _ = traceparent(9 + len(sampled))  # again, as Triton 2.51 loses one trace in twenty
                answer = client.post("/v1/classify", content=PICTURE, headers={"traceparent": header})
                assert answer.status_code == 200
                sampled.add(trace_id)
        theirs = collector.spans(count=1, name="InferRequest")[0]
        calls = {span.trace_id: span.span_id for span in collector.spans(len(sampled), "infer")}
        assert theirs.parent_id == calls[theirs.trace_id]
        assert collector.spans(count=1, name="probe_ensemble")[0].trace_id == theirs.trace_id
    assert {span.trace_id for span in collector.spans()} == sampled


def test_off_nothing_is_imported() -> None:
    """Without the setting, no SDK and no exporter is loaded (FastAPI brings the API along, and it does nothing)."""
    program = (
        "import sys; from gateway.app import create_app; from gateway.settings import Settings; create_app(Settings());"
        "import gateway.cli.serve, gateway.triton.client;"
        "print([m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))"
        " or m == 'gateway.observe.tracing'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_one_module_knows_opentelemetry() -> None:
    """And it is imported by two functions only: the check of the setting, and the start of a worker."""
    assert importers(GATEWAY, "opentelemetry") == {"gateway/observe/tracing.py"}
    assert importers(GATEWAY, "gateway.observe.tracing") == {
        "gateway/app.py",
        "gateway/settings.py",
        "gateway/web/middleware.py",  # for its type
    }


def test_off_adds_no_span_of_the_framework(
    fake: FakeTriton, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI's own telemetry stays off, whatever the environment says: its spans have paths and messages."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    with running_gateway(Settings(), fake) as client:
        assert client.get("/livez").status_code == 200
    assert not collector.asked.is_set()


@pytest.mark.parametrize("address", ["collector:4318", "grpc://collector:4317", "http://", "nonsense"])
def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """The error says what to write."""
    monkeypatch.setenv("TIDEGATE_TRACES_ENDPOINT", address)
    with pytest.raises(SettingsError, match=r"TIDEGATE_TRACES_ENDPOINT=.*for example http://localhost:4318"):
        load_settings()


def test_an_empty_address_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As compose leaves a variable that nobody filled in."""
    monkeypatch.setenv("TIDEGATE_TRACES_ENDPOINT", "")
    assert load_settings().traces_endpoint is None


def test_without_the_extra_it_is_said_at_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, with the command that helps; no traceback."""
    monkeypatch.setenv("TIDEGATE_TRACES_ENDPOINT", "http://localhost:4318")
    monkeypatch.setitem(sys.modules, "gateway.observe.tracing", None)
    assert main(["serve"]) == 1
    assert "pip install 'tidegate[otel]'" in capsys.readouterr().err


def test_the_flush_thread_does_not_hold_the_process(collector: Collector) -> None:
    """Threads of ours are daemons: a silent collector cannot keep a process alive."""
    collector.silent = True
    traces = Tracing(collector.endpoint, 1)
    span = traces.timeline(time.perf_counter_ns(), "GET", [], {}).span
    assert span is not None
    span.end(time.perf_counter_ns())
    asyncio.run(traces.close(0))
    ours = [thread for thread in threading.enumerate() if "traces-flush" in thread.name or "Otel" in thread.name]
    assert all(thread.daemon for thread in ours)
