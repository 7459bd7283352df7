"""The tree of pages of an SGLang engine, for a test that sees what its events leave out.

A page is named by the prompt up to its end. Full-attention pages are published. What a silent
group keeps at them is not: the state at a page, or its entries of a window. A leaf goes with
everything at it, and is told of; an inner page can lose its state or entries, and get them again,
in silence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from kvbraid.events import AllBlocksCleared, BlockRemoved, BlockStored, Event

Page: TypeAlias = tuple[int, ...]
"""The letters of a prompt up to the end of a page, one letter for each page."""


@dataclass(kw_only=True)
class Tree:
    """One engine. `window_pages`: how many pages a window needs; None: the group keeps states."""

    random: Random
    page_size: int
    window_pages: int | None
    never_short: bool
    pages: set[Page] = field(default_factory=set)
    kept: set[Page] = field(default_factory=set)
    ends: set[Page] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)

    def full(self, prompt: Page) -> int:
        """The pages of a prompt that full attention holds."""
        held = (n for n in range(len(prompt), 0, -1) if prompt[:n] in self.pages)
        return next(held, 0)

    def hit(self, prompt: Page) -> int:
        """The pages of a prompt that the engine reuses."""
        full = self.full(prompt)
        return max((n for n in range(1, full + 1) if self._accepts(prompt, n, full)), default=0)

    def _accepts(self, prompt: Page, n: int, full: int) -> bool:
        if self.window_pages is None:
            return prompt[:n] in self.kept
        is_node_end = n == full or prompt[:n] in self.ends
        needed = range(max(0, n - self.window_pages) + 1, n + 1)
        return is_node_end and all(prompt[:m] in self.kept for m in needed)

    def run(self, prompt: Page) -> None:
        """A request: what it computes is inserted, in one piece or in two."""
        full = self.full(prompt)
        if full and self.random.random() < 0.5:
            self._keep(prompt[:full])  # The window or state is made again at the fork.
        self.ends.add(prompt[:full])
        cuts = [len(prompt)]
        if len(prompt) - full > 1 and self.random.random() < 0.5:
            cuts.insert(0, self.random.randrange(full + 1, len(prompt)))
        told = full
        for end in cuts:
            self.pages.update(prompt[:n] for n in range(full + 1, end + 1))
            self._keep(prompt[:end])
            if end == cuts[-1] or self.random.random() < 0.5:
                self._tell(prompt[:end], told)
                told = end

    def _keep(self, end: Page) -> None:
        """The state at an end, or its window: what was found and what was computed."""
        self.ends.add(end)
        first = len(end) if self.window_pages is None else len(end) - self.window_pages + 1
        self.kept.update(end[:n] for n in range(max(1, first), len(end) + 1))

    def _tell(self, prompt: Page, first: int) -> None:
        if len(prompt) == first:
            return
        self.events.append(
            BlockStored(
                block_hashes=tuple(name(prompt[:n]) for n in range(first + 1, len(prompt) + 1)),
                parent_block_hash=name(prompt[:first]) if first else None,
                token_ids=tuple(tokens(prompt[first:], self.page_size)),
                block_size=self.page_size,
                medium="GPU",
            )
        )

    def forget_in_silence(self) -> None:
        """The silent pool runs short: an inner page loses what it has."""
        inner = sorted(page for page in self.kept if self._children(page))
        if inner and not self.never_short:
            self.kept.discard(self.random.choice(inner))

    def evict(self) -> None:
        """A leaf goes, from its end up to the next end of a node, with all that is there."""
        leaves = sorted(page for page in self.pages if not self._children(page))
        if not leaves:
            return
        gone = [self.random.choice(leaves)]
        while len(above := gone[-1][:-1]) > 0 and not self._children(above) - {gone[-1]}:
            if above in self.ends:
                break
            gone.append(above)
        self.pages.difference_update(gone)
        self.kept.difference_update(gone)
        self.ends.difference_update(gone)
        self.random.shuffle(gone)
        self.events.append(BlockRemoved(block_hashes=tuple(map(name, gone)), medium="GPU"))

    def flush(self) -> None:
        """Everything goes."""
        for held in (self.pages, self.kept, self.ends):
            held.clear()
        self.events.append(AllBlocksCleared())

    def _children(self, page: Page) -> set[Page]:
        return {
            other for other in self.pages if len(other) == len(page) + 1 and other[:-1] == page
        }

    def take_events(self) -> Sequence[Event]:
        """The events since the last call."""
        taken, self.events = self.events, []
        return taken


def name(page: Page) -> int:
    """The engine's hash of a page."""
    number = 1
    for letter in page:
        number = number * 7 + letter + 1
    return number


def tokens(letters: Sequence[int], page_size: int) -> Iterator[int]:
    """The tokens of these pages."""
    for letter in letters:
        yield from range(100 * letter, 100 * letter + page_size)
