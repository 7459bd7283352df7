"""The figures of docs/engines are those of the replays, wherever the captures are."""

import pytest

from tests.docs.engines_pages import PAGES, Row, rows_of

ROWS = [
    pytest.param(engine, number, row, id=f"{engine}-{number}-{row.capture}")
    for engine, (_, rows) in PAGES.items()
    for number, row in enumerate(rows)
]


@pytest.mark.parametrize("engine", PAGES)
def test_every_recorded_life_has_its_row(engine: str) -> None:
    folder, rows = PAGES[engine]
    listed = rows_of(engine)
    assert len(listed) == len(rows)
    assert all(f"`{row.capture}`" in line for row, line in zip(rows, listed, strict=True))
    lives = {config.parent.name for config in folder.glob("*/config.json")}
    assert lives <= {row.capture for row in rows}


@pytest.mark.parametrize(("engine", "number", "row"), ROWS)
def test_a_figure_is_what_the_replay_says(engine: str, number: int, row: Row) -> None:
    folder, _ = PAGES[engine]
    if not (folder / row.capture).is_dir():
        pytest.skip("needs ../shared/captures")
    assert rows_of(engine)[number] == row.told(folder)
