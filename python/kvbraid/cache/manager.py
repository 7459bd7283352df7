"""The cache that an engine calls, step by step. A thin face of the native core.

Its law: a block belongs to one numbering for all groups, is free or referenced, and is found by
its group and the hash of the whole prefix that it ends. A request reuses the longest boundary
that every group accepts; while it runs, groups give back what is read no more; what is stored,
evicted and cleared is recorded as the engine's own events. Every call either does what it says or
raises and changes nothing. Safe to call from any thread.
"""

from array import array
from collections.abc import Sequence
from dataclasses import asdict, replace

from kvbraid._native import CacheCore
from kvbraid.cache.chunk import Position, chunk_rules
from kvbraid.cache.config import CacheConfig
from kvbraid.cache.counts import check_counts
from kvbraid.cache.debug import CacheDebug
from kvbraid.cache.events import Events
from kvbraid.cache.pool import BlockPool
from kvbraid.cache.retention import checkpoint_interval
from kvbraid.cache.statistics import Starts, Statistics
from kvbraid.cache.step import (
    NO_MATCH,
    Allocation,
    KeptState,
    Labels,
    Match,
    Need,
    Work,
)
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys, Tokens
from kvbraid.ids import BlockId


class CacheManager:
    """Blocks and requests of one engine. The methods stand in the order of a step:

        request = cache.add(prompt)             # A request comes.
        match = cache.match(request)            # What it can reuse.
        chunk = cache.plan_chunk(request, budget, match=match)

        cache.start_step()                      # The step before has run.
        need = Need(request=request, num_new_tokens=chunk, num_hit_tokens=match.num_tokens)
        cache.allocate([need])                  # Its blocks for the step.
        cache.decode(running, tokens)           # One more token for each that decodes.
        work = cache.take_work()                # What to copy and to zero before the step runs.
        events = cache.take_events()            # What to publish.

        cache.extend(request, [token])          # The step sampled a token.
        cache.release([request])                # The request is done.

    `pool` has single blocks by hand, for connectors; `debug` what tests look at.

    Raises:
        InvalidValueError: A configuration that cannot work; the message names the group, the rule
            and the remedy.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.num_groups = len(config.topology.groups)
        self._core = CacheCore(config)
        self._chunk_rules = chunk_rules(
            config.topology,
            dialect=config.dialect,
            interval=checkpoint_interval(config.retention),
            checkpoint_alignment=config.checkpoint_alignment,
            partial_junctions=config.partial_junctions,
        )
        self.pool = BlockPool(self._core, num_blocks=config.num_blocks, num_groups=self.num_groups)
        self.debug = CacheDebug(self._core, num_groups=self.num_groups)

    # A request comes.

    def add(
        self,
        tokens: Tokens,
        *,
        num_prompt_tokens: int | None = None,
        extra: ExtraKeys = NO_EXTRA_KEYS,
        lora_id: int | None = None,
        session_id: str | None = None,
        block_hashes: Sequence[bytes] | None = None,
    ) -> int:
        """Make a request known; return the number by which every other call takes it.

        Args:
            tokens: All of its tokens so far.
            num_prompt_tokens: How many of them are the prompt; None: all.
            extra: What separates its cache from that of the same tokens.
            lora_id: The engine's number of the adapter, for events.
            session_id: For events.
            block_hashes: As the engine computed them, one per hash block; None: computed here.

        Raises:
            InvalidValueError: No token, or hashes that do not fit the tokens.
        """
        if num_prompt_tokens is None:
            num_prompt_tokens = len(tokens)  # type: ignore[arg-type]
        check_counts(num_prompt_tokens=num_prompt_tokens)
        return self._core.add(
            tokens,
            num_prompt_tokens,
            extra,
            Labels(lora_id, session_id),
            block_hashes,
        )

    def match(self, request: int) -> Match:
        """Return how much the request can reuse now. Changes nothing.

        Raises:
            UnknownError: The request is not known.
        """
        return Match(*self._core.match(request))

    def hit_blocks(self, request: int, num_tokens: int) -> list[list[BlockId]]:
        """Return the blocks of a hit, group by group: what `allocate` would adopt.

        Raises:
            UnknownError: The request is not known.
            NotHeldError: The hit is not held.
        """
        return self._core.hit_blocks(request, num_tokens)

    def plan_chunk(
        self,
        request: int,
        budget: int,
        *,
        match: Match = NO_MATCH,
        max_chunk_tokens: int | None = None,
    ) -> int:
        """Return how many tokens to compute next, so that a state or a junction can be kept.

        Args:
            request: The request.
            budget: Tokens that the step has left.
            match: Of a request that starts now.
            max_chunk_tokens: The largest budget that a step can have; None: this one.

        Raises:
            UnknownError: The request is not known.
        """
        computed, num_prompt_tokens, num_tokens, junction = self._core.progress(request)
        start = computed + match.num_tokens
        position = Position(
            start=start,
            num_prompt_tokens=num_prompt_tokens,
            num_tokens=num_tokens,
            budget=min(budget, num_tokens - start),
            junction=match.junction or junction,
        )
        rules = self._chunk_rules
        if max_chunk_tokens is not None:
            rules = replace(rules, max_chunk_tokens=max_chunk_tokens)
        return rules.plan(position)

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Return whether a request of so many tokens fits into the empty pool."""
        return self._core.blocks_for(num_tokens) < self.config.num_blocks

    # A step.

    def start_step(self) -> None:
        """Begin a step: the one before has run.

        Others may resume from its states, and the ends of the copies that were taken for it are
        freed.
        """
        self._core.start_step()

    def blocks_needed(self, need: Need, *, is_admission: bool = False) -> int:
        """Return how many free blocks `allocate` would take, those of the hit included.

        Negative where the request has some to spare, and more than there are where it has to wait
        for the next step. Changes nothing.

        Args:
            need: What the request asks; it may ask for nothing new.
            is_admission: As if a group never held more than it reserves.

        Raises:
            UnknownError: The request is not known.
            NotHeldError: A hit that is not held.
        """
        check_counts(**asdict(need))
        return self._core.blocks_needed(need, is_admission)

    def allocate(self, needs: Sequence[Need], *, reserved_blocks: int = 0) -> Allocation:
        """Allocate for many requests in order; stop at the first that does not fit.

        Each one gives back what it reads no more, adopts its hit (all groups pin theirs before
        any allocates), gets its new blocks, and has its computed blocks registered.

        Args:
            needs: One per request.
            reserved_blocks: Free blocks to leave to others.

        Raises:
            UnknownError: A request is not known.
            NotHeldError: A hit that is no longer held: match again.
            InvalidValueError: A request for nothing, or the same request twice. As with every
                error, nothing has changed.
        """
        try:
            done = self._core.allocate(needs, reserved_blocks)
        except (OverflowError, TypeError):
            for need in needs:
                check_counts(**asdict(need))
            check_counts(reserved_blocks=reserved_blocks)
            raise
        return self._allocation(*done)

    def decode(self, requests: Sequence[int], tokens: Tokens) -> Allocation:
        """Append one token to each request, then allocate for it: a decoding step in one call.

        Raises:
            UnknownError: A request is not known; nothing has changed.
            InvalidValueError: Not one token for each request.
        """
        return self._allocation(*self._core.decode(requests, tokens))

    def blocks(self, request: int) -> list[list[BlockId]]:
        """Return the block table of a request, group by group; 0 is the null block.

        Raises:
            UnknownError: The request is not known.
        """
        return self._core.blocks(request)

    def num_computed_tokens(self, request: int) -> int:
        """Return how many tokens of a request are computed.

        Raises:
            UnknownError: The request is not known.
        """
        return self._core.progress(request)[0]

    def num_common_prefix_blocks(self, requests: Sequence[int]) -> list[int]:
        """Return per group how many leading blocks all of these requests hold; 0 for none of them.

        A block that one of them gave back (its window has passed, its state is skipped) ends the
        prefix.

        Raises:
            UnknownError: A request is not known.
        """
        return self._core.num_common_prefix_blocks(requests)

    def take_work(self, *, caller_frees: bool = False) -> Work:
        """Take what the device has to do before the step runs.

        The ends of the copies stay held until the next `start_step`, which frees them.

        Args:
            caller_frees: The caller drops one reference of each end with `pool.free` instead, as
                an engine does that starts a step while the one before it still runs.
        """
        copies, blocks_to_zero, states = self._core.take_work(caller_frees)
        return Work(copies, blocks_to_zero, [KeptState(*state) for state in states])

    # Its results.

    def extend(
        self,
        request: int,
        tokens: Tokens,
        *,
        block_hashes: Sequence[bytes] | None = None,
        to_prompt: bool = False,
    ) -> None:
        """Append tokens; hashes grow, or continue with those given.

        `to_prompt`: all tokens so far are the prompt from now on (an input that comes in pieces).

        Raises:
            UnknownError: The request was released, or never added.
            InvalidValueError: More hashes than the tokens have.
        """
        self._core.extend(request, tokens, block_hashes, to_prompt)

    def commit(self, request: int, num_tokens: int) -> None:
        """Make the blocks of the first `num_tokens` computed tokens findable.

        Raises:
            UnknownError: The request is not known.
            InvalidValueError: More tokens than are computed.
        """
        check_counts(num_tokens=num_tokens)
        self._core.commit(request, num_tokens)

    def free_skipped(self, request: int, num_processed_tokens: int) -> None:
        """Give back what nothing computed after so many tokens reads.

        Raises:
            UnknownError: The request is not known.
        """
        check_counts(num_processed_tokens=num_processed_tokens)
        self._core.free_skipped(request, num_processed_tokens)

    def roll_back(self, request: int, num_computed_tokens: int) -> None:
        """Set back how many tokens are computed, after drafts were rejected. Blocks stay.

        Raises:
            UnknownError: The request is not known.
            InvalidValueError: More than are computed.
        """
        check_counts(num_computed_tokens=num_computed_tokens)
        self._core.roll_back(request, num_computed_tokens)

    def truncate(self, request: int, num_tokens: int) -> None:
        """Forget the tokens after these, and the hashes that cover them.

        Raises:
            UnknownError: The request is not known.
            InvalidValueError: It would cut the prompt, or blocks that others can find.
        """
        check_counts(num_tokens=num_tokens)
        self._core.truncate(request, num_tokens)

    # A request goes.

    def take_state_tails(self, request: int) -> list[KeptState]:
        """Take the states at the last boundary of a request's prompt that lies inside a block.

        Each holds what it says as long as no token after it is computed; then it is copied, and
        the copy is among the kept states of `take_work`.

        Raises:
            UnknownError: The request is not known.
        """
        return [KeptState(*state) for state in self._core.take_state_tails(request)]

    def release(self, requests: Sequence[int]) -> None:
        """Give all blocks of finished requests back, tails first, and forget the requests.

        Raises:
            UnknownError: One of them is not known.
            InvalidValueError: One of them is given twice.
        """
        self._core.release(requests)

    def preempt(self, requests: Sequence[int]) -> None:
        """Give all blocks back; the requests stay known, with nothing computed.

        Raises as `release`.
        """
        self._core.preempt(requests)

    def pop_blocks(self, request: int) -> list[BlockId]:
        """Forget a request and hand its blocks over, groups in order: the caller frees them.

        Raises:
            UnknownError: The request is not known.
        """
        return self._core.pop_blocks(request)

    # At the end of a step.

    def take_events(self) -> Events:
        """Take what happened since the last call."""
        return Events(*self._core.take_events())

    def take_statistics(self) -> Statistics:
        """Take the counts since the last call."""
        started, resumed, (matches, external, junctions, preemptions, allocated, evicted) = (
            self._core.take_statistics()
        )
        return Statistics(
            started=Starts(*started),
            resumed=Starts(*resumed),
            num_matches=matches,
            num_external_tokens=external,
            num_junctions=junctions,
            num_preemptions=preemptions,
            num_allocated_blocks=allocated,
            num_evicted_blocks=evicted,
        )

    def reset(self) -> bool:
        """Forget everything cached, unless a block is in use; return whether it was done."""
        return self._core.reset()

    def _allocation(self, num_fit: int, blocks: bytes, counts: bytes) -> Allocation:
        return Allocation(num_fit, array("I", blocks), array("I", counts), self.num_groups)
