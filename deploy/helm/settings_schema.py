"""Writes the gateway's settings, from gateway/settings.py, into the schema of the chart's values.

    python deploy/helm/settings_schema.py [--check]

With `--check` nothing is written; exit code 1 when the schema is not up to date.
"""

import json
import sys
from pathlib import Path
from typing import Any

from gateway.settings import Settings

SCHEMA = Path(__file__).parent / "tidegate" / "values.schema.json"

CHARTS_OWN = {"host", "port", "triton_url", "shutdown_grace_s", "api_keys_file", "metrics_port"}
"""Set by the chart itself, because other parts of it depend on them."""
TLS = {name for name in Settings.model_fields if "tls_" in name}
"""Ends in front of the gateway here: probes and the chart's Triton speak none."""
OF_UP = {"model_repository", "triton_http_port", "triton_grpc_port", "triton_metrics_port"}
"""Of `tidegate up`, which no container runs."""
KEPT = ("type", "enum", "anyOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern")


def settings() -> dict[str, Any]:
    """The JSON schema of `gateway.settings`."""
    fields = Settings.model_json_schema()["properties"]
    return {
        name: {
            "description": " ".join(field.get("description", "").split()),
            **{key: field[key] for key in KEPT if key in field},
        }
        for name, field in fields.items()
        if name not in CHARTS_OWN | TLS | OF_UP
    }


def main(check: bool) -> int:
    """Writes or compares; the exit code."""
    before = SCHEMA.read_text()
    schema = json.loads(before)
    schema["properties"]["gateway"]["properties"]["settings"]["properties"] = settings()
    after = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    if check:
        return int(after != before)
    SCHEMA.write_text(after)
    return 0


if __name__ == "__main__":
    raise SystemExit(main("--check" in sys.argv[1:]))
