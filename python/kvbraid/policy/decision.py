"""One choice, with all that it was made from."""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from kvbraid.fleet import Columns
from kvbraid.ids import PodState
from kvbraid.policy.asking import Remembered
from kvbraid.policy.costs import CostRule, Terms
from kvbraid.policy.fitting import Fitted
from kvbraid.policy.view import FleetView, RankId, RoutingPolicy

Knowledge: TypeAlias = Literal["events", "promises"]
"""Whether a rank's cache is known from its events, or guessed from what it was sent."""

Origin: TypeAlias = Literal["given", "default", "fitted"]
"""Whence the coefficients of a model come."""


def origin_of(fitted: Fitted | None, *, is_given: bool) -> Origin:
    """Return whence coefficients come; a fit without samples is what was given."""
    if fitted is not None and fitted.num_samples:
        return "fitted"
    return "given" if is_given else "default"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One choice with all that it was made from; `place` is that of the chosen candidate.

    `lower` and `upper` bound what the rank can reuse now: they promise, while `view.resumable`,
    from which the cost comes, also counts what is in flight. `columns` has every rank of the
    model, also those that were left out; the chosen one is in its `row`. `seen` is what was ever
    there of the prompt, before this decision, if the router asks for that. `lifted` names the
    filters that would have left nobody, and `left_out` counts the ranks that each of the others
    left out. `fitted` is how far the fit of the model's coefficients was, if they are fitted.
    """

    name: str
    policy: RoutingPolicy
    view: FleetView
    costs: list[float]
    place: int
    columns: Columns
    row: int
    seen: Remembered | None
    lower: int
    upper: int
    state: PodState
    lifted: tuple[str, ...]
    left_out: Mapping[str, int]
    seconds_given: bool
    fitted: Fitted | None

    @property
    def rank(self) -> RankId:
        """The chosen pod and its data-parallel rank."""
        return self.view.ranks[self.place]

    @property
    def cost(self) -> float:
        """The chosen candidate's cost."""
        return self.costs[self.place]

    @property
    def resumable(self) -> int:
        """The tokens that the rank is expected to reuse when it gets there."""
        return min(self.view.resumable[self.place], self.view.tokens)

    @property
    def prefill_s(self) -> float:
        """What its prefill takes there, in seconds."""
        return self.view.seconds.prefill(self.view.tokens, self.resumable)

    @property
    def first_token_s(self) -> float:
        """The seconds until the first token is expected."""
        return self.view.wait[self.place] + self.prefill_s

    @property
    def knowledge(self) -> Knowledge:
        """Whence the rank's cache is known."""
        return "promises" if self.state is PodState.STALE else "events"

    @property
    def origin(self) -> Origin:
        """Whence the coefficients come."""
        return origin_of(self.fitted, is_given=self.seconds_given)

    def terms(self) -> list[Terms]:
        """Return the terms of every candidate's cost; none if the policy has no such terms."""
        return self.policy.terms(self.view) if isinstance(self.policy, CostRule) else []

    def chosen_terms(self) -> Terms | None:
        """Return the terms of the chosen candidate's cost; None if the policy has none."""
        terms = self.terms_at([self.place])
        return terms[0] if terms else None

    def terms_at(self, places: Iterable[int]) -> list[Terms]:
        """Return the terms at some places; none if the policy has no such terms."""
        return self.policy.terms(self.view, places) if isinstance(self.policy, CostRule) else []
