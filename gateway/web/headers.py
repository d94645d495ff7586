"""Headers of every answer, against browsers that believe, keep or frame too much."""

from __future__ import annotations

SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
CACHE = {"Cache-Control": "no-store"}
"""Unless an answer says otherwise."""
