"""The page at `/`: try the gate in a browser. Static files, no request to any other host."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

from gateway.web import openapi

router = APIRouter(tags=["page"], default_response_class=Response)

_FOLDER = Path(__file__).parent
_TYPES = {"index.html": "text/html", "page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}
_FILES = {name: (_FOLDER / name).read_bytes() for name in _TYPES}


def _file(name: str) -> Response:
    return Response(_FILES[name], media_type=_TYPES[name], headers=_HEADERS)


@router.get(
    "/",
    summary="Try it in a browser",
    responses=openapi.responses("text/html", "<!doctype html>…", headers=["Content-Security-Policy"]),
)
async def index() -> Response:
    """The page; its style, script and icon come from here too."""
    return _file("index.html")


@router.get("/page.css", include_in_schema=False)
async def css() -> Response:
    return _file("page.css")


@router.get("/page.js", include_in_schema=False)
async def js() -> Response:
    return _file("page.js")


@router.get("/icon.svg", include_in_schema=False)
async def icon() -> Response:
    return _file("icon.svg")
