"""Differences planted in a second copy of the engine's manager, which lock-step must find.

Each changes one rule of an engine's manager that is already built. They test the harness itself:
a comparison that finds none of them proves nothing about our cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from tests.vllm.lockstep.side import Ask, Blocks
from tests.vllm.lockstep.theirs import Theirs

Engine: TypeAlias = Any
"""An object of the engine, which is not installed where types are checked."""

Plant: TypeAlias = Callable[[Theirs], None]


def _override(kind: str, **methods: Any) -> Plant:  # noqa: ANN401 - methods of any signature.
    """Give the managers of one kind other methods; `original` is the class they had."""

    def plant(side: Theirs) -> None:
        coordinator = side.manager.coordinator
        for manager in coordinator.single_type_managers:
            original = type(manager)
            if original.__name__ == kind:
                made = {name: method(original) for name, method in methods.items()}
                manager.__class__ = _planted_class(original, made)
        if hasattr(coordinator, "verify_and_split_kv_cache_groups"):
            coordinator.verify_and_split_kv_cache_groups()

    return plant


_classes: dict[tuple[type, str], type] = {}


def _planted_class(original: type, methods: dict[str, Any]) -> type:
    """Return one class per original: groups are looked up jointly only if theirs is the same."""
    key = (original, repr(sorted(methods)))
    if key not in _classes:
        _classes[key] = type("Planted" + original.__name__, (original,), methods)
    return _classes[key]


def _need_of_whole_window(original: Engine) -> Engine:
    del original

    def need(cls: Engine, window_size: int, block_size: int, use_eagle: bool) -> int:
        del cls
        return -(-window_size // block_size) + use_eagle

    return classmethod(need)


def _skip_one_more(original: Engine) -> Engine:
    def skipped(self: Engine, num_computed_tokens: int) -> int:
        return int(original.get_num_skipped_tokens(self, num_computed_tokens)) + 1

    return skipped


def _find_at_any_block(original: Engine) -> Engine:
    def find(cls: Engine, /, **arguments: Any) -> Engine:  # noqa: ANN401 - the engine's.
        del cls
        block_size = arguments["kv_cache_spec"].block_size
        arguments["alignment_tokens"] = min(arguments["alignment_tokens"], block_size)
        return original.find_longest_cache_hit(**arguments)

    return classmethod(find)


def _admit_in_the_same_step(original: Engine) -> Engine:
    def count(self: Engine, *arguments: Any, **named: Any) -> int:  # noqa: ANN401 - the engine's.
        self.cached_blocks_this_step.clear()
        return int(original.get_num_blocks_to_allocate(self, *arguments, **named))

    return count


def _ignore_admission_cap(side: Theirs) -> None:
    for manager in side.manager.coordinator.single_type_managers:
        manager.max_admission_blocks_per_request = None


def _free_in_table_order(side: Theirs) -> None:
    pool = side.manager.block_pool
    free_blocks = pool.free_blocks
    pool.free_blocks = lambda blocks: free_blocks(list(blocks)[::-1])


def _keep_one_copy(side: Theirs) -> None:
    known = side.manager.block_pool.cached_block_hash_to_block
    known.insert = known._cache.__setitem__


def _cache_unaligned_ends(side: Theirs) -> None:
    side.manager.coordinator.get_num_cacheable_tokens = lambda num_tokens, group: num_tokens


def _ignore_junctions(side: Theirs) -> None:
    allocate = side.allocate

    def without(asks: Sequence[Ask], reserved_blocks: int) -> list[Blocks]:
        forgetful = [replace(ask, junction=ask.junction and 0) for ask in asks]
        return allocate(forgetful, reserved_blocks)

    side.allocate = without  # type: ignore[method-assign]


def _zero_what_a_load_fills(side: Theirs) -> None:
    allocate = side.allocate

    def zeroing(asks: Sequence[Ask], reserved_blocks: int) -> list[Blocks]:
        return allocate([replace(ask, loading_groups=()) for ask in asks], reserved_blocks)

    side.allocate = zeroing  # type: ignore[method-assign]


def _leave_a_failed_load_as_it_is(side: Theirs) -> None:
    side.zero_again = lambda key, start_token: None  # type: ignore[method-assign]


def _forget_to_hold_copies(side: Theirs) -> None:
    for manager in side.manager.coordinator.single_type_managers:
        manager.take_pending_cow_copies = list


def _announce_backwards(side: Theirs) -> None:
    take_events = side.manager.take_events
    side.manager.take_events = lambda: take_events()[::-1]


PLANTED: Final[dict[str, Plant]] = {
    "a window needs ceil(W / b) blocks": _override(
        "SlidingWindowManager", _contiguous_blocks_for_hit=_need_of_whole_window
    ),
    "a window frees one token too many": _override(
        "SlidingWindowManager", get_num_skipped_tokens=_skip_one_more
    ),
    "a chunk frees one token too many": _override(
        "ChunkedLocalAttentionManager", get_num_skipped_tokens=_skip_one_more
    ),
    "states are found off the alignment": _override(
        "MambaManager", find_longest_cache_hit=_find_at_any_block
    ),
    "states of the same step are found": _override(
        "MambaManager", get_num_blocks_to_allocate=_admit_in_the_same_step
    ),
    "the admission cap is ignored": _ignore_admission_cap,
    "a table is freed first block first": _free_in_table_order,
    "a second copy replaces the first": _keep_one_copy,
    "unaligned ends are cached": _cache_unaligned_ends,
    "junctions are forgotten": _ignore_junctions,
    "what a load fills is zeroed": _zero_what_a_load_fills,
    "what a failed load left is not zeroed again": _leave_a_failed_load_as_it_is,
    "copies on write are not reported": _forget_to_hold_copies,
    "events come last first": _announce_backwards,
}
