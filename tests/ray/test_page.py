"""What docs/ray.md shows runs where Ray is."""

from tests.docs.markdown import ROOT, blocks


def test_the_blocks_of_the_page_run() -> None:
    shown = [block.text for block in blocks(ROOT / "docs" / "ray.md") if block.needs_ray]
    assert shown
    for text in shown:
        exec(compile(text, "ray.md", "exec"), {})
