"""What a caller asks the index: one request's tokens, and how to answer.

Frozen data; checking that a model or a pod exists is the index's job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvbraid.fleet.weights import check_weights
from kvbraid.hashing import MediaItem, NumberArray
from kvbraid.ids import Tier

Strategy: TypeAlias = Literal["exact", "weighted_blocks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One lookup; None fields mean absent.

    `token_ids` is a buffer of uint32 or uint64 (a numpy array, for one), or a sequence of ints
    below 2**64: SGLang stands media in by numbers of up to 62 bits.

    `extra_key` is the field that SGLang's requests have. Where hashes do not show it
    (`EngineProfile.event_format`), nothing is promised to a request that has one.

    `pods` and `tiers` limit the answer; without them it covers every pod of the model and every
    combination of tiers. `strategy` says how the score is computed: `exact` weighs the tokens
    that are likely reusable, `weighted_blocks` counts blocks as existing gateways do.
    `tier_weights` has what a token or block on a tier is worth in this score; tiers that are left
    out have the index's weights.
    """

    model: str
    token_ids: Sequence[int] | memoryview | NumberArray
    lora: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    extra_keys: Sequence[MediaItem] | None = None
    pods: Sequence[str] | None = None
    tiers: Sequence[str] | None = None
    strategy: Strategy = "exact"
    tier_weights: Mapping[Tier, float] | None = None

    def __post_init__(self) -> None:
        """Refuse weights that no score can be computed with."""
        check_weights(self.tier_weights)

    @property
    def weights(self) -> list[float | None] | None:
        """The weight of a token on each tier, in the order of `Tier`; None means the index's."""
        own = self.tier_weights
        return [own.get(tier) for tier in Tier] if own else None
