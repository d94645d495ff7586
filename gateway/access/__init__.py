"""Who may call, and how much: keys, rates, and the addresses of callers behind proxies.

    headers ──► keys: whose key is it ──► Caller ──► rates: one image at the door, the rest after the body
    address ──► callers: behind our proxies? ─┘

Nothing here knows HTTP: `gateway.web.access` reads the headers and gives the answers.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_MODEL = "\0"
"""A name that no model can have."""


@dataclass(frozen=True)
class Caller:
    """Who asks. `identity` is what rates and fairness count: `key:…` or `address:…`, never a metric label.

    `key` is the name of its API key, None without one. `models` are those that there are for it; None: all.
    """

    identity: str
    key: str | None = None
    models: frozenset[str] | None = None

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models

    def asked_model(self, name: str | None, default: str) -> str:
        """The name to look up. One outside of its models becomes a name that no model has, and goes the same way."""
        name = name or default
        return name if self.may_use(name) else NO_MODEL
