"""The configs that live tests start engines with are those that their script writes."""

from tests.tiny_models import FOLDER, OWN, config_of


def test_the_tiny_models_are_current() -> None:
    assert {folder.name for folder in FOLDER.iterdir()} == set(OWN)
    for name in OWN:
        text = (FOLDER / name / "config.json").read_text()
        assert text == config_of(name), "run `python -m tests.tiny_models`"
