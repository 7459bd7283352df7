"""The cache that an engine calls, step by step. A thin face of the native core.

Invariant: all groups share one numbering of blocks. A block is free or referenced, and is found by
its group and the hash of the whole prefix that it ends. A request reuses the longest boundary
that every group accepts. While it runs, each group gives back the blocks that no later token
reads. Blocks that are stored, evicted and cleared are recorded as the engine's own events. Every
call either does what it says or raises and changes nothing. Safe to call from any thread.
"""

from array import array
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Self

from kvbraid._native import CacheCore
from kvbraid.cache.chunk import Position, rules_of
from kvbraid.cache.config import CacheConfig
from kvbraid.cache.counts import NOT_TAKEN, check_needs, check_new
from kvbraid.cache.debug import CacheDebug
from kvbraid.cache.events import Events
from kvbraid.cache.failed_loads import Recovery
from kvbraid.cache.policy_choice import PolicyChoice
from kvbraid.cache.pool import BlockPool
from kvbraid.cache.statistics import Statistics
from kvbraid.cache.step import (
    NO_MATCH,
    Allocation,
    KeptState,
    Labels,
    Match,
    Need,
    NoFit,
    Work,
)
from kvbraid.cache.tables import RequestTables
from kvbraid.cache.tiers import CacheTiers
from kvbraid.errors import InvalidValueError, shortened
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys, Tokens
from kvbraid.ids import BlockId
from kvbraid.reading import COUNT, check, check_fields


