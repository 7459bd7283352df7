"""The tiny models that live tests start engines with are those that their script writes."""

from tests.tiny_models import FOLDER, files


def test_the_tiny_models_are_current() -> None:
    found = {p.relative_to(FOLDER).as_posix(): p for p in FOLDER.rglob("*") if p.is_file()}
    assert {name: path.read_text() for name, path in found.items()} == files(), (
        "run `python -m tests.tiny_models`"
    )
