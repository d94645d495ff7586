"""`healthcheck.py URL` ends with 0 when URL answers 200 within 5 s: the images have no curl."""

import sys
import urllib.request

try:
    with urllib.request.urlopen(sys.argv[1], timeout=5) as answer:  # noqa: S310  # the images' own address
        sys.exit(answer.status != 200)
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error}")
