"""How each kind of group holds its blocks: what it skips, needs, adopts and takes, per request.

Kinds differ little: attention skips blocks that it no longer reads; a state group holds the
running state, the one before it and blocks for draft tokens; a ring holds one block; cross
attention holds the encoder's output once. A group decides neither what a hit is nor what is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from kvbraid.cache import GroupOptions
from kvbraid.spec import GroupSpec, SpecKind

from tests.reference.cache_pool import NULL, Key, Pool, WouldWipeError

UNSHARED = {SpecKind.CROSS_ATTENTION, SpecKind.ENCODER_ONLY_ATTENTION}


@dataclass
class Table:
    """One request's blocks of one group. `blocks[j]` covers tokens from j * block size."""

    blocks: list[int] = field(default_factory=list)
    committed: int | None = None  # Leading blocks that were made findable; None: not yet asked.
    tail: tuple[int, int] | None = None  # A shared block and its place, to be copied on write.
    has_run: bool = False  # State groups: it took blocks of its own.
    state_before: int | None = None  # State groups: where the state before the running one is.
    retired: int = 0  # State groups: leading blocks that were given back.
    checkpoint: tuple[int, int] | None = None  # State groups: tokens and place of a state saved
    # on the way by the step at hand.


@dataclass(frozen=True)
class Start:
    """Where a request stands when it asks: `hits` are the blocks of its local hit."""

    hits: Sequence[int]
    num_local_tokens: int
    num_external_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_local_tokens + self.num_external_tokens


@dataclass(frozen=True)
class Reach:
    """How far a request wants to get; only `num_tokens` includes draft tokens still to come."""

    num_tokens: int
    num_main_tokens: int
    num_encoder_tokens: int


