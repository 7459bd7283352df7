"""What the pages promise holds: links lead somewhere, commands exist, Python blocks run."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kvbraid.sim.captures.read import read_capture
from kvbraid.sim.captures.replay import ReplayOptions, replay

from tests.captures import FIXTURES
from tests.docs.markdown import (
    ROOT,
    anchors,
    blocks,
    commands,
    guides,
    local_anchors,
    local_links,
    num_words,
    pages,
    sentences,
    words_before_first_block,
)

README = ROOT / "README.md"


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    missing = [link for link in local_links(page) if not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_every_link_to_a_heading_leads_to_one(page: Path) -> None:
    assert [
        anchor for target, anchor in local_anchors(page) if anchor not in anchors(target)
    ] == []


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_every_make_target_shown_exists(page: Path) -> None:
    for command in commands(page):
        program, *arguments = shlex.split(command)
        if program == "make":
            assert arguments[0] in make_targets(), command


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_python_blocks_run(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python" and not (block.needs_torch or block.needs_ray):
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", block.text],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"{block.text}\n{done.stderr}"


def test_the_readme_opens_with_demo_and_test() -> None:
    assert list(commands(README))[:2] == ["make demo", "make test"]
    assert words_before_first_block(README) <= 60
    assert len(README.read_text().splitlines()) <= 120


def test_the_readme_shows_what_its_programs_print() -> None:
    (program,) = (block.text for block in blocks(README) if block.language == "python")
    (answer,) = (block.text for block in blocks(README) if block.language == "json")
    assert len([line for line in program.splitlines() if line]) <= 12
    scored = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, timeout=300)
    assert json.loads(scored) == json.loads(answer)


def test_the_figures_of_the_readme_are_those_of_the_replays_that_it_shows() -> None:
    shown = [command for command in commands(README) if command.startswith("kvbraid replay")]
    names = re.findall(r"\w+", shown[0].partition("{")[2])
    captures = [read_capture(FIXTURES / name) for name in names]
    sources = {
        json.loads((FIXTURES / name / "config.json").read_text())["source"] for name in names
    }
    assert sources == {"real model execution on CPU"}
    shortcut, ours = (
        [replay(capture, ReplayOptions(presence=presence)) for capture in captures]
        for presence in ("full-only", "count")
    )
    asked, exact = (sum(getattr(report, n) for report in ours) for n in ("requests", "exact"))
    opening = " ".join(README.read_text().partition("```")[0].split())
    over, promised, predicted, reused = (
        sum(getattr(report, name) for report in reports)
        for reports, name in (
            (shortcut, "over"), (shortcut, "lower_sum"), (ours, "lower_sum"), (ours, "true_sum"),
        )
    )  # fmt: skip
    body = " ".join(README.read_text().split())
    told = f"In tokens, {reused:,} were reused: the shortcut promised {promised:,}, kvbraid"
    assert f"{told} {predicted:,}.".replace(",", " ") in body.replace(",", " ")
    assert f"on {asked} recorded vLLM lookups it promised too much in {over}." in opening
    assert f"kvbraid was right in {exact}." in opening
    assert asked - exact == sum(report.excused for report in ours) == 1


@pytest.mark.parametrize("row", ["body_bytes", "hash_block_size", "block_size", "[server]"])
def test_a_setting_stands_in_one_table(row: str) -> None:
    """What stands twice is changed once: the topology, the limits, fleet.toml."""
    first = re.compile(rf"^(?:\| `(?:limits\.)?{row}`|{re.escape(row)}$)", re.MULTILINE)
    assert len([page for page in pages() if first.search(page.read_text())]) == 1


def test_the_index_of_the_pages_leads_to_each_of_them() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in local_links(index)}
    reached = {
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/engines/*.md"),
        *ROOT.glob("bench/**/*.md"),
    }
    assert reached - linked == {index}


def test_the_changelog_is_one_page() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", guides(), ids=page_name)
def test_a_sentence_of_a_guide_has_at_most_35_words(page: Path) -> None:
    assert [sentence for sentence in sentences(page) if num_words(sentence) > 35] == []


def test_a_sentence_is_counted_as_it_is_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A b\n\nOne (`x y.z`) and\n[two](a.md). kv: 0.5 is\nthree\n- four `a`, `b`\n| no |\n"
    )
    assert [(num_words(sentence), sentence) for sentence in sentences(page)] == [
        (4, "One (`code`) and [two]."),
        (4, "kv: 0.5 is three"),
        (2, "four `code`"),
    ]


def test_continuous_integration_runs_the_readme_commands() -> None:
    """`make ci` depends on `make test`, the README's own test command."""
    assert re.search(r"^ci:.*\btest\b", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "make ci" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(("target", "compiles"), [("demo", "uv build"), ("test", "cargo test")])
def test_without_a_cargo_rust_is_set_up_before_anything_compiles(
    tmp_path: Path, target: str, compiles: str
) -> None:
    for name in ("sh", "sed", "find", "python3"):
        program = shutil.which(name)
        assert program is not None
        (tmp_path / name).symlink_to(program)
    planned = subprocess.run(
        [shutil.which("make") or "make", "--dry-run", "--always-make", target],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert 0 < planned.find("-m puccinialin") < planned.find(compiles)


def test_continuous_integration_tries_a_machine_without_rust() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^ci:.*\btest-bare\b", makefile, re.MULTILINE)
    recipe = makefile.partition("\ntest-bare:")[2].partition("\n\n")[0]
    assert "env -i HOME=$(CURDIR)/.venv-bare/home PATH=/usr/bin:/bin" in recipe


def test_make_help_lists_every_target() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {line.split()[1] for line in listed.stdout.splitlines()} == make_targets()
