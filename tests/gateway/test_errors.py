"""The tree of errors."""

from __future__ import annotations

from gateway import errors
from gateway.web.problems import STATUS


def leaves(kind: type[errors.TidegateError]) -> list[type[errors.TidegateError]]:
    below = kind.__subclasses__()
    return [leaf for each in below for leaf in leaves(each)] or [kind]


def test_every_error_has_its_own_code_and_http_number() -> None:
    """No leaf of the tree is forgotten; two never share a code."""
    answered = [leaf for leaf in leaves(errors.TidegateError) if leaf is not errors.ClientLeft]
    codes = [leaf.code for leaf in answered]
    assert len(codes) == len(set(codes))
    assert set(codes) < set(STATUS)


def test_the_drawing_is_the_tree() -> None:
    """The picture at the top of the module names every class."""
    for leaf in leaves(errors.TidegateError):
        assert leaf.__name__ in (errors.__doc__ or "")
