"""Parts of a real stack are killed, stopped and started again under load: `python -m tests.chaos`."""
