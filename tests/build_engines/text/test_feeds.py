from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from build_engines.errors import TextSetError
from build_engines.text import feeds
from build_engines.text.feeds import Entry, fetch, public_address, read_feed
from build_engines.text.texts import Material, Text
from tests.servers import ROOT

RSS = """\
<rss version="2.0"><channel><title>t</title>
<item><title>Oil &amp;amp; gas &lt;b&gt;up&lt;/b&gt;</title><link>https://example.org/1</link>
<description>Prices   rise &lt;img src="x"/&gt; again</description>
<category> Business </category><category>Energy</category></item>
<item><title>No category</title></item></channel></rss>"""
ATOM = """\
<feed xmlns="http://www.w3.org/2005/Atom"><title>t</title>
<entry><title>Caf\u00e9</title><link href="https://example.org/2"/><category term="Food"/>
<content type="html">&lt;p&gt;Coffee&lt;/p&gt;</content></entry></feed>"""


class Origin(BaseHTTPRequestHandler):
    """Answers with what the tests put into `pages`: a body, or where to go instead."""

    pages: ClassVar[dict[str, bytes | str]] = {}

    def do_GET(self) -> None:
        page = self.pages.get(self.path)
        if isinstance(page, str):
            self.send_response(302)
            self.send_header("Location", page)
            self.end_headers()
            return
        self.send_response(404 if page is None else 200)
        self.end_headers()
        self.wfile.write(page or b"")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """The address of a server of `Origin.pages`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Origin)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_entries_of_rss_and_atom() -> None:
    """Plain text without tags and entities, the link, and the first category."""
    first, second = read_feed(RSS.encode(), "news.rss")
    assert first == Entry("Oil & gas up", "Prices rise again", "https://example.org/1", "Business")
    assert second == Entry("No category", "", "", "")
    assert read_feed(ATOM.encode(), "a") == [Entry("Caf\u00e9", "Coffee", "https://example.org/2", "Food")]


def test_only_entries_with_a_category_are_learnt_from(tmp_path: Path) -> None:
    """The others have nothing to teach; for features they count, too."""
    path = tmp_path / "news.xml"
    path.write_text(RSS)
    material = Material.of(str(path))
    texts = material.texts((), None, needs_labels=True)
    assert texts.texts == (Text(("Oil & gas up", "Prices rise again"), "Business"),)
    assert len(material.texts(("title",), None, needs_labels=False)) == 2
    with pytest.raises(TextSetError, match="A feed has the columns title and text, not body"):
        material.texts(("body",), None, needs_labels=True)
    path.write_text(RSS.replace("category", "other"))
    with pytest.raises(TextSetError, match="None of the 2 entries"):
        Material.of(str(path)).texts((), None, needs_labels=True)


def test_what_is_no_feed_is_refused() -> None:
    """Other files, a feed without entries, and one that would grow when it is read."""
    lines = [f'<!ENTITY e{k} "{f"&e{k - 1};" * 10}">' for k in range(1, 10)]
    bomb = f'<!DOCTYPE r [<!ENTITY e0 "{"x" * 100}">{"".join(lines)}]>'
    for content in (b"", b"label,title\n", b"\xff\xd8\xff", b"<rss version='2.0'><channel></channel></rss>"):
        with pytest.raises(TextSetError, match="no RSS or Atom feed"):
            read_feed(content, "x")
    for entry in read_feed(f"{bomb}{RSS.replace('Oil', '&e9;')}".encode(), "x"):
        assert len(entry.title) < 1000
    stolen = f'<!DOCTYPE r [<!ENTITY e SYSTEM "file://{ROOT}/LICENSE">]>{RSS.replace("Oil", "&e;")}'
    assert all("Apache" not in entry.title for entry in read_feed(stolen.encode(), "x"))


def test_a_feed_is_fetched(origin: str) -> None:
    """Over http, and after a redirect; its name keeps nothing that may be secret."""
    Origin.pages = {"/feed?key=1": RSS.encode(), "/old": "/feed?key=1"}
    assert Material.of(f"{origin}/feed?key=1") == Material(f"{origin}/feed", RSS.encode(), is_feed=True)
    assert fetch(f"{origin}/old") == RSS.encode()
    assert public_address("https://me:word@example.org:8443/a?b#c") == "https://example.org:8443/a"


def test_nothing_else_is_fetched(origin: str, tmp_path: Path) -> None:
    """No files and no other protocols, neither asked for nor after a redirect; no answer that is none."""
    secret = tmp_path / "secret"
    secret.write_text("word")
    Origin.pages = {"/file": f"file://{secret}", "/ftp": "ftp://127.0.0.1/x", "/loop": "/loop"}
    for address in (f"file://{secret}", "ftp://127.0.0.1/x", "gopher://x", "http://[", "http:///x"):
        with pytest.raises(TextSetError, match=r"no http or https address|no address|cannot be fetched"):
            fetch(address)
    for page in ("/file", "/ftp", "/loop", "/missing"):
        with pytest.raises(TextSetError, match="cannot be fetched"):
            fetch(f"{origin}{page}")


def test_a_feed_without_end_is_refused(origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes than a feed has, or more time than one takes, end it."""
    Origin.pages = {"/large": b"x" * 200_000}
    monkeypatch.setattr(feeds, "MAX_BYTES", 100_000)
    with pytest.raises(TextSetError, match="larger than"):
        fetch(f"{origin}/large")
    with pytest.raises(TextSetError, match="larger than"):
        read_feed(b"x" * 200_000, "x")
    monkeypatch.setattr(feeds, "TOTAL_S", 0.0)
    Origin.pages = {"/small": b"x"}
    with pytest.raises(TextSetError, match="took longer"):
        fetch(f"{origin}/small")