@dataclass
class Group:
    """An attention group; pending copies and zeroes are its own, as an engine collects them."""

    index: int
    spec: GroupSpec
    options: GroupOptions
    cap: int | None = None  # Blocks that admission counts at most, as skipped ones come back.
    copies: list[tuple[int, int]] = field(default_factory=list)
    zeroes: list[int] = field(default_factory=list)
    this_step: set[Key] = field(default_factory=set)  # State groups: keys of the step under way.

    def __deepcopy__(self, _memo: dict[int, object]) -> Self:
        return replace(
            self, copies=[*self.copies], zeroes=[*self.zeroes], this_step={*self.this_step}
        )

    @property
    def is_shared(self) -> bool:
        return self.spec.prefix_cacheable and self.spec.kind not in UNSHARED

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.spec.block_size)

    def skipped_tokens(self, num_tokens: int) -> int:
        """Leading tokens that nothing after `num_tokens` computed tokens reads."""
        if self.spec.kind.is_window and self.spec.window is not None:
            kept = self.spec.window - 1 + self.options.extra_retained_tokens
            return max(0, num_tokens - kept)
        if self.spec.kind is SpecKind.CHUNKED_LOCAL_ATTENTION and self.spec.chunk is not None:
            return num_tokens // self.spec.chunk * self.spec.chunk
        return 0

    def skipped(self, num_tokens: int) -> int:
        return self.skipped_tokens(num_tokens) // self.spec.block_size

    def is_inside_a_block(self, hits: Sequence[int], start: Start) -> bool:
        return bool(hits) and start.num_local_tokens % self.spec.block_size != 0

    def num_needed(
        self, pool: Pool, table: Table, start: Start, reach: Reach, *, admission: bool
    ) -> int:
        """Free blocks that a step takes: new ones, and hits that nobody references."""
        wanted = self.blocks_for(reach.num_tokens)
        if admission and self.cap is not None:
            wanted = min(wanted, self.cap)
        if table.committed is not None:
            return max(0, wanted - len(table.blocks))
        skipped = self.skipped(start.num_tokens)
        new = max(0, wanted - max(skipped, len(start.hits) + len(table.blocks)))
        hits = start.hits[max(0, skipped - len(table.blocks)) :]
        return new + num_free(pool, hits) + self.is_inside_a_block(start.hits, start)

    def adopt(self, pool: Pool, table: Table, start: Start) -> None:
        """Reference the hit; places that are skipped already stay empty."""
        skipped = self.skipped(start.num_tokens)
        hits = start.hits[skipped:]
        for block in hits:
            if block != NULL:
                pool.touch(block)
        table.blocks = [NULL] * skipped + list(hits)
        table.committed = len(table.blocks)
        if self.is_inside_a_block(hits, start):
            place = start.num_local_tokens // self.spec.block_size
            table.tail, table.committed = (place, hits[-1]), place

    def adopt_external(self, pool: Pool, table: Table, start: Start, *, is_loading: bool) -> None:
        """Take blocks for tokens that somebody else computed, as far as they are still read.

        What a load fills is not zeroed: the load may come first.
        """
        if self.skipped_tokens(start.num_tokens) >= start.num_tokens:
            return
        wanted = self.blocks_for(start.num_tokens)
        self._append(pool, table, wanted - len(table.blocks), is_zeroed=not is_loading)

    def extend(self, pool: Pool, table: Table, reach: Reach) -> list[int]:
        """Take the blocks of a step and return them; a shared tail is replaced by its copy."""
        copied = []
        if table.tail is not None:
            place, source = table.tail
            table.tail = None
            copied = pool.take(1)
            self.copy_on_write(pool, table, place, source, copied[0])
            self.zeroes += copied
        return copied + self._append(
            pool, table, self.blocks_for(reach.num_tokens) - len(table.blocks)
        )

    def copy_on_write(self, pool: Pool, table: Table, place: int, source: int, copy: int) -> None:
        """The request goes on in the copy; both ends are held until the copy has run."""
        assert table.blocks[place] == source
        table.blocks[place] = copy
        self.copies.append((source, copy))
        pool.touch(copy)

    def _append(
        self, pool: Pool, table: Table, count: int, *, is_zeroed: bool = True
    ) -> list[int]:
        new = pool.take(max(0, count))
        table.blocks += new
        if self.options.needs_zeroing and is_zeroed:
            self.zeroes += new
        return new

    def unwritten(self, table: Table, start_token: int) -> list[int]:
        """The blocks that a failed load left without content from a token on."""
        place, rest = divmod(start_token, self.spec.block_size)
        if rest:
            raise WouldWipeError
        return [block for block in table.blocks[place:] if block != NULL]

    def retire(self, pool: Pool, table: Table, num_processed_tokens: int) -> None:
        """Give back what is skipped, the last first, up to what was given back before."""
        freed = []
        for j in reversed(range(min(self.skipped(num_processed_tokens), len(table.blocks)))):
            if table.blocks[j] == NULL:
                break
            freed.append(table.blocks[j])
            table.blocks[j] = NULL
        pool.release(freed)


class Ring(Group):
    """A circular buffer: one block from the first step to the last."""

    def num_needed(
        self, pool: Pool, table: Table, start: Start, reach: Reach, *, admission: bool
    ) -> int:
        return int(not table.blocks)

    def adopt(self, pool: Pool, table: Table, start: Start) -> None:
        pass

    def adopt_external(self, pool: Pool, table: Table, start: Start, *, is_loading: bool) -> None:
        self._append(pool, table, 1 - len(table.blocks), is_zeroed=not is_loading)

    def unwritten(self, table: Table, start_token: int) -> list[int]:
        return table.blocks

    def extend(self, pool: Pool, table: Table, reach: Reach) -> list[int]:
        return self._append(pool, table, 1 - len(table.blocks))

    def retire(self, pool: Pool, table: Table, num_processed_tokens: int) -> None:
        pass


