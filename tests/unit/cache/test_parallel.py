"""Context parallelism: which groups are admitted, and what a hit is when ranks share tokens."""

from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from kvbraid.cache import CacheManager, GroupOptions
from kvbraid.cache.parallel import ADMITTED, Share
from kvbraid.errors import InvalidValueError, TopologyError
from kvbraid.spec import GroupSpec, SpecKind

from tests.unit.cache.caches import chunked, compute, config, full, leave, mamba, window

WHOLE, REPLICATED = GroupOptions(), GroupOptions(is_replicated=True)
GROUPS: dict[str, tuple[GroupSpec, GroupOptions]] = {
    "full": (full(8), WHOLE),
    "latent": (replace(full(8), kind=SpecKind.MLA_ATTENTION), WHOLE),
    "sinks": (replace(full(8), kind=SpecKind.SINK_FULL_ATTENTION), WHOLE),
    "replicated full": (full(8), REPLICATED),
    "replicated window": (window(9, 8), REPLICATED),
    "replicated chunks": (chunked(16, 8), REPLICATED),
    "state": (mamba(8), WHOLE),
    "replicated state": (mamba(8), REPLICATED),
    "window": (window(9, 8), WHOLE),
    "latent window": (replace(window(9, 8), kind=SpecKind.SLIDING_WINDOW_MLA), WHOLE),
    "chunks": (chunked(16, 8), WHOLE),
    "ring": (full(8, prefix_cacheable=False), GroupOptions(is_ring=True)),
    "cross": (GroupSpec(kind=SpecKind.CROSS_ATTENTION, block_size=8), WHOLE),
    "encoder": (GroupSpec(kind=SpecKind.ENCODER_ONLY_ATTENTION, block_size=8), WHOLE),
}
FOR_PREFILL = {name for name in GROUPS if name.startswith("replicated")} - {"replicated state"}
FOR_PREFILL |= {"full", "latent", "sinks"}
ADMITS = {
    "decode_context_parallel": FOR_PREFILL | {"state", "replicated state"},
    "prefill_context_parallel": FOR_PREFILL,
}


def beside_full(name: str, **more: Any) -> CacheManager:  # noqa: ANN401 - fields of the configuration
    group, options = GROUPS[name]
    return CacheManager(config(full(8), group, group_options=(WHOLE, options), **more))


def test_each_field_has_its_table_of_groups() -> None:
    assert ADMITS.keys() == ADMITTED.keys()
    assert {share for shares in ADMITTED.values() for share in shares} == {*Share} - {
        Share.UNSHARABLE
    }


@pytest.mark.parametrize("field", ADMITS)
@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_admitted_by_kind_or_refused_by_name(name: str, field: str) -> None:
    beside_full(name, **{field: 1})
    if name in ADMITS[field]:
        beside_full(name, **{field: 2})
        return
    kind = GROUPS[name][0].kind.value
    with pytest.raises(
        InvalidValueError, match=rf"group 1 \({kind}\): {field} = 2 .* set {field}"
    ):
        beside_full(name, **{field: 2})


