"""Prometheus and the dashboards, against what really runs: a gateway, a Triton, and a Prometheus that reads both."""

from __future__ import annotations

import http.client
import json
import math
import re
import select
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from build_engines import build_default
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, find_installation, free_ports
from tests.servers import ROOT, tidegate, wait_for

PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
RUNBOOK = ROOT / "docs" / "runbook.md"

# What has no data without a GPU.
NO_DATA_HERE = re.compile("nv_gpu_")
# A series that a rule asks for, with its labels.
SELECTOR = re.compile(r'\b(?:job\w*:[\w:]+|tidegate_\w+|nv_\w+|up)\b(?:\{(?:[^}"]|"[^"]*")*\})?')
VARIABLES = {"$__rate_interval": "10m", "$job": ".*", "$model": ".*"}


def binary(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus")
    return path


def promtool(*arguments: object) -> str:
    """What `promtool` says; fails unless it is content."""
    command = [binary("promtool"), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_configuration_and_its_rules_are_valid() -> None:
    """Prometheus would load them."""
    said = promtool("check", "config", PROMETHEUS / "prometheus.yml")
    assert "2 rule files found" in said


def test_every_alert_fires_when_it_should_and_not_otherwise() -> None:
    """The stories are in deploy/prometheus/tests."""
    stories = sorted((PROMETHEUS / "tests").glob("*.yml"))
    assert promtool("test", "rules", *stories).count("SUCCESS") == len(stories)


def test_every_alert_has_a_story_and_a_page_in_the_runbook() -> None:
    """Nobody is woken by something that nobody has tried, or that says nothing of what to do."""
    rules = (PROMETHEUS / "rules" / "alerts.yml").read_text()
    stories = "".join(file.read_text() for file in (PROMETHEUS / "tests").glob("*.yml"))
    alerts = set(re.findall(r"- alert: (\w+)", rules))
    assert alerts == set(re.findall(r'alertname="(\w+)", alertstate="firing"', stories))
    titles = re.findall(r"^## (.+)$", RUNBOOK.read_text(), re.MULTILINE)
    anchors = {title.lower().replace(" ", "-") for title in titles}
    assert set(re.findall(r"runbook: docs/runbook\.md#(\S+)", rules)) == anchors
    assert alerts <= set(re.findall(r"`(\w+)`", RUNBOOK.read_text()))


@dataclass
class Stack:
    """A Prometheus that watches a gateway and its Triton, and what was sent to the gateway."""

    prometheus: httpx.Client
    gateway: httpx.Client
    sent: Counter[str] = field(default_factory=Counter)
    before: dict[str, float] = field(default_factory=dict)
    at: float | None = None
    """The moment that queries ask for: now, until all is in."""

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The samples of an expression; fails if Prometheus finds a mistake in it."""
        when = {} if self.at is None else {"time": self.at}
        answer = self.prometheus.get("/api/v1/query", params={"query": expression, **when}).json()
        assert answer["status"] == "success", f"{expression}: {answer['error']}"
        data = answer["data"]
        samples = [{"metric": {}, "value": data["result"]}] if data["resultType"] == "scalar" else data["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in samples]

    def total(self, expression: str) -> float:
        return sum(value for _, value in self.query(expression))

    def groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.prometheus.get("/api/v1/rules").json()["data"]["groups"]
        return groups

    def wait_scraped(self) -> None:
        """Until both were read after this moment."""
        self._wait_newer('timestamp(up{job=~"gateway|triton"}) * up', 2)

    def wait_evaluated(self) -> None:
        """Until all rules were computed from what is scraped by now; twice, because some build on others."""
        for _ in range(2):
            self._wait_newer("prometheus_rule_group_last_evaluation_timestamp_seconds", len(self.groups()))

    def _wait_newer(self, times: str, count: int) -> None:
        """Until there are `count` of the times, all later than this moment."""
        now = time.time()
        wait(lambda: [value > now for _, value in self.query(times)] == [True] * count, times)

    def send(self) -> None:
        """Photos, what is no photo, and what is no request; `sent` says how many of each."""
        cat, coffee = ((ROOT / "examples" / "photos" / name).read_bytes() for name in ("cat.jpg", "coffee.jpg"))
        for body in (cat, cat, coffee):
            self._expect(200, ok=1, bytes=len(body), content=body)
        both = len(cat) + len(coffee)
        padding = abs(len(cat) - len(coffee))
        self._expect(200, ok=2, bytes=both, padding=padding, files=[("files", cat), ("files", coffee)])
        self._expect(200, ok=1, bad=1, bytes=len(cat), files=[("files", cat), ("files", b"no picture")])
        self._expect(422, bad=1, content=b"no picture")
        self._expect(400, content=b"{", headers={"Content-Type": "application/json"})
        self._send_too_much(cat)

    def _send_too_much(self, photo: bytes) -> None:
        """Two photos at a time, until the gateway has no room for one of them, whichever it hears of later."""
        refused = 0
        while not refused:
            connection = http.client.HTTPConnection(self.gateway.base_url.host, self.gateway.base_url.port or 80)
            connection.putrequest("POST", "/v1/classify")
            connection.putheader("Content-Length", str(len(photo)))
            connection.endheaders(photo[:-1])
            refused += self._expect(200, 503, content=photo, ok=1, bytes=len(photo)) == 503
            # A refusal is there already, and then the last byte would break the connection.
            if not select.select([connection.sock], [], [], 0)[0]:
                connection.send(photo[-1:])
            with closing(connection), connection.getresponse() as answer:
                self._count(answer.status, ok=1, bytes=len(photo))
                refused += answer.status == 503

    def _expect(
        self, *statuses: int, ok: int = 0, bad: int = 0, bytes: int = 0, padding: int = 0, **request: Any
    ) -> int:
        status = self.gateway.post("/v1/classify", **request).status_code
        assert status in statuses
        self._count(status, ok=ok, bad=bad, bytes=bytes, padding=padding)
        return status

    def _count(self, status: int, **done: int) -> None:
        self.sent[str(status)] += 1
        if status != 503:
            self.sent.update(done)

    def computed(self, model: str) -> float:
        """Images that a step of Triton computed, without the probes, which are no caller's."""
        asked = self.total('nv_inference_request_success{model="ensemble_model"}')
        probes = asked - self.total("tidegate_batch_images_count")
        return self.total(f'nv_inference_count{{model="{model}"}}') - probes

    def settled(self) -> bool:
        """Fixes the moment, if then no probe was under way and the alerts were computed too."""
        self.at = time.time()
        computed = {model: self.computed(model) - before for model, before in self.before.items()}
        return set(computed.values()) == {self.sent["ok"]} and bool(self.query('ALERTS{alertstate="pending"}'))


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def own_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    """One that no other gateway probes, so that every inference can be accounted for."""
    binary("prometheus")
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))
    build_default(ROOT / "model_repository", say=lambda line: None)
    log_file = tmp_path_factory.mktemp("triton") / "triton.log"
    with LocalTriton([ROOT / "model_repository"], ports=Ports(*free_ports(3)), log_file=log_file) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def stack(own_triton: LocalTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The project's own configuration, with other addresses and scraping every second."""
    server, triton = binary("prometheus"), own_triton
    folder = tmp_path_factory.mktemp("prometheus")
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    settings = {"triton_url": triton.url, "max_in_flight_bytes": 40_000, "probe_interval_s": 60}
    with tidegate("serve", **settings) as (_, gateway):
        wait_for(gateway, "/readyz")
        text = (PROMETHEUS / "prometheus.yml").read_text()
        for old, new in (
            ("gateway:8080", gateway.base_url.netloc.decode()),
            ("triton:8002", f"127.0.0.1:{triton.ports.metrics}"),
            ("localhost:9090", address),
            ("rules/*.yml", f"{PROMETHEUS}/rules/*.yml"),
            ("15s", "1s"),
        ):
            assert old in text
            text = text.replace(old, new)
        (folder / "prometheus.yml").write_text(text)
        command = [server, f"--config.file={folder}/prometheus.yml", f"--web.listen-address={address}"]
        with (folder / "prometheus.log").open("w") as log:
            process = subprocess.Popen([*command, f"--storage.tsdb.path={folder}/data"], stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://{address}", timeout=30) as prometheus:
                wait_for(prometheus, "/-/ready")
                stack = Stack(prometheus, gateway)
                stack.wait_scraped()
                stack.before = {model: stack.computed(model) for model in ("preprocessor", "classifier")}
                for _ in range(2):  # a rate needs a second look at a series
                    stack.send()
                    stack.wait_scraped()
                stack.wait_evaluated()
                wait(stack.settled, "the right count of images")
                yield stack
        finally:
            process.kill()
            process.wait(20)


def test_what_was_sent_is_what_is_counted(stack: Stack) -> None:
    """Requests by status, images by outcome, bytes and padding, to the last one."""
    sent = stack.sent
    by_status = stack.query('sum by (status) (tidegate_http_requests_total{route="/v1/classify", method="POST"})')
    assert {labels["status"]: value for labels, value in by_status} == {
        status: sent[status] for status in ("200", "400", "422", "503")
    }
    by_outcome = stack.query("sum by (outcome) (tidegate_images_total)")
    assert {labels["outcome"]: value for labels, value in by_outcome} == {
        "ok": sent["ok"],
        "unsupported_image": sent["bad"],
    }
    assert stack.total('tidegate_rejected_total{reason="overloaded"}') == sent["503"] == 2
    assert stack.total("tidegate_payload_bytes_total") == sent["bytes"]
    assert stack.total("tidegate_padding_bytes_total") == sent["padding"] > 0
    assert stack.total("tidegate_batch_images_sum") == sent["ok"]
    assert {model: stack.computed(model) - before for model, before in stack.before.items()} == {
        "preprocessor": sent["ok"],
        "classifier": sent["ok"],
    }
    assert stack.query("tidegate_triton_ready")[0][1] == 1


def test_every_recorded_figure_is_there(stack: Stack) -> None:
    """A rule whose series do not exist would be silent for ever."""
    for group in stack.groups():
        for rule in group["rules"]:
            assert rule["health"] == "ok", rule
            stack.query(rule["query"])
            if rule["type"] == "recording":
                assert stack.query(rule["name"]), rule["name"]


def test_every_alert_watches_something(stack: Stack) -> None:
    """All series that its expression names exist, with the labels that it asks for."""
    alerts = [rule for group in stack.groups() for rule in group["rules"] if rule["type"] == "alerting"]
    assert alerts
    for alert in alerts:
        selectors = SELECTOR.findall(alert["query"])
        assert selectors, alert["query"]
        for selector in selectors:
            assert stack.query(selector), f"{alert['name']}: {selector}"


def test_recorded_shares_are_those_of_the_traffic(stack: Stack) -> None:
    """Refusals and padding, computed from the counts; the alert on refusals begins to count its ten minutes."""
    padding = stack.sent["padding"] / (stack.sent["padding"] + stack.sent["bytes"])
    assert stack.total("job:tidegate_padding:ratio5m") == pytest.approx(padding, rel=0.01)
    # A rate does not see a counter's first value, so this one cannot be exact.
    assert 0 < stack.total("job:tidegate_errors:ratio5m") < 0.5
    pending = {labels["alertname"] for labels, _ in stack.query('ALERTS{alertstate="pending"}')}
    assert "TidegateRejections" in pending
    assert not stack.query('ALERTS{alertname="TidegateErrorBudgetBurn"}')  # two failures are too few, whatever share
    assert not stack.query('ALERTS{alertname=~".*(Down|NotReady|NoModelReady|CertificateMismatch|ModelUnusable)"}')


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return found


def concrete(expression: str) -> str:
    """The expression with Grafana's variables as they are when a page is opened."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_shows_something(stack: Stack, dashboard: Path) -> None:
    """Each query of each panel has data under this traffic, but for those on GPUs."""
    for panel in panels(dashboard):
        for target in panel.get("targets", ()):
            samples = stack.query(concrete(target["expr"]))
            if not NO_DATA_HERE.search(target["expr"]):
                assert any(not math.isnan(value) for _, value in samples), f"{panel['title']}: {target['expr']}"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_choice_of_a_page_has_values(stack: Stack, dashboard: Path) -> None:
    """The lists at the top are filled from labels that exist."""
    for variable in json.loads(dashboard.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            assert all(label in labels for labels, _ in stack.query(f"count by ({label}) ({series})"))
            assert stack.query(series)
        else:
            uid = variable["current"]["value"]
            assert f"uid: {uid}\n" in (GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_explains_itself(dashboard: Path) -> None:
    """A title, a sentence, a unit, limits, the chosen data source; and no panel lies on another."""
    document = json.loads(dashboard.read_text())
    assert not {"id", "version", "iteration"} & set(document)
    taken: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    ids = [panel["id"] for panel in panels(dashboard)]
    assert len(set(ids)) == len(ids)


def test_the_pages_lead_to_each_other() -> None:
    """Their links name addresses that exist."""
    documents = [json.loads(file.read_text()) for file in DASHBOARDS]
    assert len(documents) == 2
    links = {link["url"] for document in documents for link in document["links"]}
    assert links == {f"/d/{document['uid']}" for document in documents}