class Cross(Group):
    """Cross attention: blocks for the encoder's tokens, whatever the decoder does."""

    def num_needed(
        self, pool: Pool, table: Table, start: Start, reach: Reach, *, admission: bool
    ) -> int:
        return max(0, self.blocks_for(reach.num_encoder_tokens) - len(table.blocks))

    def adopt(self, pool: Pool, table: Table, start: Start) -> None:
        pass

    def adopt_external(self, pool: Pool, table: Table, start: Start, *, is_loading: bool) -> None:
        pass

    def unwritten(self, table: Table, start_token: int) -> list[int]:
        return []

    def extend(self, pool: Pool, table: Table, reach: Reach) -> list[int]:
        count = self.blocks_for(reach.num_encoder_tokens) - len(table.blocks)
        return self._append(pool, table, count)


class State(Group):
    """A state is one block, whatever it covers; draft tokens have blocks after it.

    0 0 s | d d       running state s, two blocks for drafts
    0 0 s 0 0 n | d d after three more blocks of tokens: s is read once more, then given back
    0 0 s 0 c n | d d the same, and the backend saved a state on the way
    """

    def skipped_tokens(self, num_tokens: int) -> int:
        return max(0, num_tokens - 1)

    def num_needed(
        self, pool: Pool, table: Table, start: Start, reach: Reach, *, admission: bool
    ) -> int:
        drafts = self.options.num_speculative_blocks
        is_copied = self.is_inside_a_block(start.hits, start) or table.tail is not None
        new = self.blocks_for(reach.num_main_tokens) + drafts
        new -= len(start.hits) + len(table.blocks)
        if is_copied:
            new = max(0, new) + 1
        most = 1 + is_copied + bool(table.checkpoint) + (0 if table.has_run else drafts)
        return min(new, most) + num_free(pool, start.hits)  # Below 0: it has some to spare.

    def extend(self, pool: Pool, table: Table, reach: Reach) -> list[int]:
        drafts, before = self.options.num_speculative_blocks, len(table.blocks)
        state = self.blocks_for(reach.num_main_tokens) - 1  # The place of the new state.
        if state + 1 + drafts <= before and table.tail is None and table.checkpoint is None:
            table.has_run = True
            return []
        if table.has_run:
            table.state_before = before - 1 - drafts
        elif before:
            table.state_before = before - 1
        empty = state - 1 if table.checkpoint else state  # Up to where nothing is written.
        table.blocks += [NULL] * (empty - before)
        if table.has_run:
            for place in range(before - drafts, min(before, empty)):
                table.blocks.append(table.blocks[place])  # Nothing is in it: it moves along.
                table.blocks[place] = NULL
        moved = table.blocks[before:]
        count = max(0, state + 1 + drafts - len(table.blocks))
        copied = self._copy_tail(pool, table)
        new = pool.take(count)
        table.blocks += new
        table.has_run = True
        return copied + moved + new

    def _copy_tail(self, pool: Pool, table: Table) -> list[int]:
        """Keep the checkpoint inside the last block from being overwritten.

        A request that starts on somebody's checkpoint goes on in a copy. One that runs cannot
        change its table, so the copy becomes the checkpoint.
        """
        if table.tail is None:
            return []
        (place, source), copies = table.tail, pool.take(1)
        table.tail = None
        if not table.has_run:
            self.copy_on_write(pool, table, place, source, copies[0])
            return copies
        pool.move_keys(source, copies[0])
        self.copies.append((source, copies[0]))
        pool.touch(source)
        moved = pool.own_key(copies[0])
        if moved is not None:
            self.this_step.add(moved)
        return []

    def retire(self, pool: Pool, table: Table, num_processed_tokens: int) -> None:
        last = min(self.skipped(num_processed_tokens), len(table.blocks))
        if last > table.retired:
            held = [j for j in reversed(range(table.retired, last)) if table.blocks[j] != NULL]
            freed = [table.blocks[j] for j in held]
            for j in held:
                table.blocks[j] = NULL
            pool.release(freed)
            table.retired = last
        place = table.state_before
        if place is None or place >= self.blocks_for(num_processed_tokens) - 1:
            return
        if table.blocks[place] != NULL:
            pool.release([table.blocks[place]])
            table.blocks[place] = NULL


def num_free(pool: Pool, blocks: Sequence[int]) -> int:
    return sum(pool.is_free(block) for block in blocks)
