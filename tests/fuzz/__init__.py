"""Proof by search: each module of `targets` states promises as asserts, and a fuzzer looks for bytes that break them.

`python -m tests.fuzz` searches with atheris, `test_fuzz.py` tries a few thousand inputs without it.
"""
