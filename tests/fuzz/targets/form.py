"""Forms: the same files whatever the chunks, within the caps; a form that was cut is never taken for a whole one."""

from __future__ import annotations

import random
from unittest.mock import patch

from multipart import parse_options_header

from gateway.web import body
from gateway.web.body import Upload
from tests.fuzz.bodies import SETTINGS, cut_up, read
from tests.fuzz.mutations import damaged, rearranged

TOKENS = (
    *(b"\r\n", b"\r", b"\n", b"\r\n\r\n", b"--", b'"', b"\\", b"%22", b";", b":", b" ", b"\t", b"\0", b"\xff"),
    *(b"--xBx", b"\r\n--xBx\r\n", b"\r\n--xBx--", b"\r\n--xB", b"x" * 1100, b"x" * 2100),
    *(b"Content-Disposition: ", b"form-data", b'; name="files"', b'name="top_k"', b'name="model"'),
    *(
        b'; filename="a.jpg"',
        b"; filename*=utf-8''%e2%82%ac",
        b"Content-Type: text/plain\r\n",
        b"Content-Length: 3\r\n",
    ),
)


class _Watched(body._Form):
    """Looks, after every event, at how much of the part is kept."""

    def take(self, event: object) -> None:
        super().take(event)
        assert sum(map(len, self._pieces)) <= SETTINGS.max_file_bytes
        assert len(self._files) <= SETTINGS.max_images


def _part(head: bytes, content: bytes) -> bytes:
    return b"--xBx\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + content + b"\r\n"


def seeds() -> list[bytes]:
    """A content type in the first line, and the body behind it."""
    files = [_part(b'name="files"; filename="a.jpg"', b"one\r\n--xB\r\n"), _part(b'name="image"', b"")]
    texts = [_part(b'name="top_k"', b"3"), _part(b'name="model"', b"ensemble_model")]
    bodies = [
        b"".join(files) + b"--xBx--\r\n",
        b"".join([*texts, *files]) + b"--xBx--",
        b"preamble\r\n" + files[0] + b"--xBx--\r\nepilogue",
        b"\r\n" + files[0] * 6 + b"--xBx--\r\n",
        _part(b'name="files"; filename="big"', b"\r" * 2100) + files[0] + b"--xBx--\r\n",
        _part(b"name=files; filename*=utf-8''caf%c3%a9.jpg\r\nContent-Type: image/jpeg\r\nX-Odd: 1\r\n 2", b"two")
        + b"--xBx--\r\n",
        _part(b'name="photo"; filename="x"', b"stranger") + b"--xBx--\r\n",
    ]
    odd = [b"multipart/form-data\n" + bodies[0], b'Multipart/Form-Data; boundary="xBx"; charset=utf-8\n' + bodies[1]]
    return [*(b"multipart/form-data; boundary=xBx\n" + each for each in bodies), *odd]


def mutate(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        data = b"--xBx".join(rearranged(data.split(b"--xBx"), rng))
    if rng.random() < 0.7:
        head, line, rest = data.partition(b"\n")
        data = head + line + damaged(rest, rng, TOKENS) if rng.random() < 0.95 else damaged(data, rng, TOKENS)
    return data


def check(data: bytes) -> None:
    with patch.object(body, "_Form", _Watched):
        _check(data)


def _check(data: bytes) -> None:
    head, _, form = data.partition(b"\n")
    content_type = head.decode("latin-1")
    if len(form) > SETTINGS.max_body_bytes:
        assert isinstance(read([form], content_type), str)
        return
    whole, *others = (read(chunks, content_type) for chunks in cut_up(form))
    assert all(other == whole for other in others), (whole, others)
    if isinstance(whole, Upload) and parse_options_header(content_type)[0] == "multipart/form-data":
        rng = random.Random(len(form))
        for end in {len(form) - 1, len(form) - rng.randrange(12), rng.randrange(len(form))}:
            assert read([form[:end]], content_type) in (whole, "malformed_request"), end
