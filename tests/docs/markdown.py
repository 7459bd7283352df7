"""The parts of a Markdown file that tests look at: fenced blocks, tables, links, words.

It reads only the subset our own pages use: fences of three backticks and inline links.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

UNSET = re.compile(r"^# (?=\[|\w+ = )", re.MULTILINE)
"""What stands before the settings of the example fleet.toml that are left out."""

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`]+`(?:, `[^`]+`)*")
_BEGINS_ANEW = re.compile(r"\s*(?:$|[-*] |\d+\. |[|#!]|<!--)")
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])[)*\"]*\s+")
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language tag (may be empty) and its text."""

    language: str
    text: str

    @property
    def needs_torch(self) -> bool:
        """Whether only `make test-torch` can run it."""
        return "kvbraid.layout.tensors" in self.text

    @property
    def needs_ray(self) -> bool:
        """Whether only `make test-ray` can run it."""
        return "kvbraid.integrations.ray" in self.text


def blocks(page: Path) -> Iterator[Block]:
    for match in _FENCE.finditer(page.read_text()):
        yield Block(match["language"], match["text"])


def commands(page: Path) -> Iterator[str]:
    """Every `$ command` line of the page's console blocks, without the prompt."""
    for block in blocks(page):
        if block.language == "console":
            for line in block.text.splitlines():
                if line.startswith("$ "):
                    yield line.removeprefix("$ ").strip()


def local_links(page: Path) -> Iterator[str]:
    """Link targets that name a file of the repository, without their anchors."""
    for match in _LINK.finditer(_FENCE.sub("", page.read_text())):
        target = match["target"].partition("#")[0]
        if target and "://" not in target and not target.startswith("mailto:"):
            yield target


def local_anchors(page: Path) -> Iterator[tuple[Path, str]]:
    """The headings of our own pages that a page links to: the page, and the heading's anchor."""
    for match in _LINK.finditer(_FENCE.sub("", page.read_text())):
        target, _, anchor = match["target"].partition("#")
        if anchor and "://" not in target:
            yield (page.parent / target if target else page), anchor


def anchors(page: Path) -> set[str]:
    """The anchors that a renderer gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}


def words_before_first_block(page: Path) -> int:
    return len(page.read_text().partition("```")[0].split())


def sentences(page: Path) -> Iterator[str]:
    """The sentences of a page, without its blocks, tables and headings.

    A piece of code, and a list of such pieces, is one word.
    """
    paragraphs = [""]
    for line in _FENCE.sub("\n", page.read_text()).splitlines():
        if _BEGINS_ANEW.match(line):
            paragraphs.append("")
        if not line.startswith(("|", "#", "!", "<!--")):
            paragraphs[-1] += re.sub(r"^\s*(?:[-*]|\d+\.) ", "", line).strip() + " "
    for paragraph in paragraphs:
        plain = _LINK.sub("]", _CODE.sub("`code`", paragraph)).strip()
        yield from filter(None, _END_OF_SENTENCE.split(plain))


def num_words(sentence: str) -> int:
    return sum(1 for word in sentence.split() if re.search(r"\w", word))


def guides() -> list[Path]:
    """The README, and the pages that users read."""
    return sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])


def pages() -> list[Path]:
    """Every Markdown page of the repository that people read."""
    return sorted(
        [
            *ROOT.glob("*.md"),
            *ROOT.glob("docs/**/*.md"),
            *ROOT.glob("bench/**/*.md"),
            *ROOT.glob("fuzz/*.md"),
            *ROOT.glob("tests/**/*.md"),
        ]
    )


def tables(page: str, heading: str) -> list[list[list[str]]]:
    """The tables below a heading, without their heads: rows of cells."""
    section = (DOCS / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"((?:^\|.*\|\n)+)", section + "\n", re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
        for table in found
    ]


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def firsts(rows: Iterable[list[str]]) -> list[str]:
    """What the first cells of a table name, in order."""
    return [code for row in rows for code in codes(row[0])]
