"""From a feed to labels, in one command: trains a classifier, serves it, and sorts a new feed with it.

    python examples/feed.py --train FEED_OR_TABLE --new FEED

Learns from a feed whose entries have categories, or from a table (.csv) with the columns label and title; publishes the
model into a model repository, starts a Triton that serves it and a gateway, and asks the gateway for each title of the
new feed. Both may be files or http and https addresses. All that it starts it stops. Without arguments it uses samples.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.text import TextOrder, build_text
from build_engines.text.feeds import Entry, read_feed
from build_engines.text.texts import Material
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, free_ports

EXAMPLES = Path(__file__).parent
SAMPLE, HELD_OUT = EXAMPLES / "texts" / "headlines.csv", EXAMPLES / "texts" / "held-out.csv"
MODEL = "text_classifier"
PATIENCE_S = 60.0


def main() -> int:
    """Returns the exit code: 0, or 1 after a sentence on standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default=str(SAMPLE), metavar="FEED_OR_TABLE")
    parser.add_argument("--new", default=str(EXAMPLES / "feeds" / "news.xml"), metavar="FEED")
    parser.add_argument("--repository", type=Path, help="where the model is kept (default: nowhere, it is forgotten)")
    options = parser.parse_args()
    try:
        new = Material.of(options.new, is_feed=True)
        entries = read_feed(new.content, new.name)
        with ExitStack() as stack:
            repository = options.repository or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            repository.mkdir(parents=True, exist_ok=True)
            valid = str(HELD_OUT) if options.train == str(SAMPLE) else None
            build_text(
                TextOrder(
                    train=options.train, valid=valid, drop_rare=True, model=MODEL, repository=repository, pin=True
                )
            )
            http, grpc, metrics, port = free_ports(4)
            log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "triton.log"
            triton = stack.enter_context(LocalTriton([repository], ports=Ports(http, grpc, metrics), log_file=log))
            triton.wait_ready()
            address = stack.enter_context(gateway(triton, port))
            show(entries, address)
    except (BuildError, LocalTritonError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


@contextmanager
def gateway(triton: LocalTriton, port: int) -> Iterator[str]:
    """A gateway in front of `triton`, as soon as it knows the model; its address."""
    settings = {"TRITON_URL": triton.url, "PORT": str(port), "DEFAULT_TEXT_MODEL": MODEL, "LOG_LEVEL": "error"}
    environment = {**os.environ, **{f"TIDEGATE_{name}": value for name, value in settings.items()}}
    process = subprocess.Popen([sys.executable, "-m", "gateway.cli", "serve"], env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + PATIENCE_S
        while not knows_model(address):
            if process.poll() is not None or time.monotonic() > until:
                raise LocalTritonError(f"The gateway does not serve {MODEL}. {triton.reasons()}")
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def knows_model(address: str) -> bool:
    """Whether the gateway is there and serves the model."""
    try:
        with urllib.request.urlopen(f"{address}/v1/models/{MODEL}", timeout=10) as answer:  # noqa: S310  # our own
            return bool(answer.status == 200)
    except OSError:
        return False


def show(entries: list[Entry], address: str) -> None:
    """Asks for each title by itself, and prints a line for each."""
    print(f"\n{'category':<16} {'probability':>11} {'ms':>6}  title, link")
    for entry in entries:
        body = json.dumps({"texts": [entry.title], "top_k": 1, "model": MODEL}).encode()
        request = urllib.request.Request(  # noqa: S310  # our own address
            f"{address}/v1/text/classify", data=body, headers={"Content-Type": "application/json"}
        )
        start = time.perf_counter()
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                result = json.load(answer)["results"][0]
        except urllib.error.HTTPError as error:  # such as a title that is empty
            result = {"error": {"code": json.load(error).get("code", error.code)}}
        milliseconds = 1000 * (time.perf_counter() - start)
        if "error" in result:
            print(f"{'-':<16} {'-':>11} {milliseconds:>6.1f}  {entry.title}  {entry.link} ({result['error']['code']})")
            continue
        best = result["predictions"][0]
        print(f"{best['label']:<16} {best['probability']:>11.3f} {milliseconds:>6.1f}  {entry.title}  {entry.link}")


if __name__ == "__main__":
    sys.exit(main())