@pytest.mark.parametrize("field", ADMITS)
def test_less_than_one_rank_is_refused(field: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{field} is 0"):
        beside_full("full", **{field: 0})


def test_a_block_is_spread_over_all_ranks() -> None:
    assert full(8).sharded_over(3) == full(24)
    assert mamba(8).sharded_over(1) == mamba(8)
    config(full(24), decode_context_parallel=3)
    with pytest.raises(
        InvalidValueError, match=r"block_size 8 is no multiple.*GroupSpec\.sharded_over"
    ):
        config(full(8), decode_context_parallel=3)
    config(full(8), decode_context_parallel=3, group_options=(REPLICATED,))


@pytest.mark.parametrize("group", [mamba(8), window(9, 8), chunked(16, 8)], ids=str)
def test_only_full_attention_is_sharded(group: GroupSpec) -> None:
    with pytest.raises(TopologyError, match=f"{group.kind.value} group .* replicated"):
        group.sharded_over(2)


def test_no_rank_at_all_is_refused() -> None:
    with pytest.raises(TopologyError, match="num_ranks is 0"):
        full(8).sharded_over(0)


# ---- hits, rank by rank and token by token -------------------------------------------------


@dataclass(frozen=True)
class Ranks:
    """A full group whose tokens are dealt out to ranks in turn, a state whole on each of them,
    and a draft head's window that is replicated."""

    num_ranks: int
    own_block: int  # Tokens of the full group that one rank keeps in a block.
    state_block: int
    window_block: int

    def hit(self, prompt: list[int], lives: list[tuple[list[int], list[int]]]) -> int:
        """The longest prefix that some earlier request has left, by trying every length."""
        unit = lcm(self.own_block * self.num_ranks, self.state_block, self.window_block)
        lengths = range(unit, len(prompt), unit)
        return max((end for end in lengths if self._is_held(prompt[:end], lives)), default=0)

    def _is_held(self, prefix: list[int], lives: list[tuple[list[int], list[int]]]) -> bool:
        alike = [ends for tokens, ends in lives if tokens[: len(prefix)] == prefix]
        return any(
            len(prefix) in ends
            and all(self._has_rank(rank, len(prefix), ends[-1]) for rank in range(self.num_ranks))
            for ends in alike
        )

    def _has_rank(self, rank: int, num_tokens: int, num_computed: int) -> bool:
        """Whether the rank's blocks before `num_tokens` are whole: each has its own tokens."""
        own = range(rank, num_tokens, self.num_ranks)
        computed = range(rank, num_computed, self.num_ranks)
        whole = len(computed) // self.own_block * self.own_block
        return len(own) % self.own_block == 0 and len(own) <= whole


@given(data=st.data())
def test_a_hit_is_what_all_ranks_hold(data: st.DataObject) -> None:
    ranks = Ranks(*(data.draw(st.integers(1, most)) for most in (4, 3, 4, 2)))
    groups = (
        full(ranks.own_block).sharded_over(ranks.num_ranks),
        mamba(ranks.state_block),
        window(3, ranks.window_block),
    )
    cache = CacheManager(
        config(
            *groups,
            num_blocks=2_000,
            group_options=(WHOLE, WHOLE, REPLICATED),
            decode_context_parallel=ranks.num_ranks,
        )
    )
    lives: list[tuple[list[int], list[int]]] = []
    # Prompts are alike up to where one changes, so that most have something to reuse.
    prompts = st.builds(
        lambda same, tail: [0] * same + [1] * tail, st.integers(1, 50), st.integers(0, 20)
    )
    for prompt in data.draw(st.lists(prompts, min_size=1, max_size=6)):
        request = cache.add(prompt)
        match = cache.match(request)
        expected = ranks.hit(prompt, lives)
        assert match.num_tokens == expected
        event("hit" if expected else "no hit")
        # Steps end where a state's block does: else no state is kept there.
        stops = range(expected + ranks.state_block, len(prompt), ranks.state_block)
        chosen = data.draw(st.sets(st.sampled_from(stops))) if stops else set()
        ends = [expected, *sorted(chosen), len(prompt)]
        compute(cache, request, ends[1:], hit=expected)
        cache.take_work()
        cache.release([request])
        cache.debug.check_integrity()
        known = [end for tokens_, ends_ in lives for end in ends_ if tokens_[:end] == prompt[:end]]
        lives.append((prompt, sorted({*ends, *(end for end in known if end <= expected)})))


def test_a_sharded_block_is_reused_as_a_whole() -> None:
    cache = CacheManager(config(full(4).sharded_over(2), mamba(4), decode_context_parallel=2))
    leave(cache, list(range(23)), 4)
    assert cache.match(cache.add(list(range(23)))).num_tokens == 16
