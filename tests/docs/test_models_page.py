"""docs/models.md says what the code says."""

from kvbraid.models import MODEL_TYPES

from tests.docs.models_page import END, PAGE, START, generated


def test_the_tables_of_the_models_page_are_what_the_code_prints() -> None:
    _, _, rest = PAGE.read_text().partition(START)
    shown, _, _ = rest.partition(END)
    assert shown == generated(), "run: python -m tests.docs.models_page"


def test_the_models_page_names_every_known_model_type() -> None:
    page = PAGE.read_text()
    assert [each for each in sorted(MODEL_TYPES) if f"`{each}`" not in page] == []
