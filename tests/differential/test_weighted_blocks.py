"""The `weighted_blocks` score of the native `FleetCore` against a token-by-token model.

Both see the same pods: the index through real events, the model as what those events leave.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.events.model import Event
from kvbraid.events.wire import encode_batch
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, Tier

from tests.reference import weighted_blocks as reference
from tests.reference.weighted_blocks import Copy, Group, GroupIndex
from tests.unit.fleet.weighted_feed import holding, tokens_of

PROMPT = tokens_of(48)
KINDS = (
    None,
    "full_attention",
    "mla_attention",
    "sliding_window",
    "sliding_window",
    "sliding_window_mla",
    "mamba",
    "chunked_local_attention",
)
BLOCK_SIZES = (4, 4, 8, 12)
INDICES: tuple[tuple[GroupIndex, ...], ...] = (
    (0,),
    (0, 1),
    (0, 1),
    (0, 1, 2),
    (0, 1, 2, 3),
    (1, 2),
    (None,),
)


@dataclass(frozen=True)
class PodCase:
    """What a pod holds: numbers of blocks per group and tier; groups speak in that order."""

    catalogue: Mapping[GroupIndex, Group]
    block_sizes: Mapping[GroupIndex, int]
    held: Mapping[tuple[GroupIndex, Tier], frozenset[int]]

    def events(self) -> list[Event]:
        return [
            event
            for (group, tier), blocks in self.held.items()
            for event in holding(
                PROMPT,
                blocks,
                block_size=self.block_sizes[group],
                group=group,
                known=self.catalogue[group],
                tier=tier,
            )
        ]

    def model(self) -> reference.Pod:
        copies = [
            Copy(group, tier, block * size, (block + 1) * size)
            for (group, tier), blocks in self.held.items()
            for size in (self.block_sizes[group],)
            for block in blocks
        ]
        return reference.Pod(self.catalogue, copies)


@st.composite
def known_groups(draw: st.DrawFn) -> Group:
    kind = draw(st.sampled_from(KINDS))
    is_window = kind in reference.WINDOW_KINDS
    return Group(kind, draw(st.none() | st.integers(1, 30)) if is_window else None)


@st.composite
def pod_cases(draw: st.DrawFn) -> PodCase:
    indices = draw(st.sampled_from(INDICES))
    catalogue = {group: draw(known_groups()) for group in indices}
    block_sizes = {group: draw(st.sampled_from(BLOCK_SIZES)) for group in indices}
    channels = [(group, Tier.GPU) for group in indices]
    channels += draw(
        st.lists(
            st.tuples(st.sampled_from(indices), st.sampled_from((Tier.CPU, Tier.STORAGE))),
            unique=True,
            max_size=3,
        )
    )
    held = {}
    for group, tier in draw(st.permutations(channels)):
        blocks = range(len(PROMPT) // block_sizes[group])
        # Nearly everything, so that hits are long and end in different places.
        gone = draw(st.sets(st.sampled_from(blocks), max_size=3 if tier is Tier.GPU else 12))
        held[group, tier] = frozenset(blocks) - gone
    return PodCase(catalogue, block_sizes, held)


@given(
    pods=st.lists(pod_cases(), min_size=1, max_size=3),
    num_tokens=st.integers(0, 50),
    canonical=st.sampled_from((1, 4, 6, 8, 16)),
    weights=st.sampled_from(((1.0, 0.5, 0.25), (0.5, 1.0, 0.5), (1.0, 1.0, 0.0))),
)
def test_native_scores_equal_the_model(
    pods: list[PodCase], num_tokens: int, canonical: int, weights: tuple[float, float, float]
) -> None:
    by_tier = dict(zip(Tier, weights, strict=True))
    index = FleetIndex(IndexOptions(tier_weights=by_tier, canonical_block_size=canonical))
    for number, pod in enumerate(pods):
        index.register(PodId(f"pod{number}"), model="m")
        for event in pod.events():
            index.apply(PodId(f"pod{number}"), encode_batch([event]))
    index.check_integrity()
    prompt = tokens_of(num_tokens)
    rows = index.score(Request(model="m", token_ids=prompt, strategy="weighted_blocks")).rows
    found = [None if row.exactness == "unknown" else row.score for row in rows]
    assert found == [reference.score(pod.model(), num_tokens, canonical, by_tier) for pod in pods]
