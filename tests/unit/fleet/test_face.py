"""The face of `kvbraid.fleet`: what it exports, and the example in its docstring."""

import doctest

from kvbraid import fleet


def test_the_example_in_the_docstring_is_what_happens() -> None:
    result = doctest.testmod(fleet)
    assert result.attempted > 5
    assert result.failed == 0


def test_the_face_exports_what_it_lists() -> None:
    assert fleet.__all__ == sorted(fleet.__all__)
    assert all(hasattr(fleet, name) for name in fleet.__all__)
