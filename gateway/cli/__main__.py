"""`python -m gateway.cli` is the command `tidegate`."""

import sys

from gateway.cli import main

sys.exit(main())