class CacheManager:
    """The blocks and requests of one engine. docs/engine.md is the guide; a step in short:

        request = cache.add(prompt)             # A request arrives.
        match = cache.match(request)            # Look up what it can reuse.
        chunk = cache.plan_chunk(request, budget, match=match)

        cache.start_step()                      # The previous step has run.
        need = Need(request=request, num_new_tokens=chunk, match=match)
        cache.allocate([need])                  # Give the request its blocks for the step.
        cache.decode(running, tokens)           # Add one token to each request that decodes.
        work = cache.take_work()                # Zero and copy these before the step runs.
        events = cache.take_events()            # Publish these.

        cache.extend(request, [token])          # The step sampled a token.
        cache.release([request])                # The request is done.

    `pool` manages single blocks, for connectors; `tables` asks and rewinds the tables of requests,
    for recovery; `tiers` is for what stores and loads blocks; `debug` is for tests.

    Raises:
        InvalidValueError: The configuration cannot work; the message names the group, the rule
            and the remedy.
    """

    def __init__(self, config: CacheConfig) -> None:
        check("config", config, CacheConfig)
        self.config = config
        self.num_groups = len(config.topology.groups)
        self._stand_on(CacheCore(config))
        self._chunk_rules = rules_of(config)

    def _stand_on(self, core: CacheCore) -> None:
        self._core = core
        self.pool = BlockPool(core, num_blocks=self.config.num_blocks, num_groups=self.num_groups)
        self.tables = RequestTables(core)
        self.tiers = CacheTiers(core)
        self.debug = CacheDebug(core, num_groups=self.num_groups)

    def copy(self) -> Self:
        """Return a cache that is in the same state and shares nothing with this one.

        For tests, which branch by it: it costs as much as the pool and the requests are large.
        """
        twin = copy(self)
        twin._stand_on(self._core.copy())
        return twin

    # A request arrives.

    def add(  # noqa: PLR0913 - all but the tokens are given by name.
        self,
        tokens: Tokens,
        *,
        num_prompt_tokens: int | None = None,
        extra: ExtraKeys = NO_EXTRA_KEYS,
        lora_id: int | None = None,
        session_id: str | None = None,
        block_hashes: Sequence[bytes] | None = None,
        will_return: bool | float | None = None,
    ) -> int:
        """Make a request known; return the number that identifies it in every other call.

        Args:
            tokens: All of its tokens so far.
            num_prompt_tokens: How many of them are the prompt; None: all.
            extra: What keeps its blocks apart from those of other requests with the same tokens.
            lora_id: The engine's number of the adapter, for events.
            session_id: The session's name, for events.
            block_hashes: The engine's hashes, one per hash block; None: the cache computes them.
            will_return: Whether some later request will go on from where this one ends, or the
                probability of it; None: unknown. Counts under `ByValue` only, which learns what
                such hints are worth.

        Raises:
            InvalidValueError: There are no tokens, the hashes do not fit the tokens, or
                `will_return` is no probability.
        """
        count = _length(tokens) if num_prompt_tokens is None else num_prompt_tokens
        check("num_prompt_tokens", count, COUNT)
        labels = Labels(lora_id, session_id, will_return)
        try:
            return self._core.add(tokens, count, extra, labels, block_hashes)
        except NOT_TAKEN:
            check_new(
                extra=extra,
                lora_id=lora_id,
                session_id=session_id,
                block_hashes=block_hashes,
                will_return=will_return,
            )
            raise

    def match(self, request: int) -> Match:
        """Return how much the request can reuse now. Changes nothing.

        Raises:
            UnknownError: The request is not known.
        """
        return Match(*self._core.match(request))

    def plan_chunk(
        self,
        request: int,
        budget: int,
        *,
        match: Match | None = None,
        max_chunk_tokens: int | None = None,
    ) -> int:
        """Return how many tokens to compute next: the step then ends where a state can be kept.

        Args:
            request: The request.
            budget: Tokens that the step has left.
            match: The request's match if it starts now; None if it runs already.
            max_chunk_tokens: The largest budget that a step can have; None: `budget`.

        Raises:
            UnknownError: The request is not known.
            InvalidValueError: A budget is no count, the match is not one, or drafts are computed
                that were neither taken back nor appended.
        """
        most = budget if max_chunk_tokens is None else max_chunk_tokens
        check("budget", budget, COUNT)
        check("max_chunk_tokens", most, COUNT)
        check("match", match, Match | None)
        match = match or NO_MATCH
        computed, num_prompt_tokens, num_tokens, junction = self._core.progress(request)
        start = computed + match.num_tokens
        if start > num_tokens:
            what = f"request {request}: {start} of {num_tokens} tokens are computed"
            raise InvalidValueError(f"{what}; roll back or extend by the drafts first")
        position = Position(
            start=start,
            num_prompt_tokens=num_prompt_tokens,
            num_tokens=num_tokens,
            budget=min(budget, num_tokens - start),
            junction=match.junction or junction,
            stops=tuple(self._core.stops(request)) if self._chunk_rules.block_size else (),
        )
        rules = self._chunk_rules
        if max_chunk_tokens is not None:
            rules = replace(rules, max_chunk_tokens=max_chunk_tokens)
        return rules.plan(position)

    # A step.

    def start_step(self) -> None:
        """Begin a step: the previous one has run.

        Requests may now resume from the states that it wrote, and both ends of the copies that
        were taken for it are freed. With states, call it before every step.
        """
        self._core.start_step()

    def allocate(self, needs: Sequence[Need], *, reserved_blocks: int = 0) -> Allocation:
        """Allocate for many requests in order; stop at the first that does not fit.

        Each request gives back the blocks that no later token reads and adopts its hit (all groups
        pin their blocks of the hit before any group allocates). It then gets its new blocks, and
        its computed blocks are registered.

        Args:
            needs: One per request.
            reserved_blocks: Free blocks to leave unused.

        Raises:
            UnknownError: A request is not known.
            NotHeldError: A hit is no longer held: match again.
            InvalidValueError: A need asks for nothing, a request is given twice, or a hit is a
                state of this step although no step was ever started. As with every error,
                nothing has changed.
        """
        try:
            done = self._core.allocate(needs, reserved_blocks)
        except NOT_TAKEN:
            check_needs(needs, self.num_groups)
            check("reserved_blocks", reserved_blocks, COUNT)
            raise
        return self._allocation(*done)

    def decode(self, requests: Sequence[int], tokens: Tokens) -> Allocation:
        """Append one token to each request and allocate for it: a decoding step in one call.

        It stops at the first request that does not fit. That one and those after it are as they
        were: they have not got their tokens.

        Raises:
            UnknownError: A request is not known; nothing has changed.
            InvalidValueError: There is not exactly one token for each request, a request is given
                twice, or has tokens that are not computed. Nothing has changed.
        """
        return self._allocation(*self._core.decode(requests, tokens))

    def take_work(self, *, caller_frees: bool = False) -> Work:
        """Take the work that the device has to do before the step runs.

        Call it for every step that runs, after the last `allocate`: from then on the step counts
        as given to the device, and what it registered stays findable. Both ends of the copies stay
        held until the next `start_step`, which frees them.

        Args:
            caller_frees: The caller drops one reference of each end with `pool.free` instead. An
                engine that starts a step while the previous one still runs needs this.
        """
        copies, blocks_to_zero, states = self._core.take_work(caller_frees)
        return Work(copies, blocks_to_zero, [KeptState(*state) for state in states])

    # The step's results.

    def extend(
        self,
        request: int,
        tokens: Tokens,
        *,
        block_hashes: Sequence[bytes] | None = None,
        to_prompt: bool = False,
    ) -> None:
        """Append tokens. The cache computes their hashes unless `block_hashes` gives them.

        `to_prompt`: all tokens so far now count as the prompt (for an input that comes in pieces).

        Raises:
            UnknownError: The request was released, or never added.
            InvalidValueError: There are more hashes than the tokens have hash blocks.
        """
        try:
            self._core.extend(request, tokens, block_hashes, to_prompt)
        except NOT_TAKEN:
            check_new(block_hashes=block_hashes)
            raise

    def commit(self, request: int, num_tokens: int) -> None:
        """Make the blocks of the first `num_tokens` computed tokens findable: all is in them.

        Raises:
            UnknownError: The request is not known.
            InvalidValueError: `num_tokens` is more than are computed.
        """
        check("num_tokens", num_tokens, COUNT)
        self._core.commit(request, num_tokens)

    def free_skipped(self, request: int, num_processed_tokens: int) -> None:
        """Give back the blocks that no token after the first `num_processed_tokens` reads.

        Raises:
            UnknownError: The request is not known.
        """
        check("num_processed_tokens", num_processed_tokens, COUNT)
        self._core.free_skipped(request, num_processed_tokens)

    def roll_back(self, request: int, num_computed_tokens: int) -> None:
        """Lower the number of computed tokens after drafts were rejected. The blocks stay.

        Raises:
            UnknownError: The request is not known.
            InvalidValueError: `num_computed_tokens` is more than are computed.
            NotHeldError: The request cannot go on from there: a window or chunk has given back
                what is read, or a state has moved on by more than `num_speculative_blocks` tokens
                of the last step. In the vLLM dialect nothing of this is refused.
        """
        check("num_computed_tokens", num_computed_tokens, COUNT)
        self._core.roll_back(request, num_computed_tokens)

    def truncate(self, request: int, num_tokens: int) -> None:
        """Forget the tokens after the first `num_tokens`, and the hashes that cover them.

        Raises:
            UnknownError: The request is not known.
            InvalidValueError: The prompt, or blocks that other requests can find, would be cut.
        """
        check("num_tokens", num_tokens, COUNT)
        self._core.truncate(request, num_tokens)

    # A request ends.

    def take_state_tails(self, request: int) -> list[KeptState]:
        """Take each group's state at the last boundary of a prompt, if that lies inside a block.

        A block holds this state until the next token is computed. The state is then copied, and
        `take_work` returns the copy among the kept states.

        Raises:
            UnknownError: The request is not known.
        """
        return [KeptState(*state) for state in self._core.take_state_tails(request)]

    def release(self, requests: Sequence[int], *, step_failed: bool = False) -> None:
        """Give back all blocks of finished requests, last blocks first, and forget the requests.

        What they registered since `start_step` is no longer findable if `take_work` was not called
        after that: the step will not write it. (Not in the vLLM dialect, nor for an engine that
        never calls `start_step`.)

        Args:
            requests: The requests.
            step_failed: The step was given to the device and failed: what it registered is no
                longer findable either.

        Raises:
            UnknownError: One of them is not known.
            InvalidValueError: One of them is given twice, or another request has adopted what they
                were to write in this step; the message names it.
        """
        self._core.release(requests, step_failed)

    def preempt(self, requests: Sequence[int], *, step_failed: bool = False) -> None:
        """Give all blocks back, as `release` does. The requests stay known, with nothing computed.

        Raises the same errors as `release`.
        """
        self._core.preempt(requests, step_failed)

    def pop_blocks(self, request: int) -> list[BlockId]:
        """Forget a request and return its blocks, group by group. The caller has to free them.

        Raises the same errors as `release`.
        """
        return self._core.pop_blocks(request)

    # After failed loads.

    def recover(self, recovery: Recovery) -> None:
        """Do all parts of a recovery in one step, or none of them.

        Raises:
            UnknownError: A request is not known.
            NotHeldError: A request cannot go back in place, as `tables.rewind` says: preempt it.
            InvalidValueError: A single call would refuse a value, or the parts contradict each
                other; the message names the request or the block, and the remedy.
        """
        check("recovery", recovery, Recovery)
        try:
            self._core.recover(recovery)
        except NOT_TAKEN:
            # A set or a mapping has blocks to look through, but no order.
            check_fields(recovery, dict.fromkeys(("forget", "hold", "preempt"), Sequence))
            raise

    def record_blocks_for_zeroing(self, request: int, start_token: int) -> None:
        """List a request's blocks from a token on for zeroing, because a load left them unwritten.

        Groups without `needs_zeroing` list nothing, and a ring is listed whole.

        Raises:
            UnknownError: The request is not known.
            InvalidValueError: The token is inside a block, or somebody else holds a block or finds
                it by a hash.
        """
        check("start_token", start_token, COUNT)
        self._core.record_blocks_for_zeroing(request, start_token)

    # At the end of a step.

    def take_events(self) -> Events:
        """Take the events since the last call."""
        return Events(*self._core.take_events())

    def take_statistics(self) -> Statistics:
        """Take the counts since the last call."""
        return Statistics.of(*self._core.take_statistics(), policy_choice=self.policy_choice())

    def policy_choice(self) -> PolicyChoice | None:
        """Return which policy retention by value follows, and why; None if it is fixed."""
        found = self._core.policy_choice()
        return None if found is None else PolicyChoice.of(*found)

    def reset(self) -> bool:
        """Drop the hashes of all blocks unless a block is in use; return whether it was done."""
        return self._core.reset()

    # Queries: these change nothing.

    def hit_blocks(self, request: int, num_tokens: int) -> list[list[BlockId]]:
        """Return the blocks of a hit, group by group: those that `allocate` would adopt.

        Raises:
            UnknownError: The request is not known.
            NotHeldError: The hit is not held.
        """
        check("num_tokens", num_tokens, COUNT)
        return self._core.hit_blocks(request, num_tokens)

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Return whether a request with this many tokens fits into the empty pool.

        What is reserved for it counts, which may be a little more than it takes in the end.
        """
        check("num_tokens", num_tokens, COUNT)
        return self._core.blocks_for(num_tokens) < self.config.num_blocks

    def blocks_needed(self, need: Need, *, is_admission: bool = False) -> int:
        """Return how many free blocks `allocate` would take, those of the hit included.

        The number is negative if the request has blocks to spare, and larger than the whole pool
        if the request has to wait for the next step. Changes nothing.

        Args:
            need: What the request asks for; it may ask for nothing new.
            is_admission: Count as if no group ever held more blocks than it reserves.

        Raises:
            UnknownError: The request is not known.
            NotHeldError: The hit is not held.
        """
        try:
            return self._core.blocks_needed(need, is_admission)
        except NOT_TAKEN:
            check_needs([need], self.num_groups)
            raise

    def blocks(self, request: int) -> list[list[BlockId]]:
        """Return the block table of a request, group by group; 0 is the null block.

        Raises:
            UnknownError: The request is not known.
        """
        return self._core.blocks(request)

    def num_tokens(self, request: int) -> int:
        """Return how many tokens of a request are known: its prompt and its output so far.

        Raises:
            UnknownError: The request is not known.
        """
        return self._core.progress(request)[2]

    def num_computed_tokens(self, request: int) -> int:
        """Return how many tokens of a request are computed, or will be when the step has run.

        Raises:
            UnknownError: The request is not known.
        """
        return self._core.progress(request)[0]

    def num_common_prefix_blocks(self, requests: Sequence[int]) -> list[int]:
        """Return, per group, how many leading blocks all of these requests hold in common.

        A block that one of them gave back (its window has passed, its state is skipped) ends the
        prefix. Without requests every number is 0.

        Raises:
            UnknownError: A request is not known.
            InvalidValueError: A request is given twice.
        """
        return self._core.num_common_prefix_blocks(requests)

    def _allocation(
        self, num_fit: int, blocks: bytes, counts: bytes, reason: str | None
    ) -> Allocation:
        return Allocation(
            num_fit=num_fit,
            block_ids=array("I", blocks),
            counts=array("I", counts),
            num_groups=self.num_groups,
            reason=None if reason is None else NoFit(reason),
        )


def _length(tokens: Tokens) -> int:
    try:
        return len(tokens)  # type: ignore[arg-type]
    except TypeError:
        what = f"tokens are {shortened(tokens)}; expected a buffer of uint32 or a list of integers"
        raise InvalidValueError(what) from None
