"""Whether a request may ask the connector for a load: after failures, for a while it may not.

A request whose load failed would otherwise ask for the same load again and again, and so would one
that cannot go on from all that a load can bring. Time comes in as milliseconds.
"""

from collections.abc import Callable
from typing import Any, Final

from kvbraid.integrations.vllm.recovery.options import RecoverySettings
from kvbraid.recovery import Policy
from kvbraid.recovery.decision.policy import Cooldowns, RetryBudget

_FAILURES_IN_A_ROW: Final = 3


class LoadGate:
    """Who may ask a connector; `now` returns milliseconds that never go back."""

    def __init__(
        self, tier: str, policy: Policy, options: RecoverySettings, now: Callable[[], float]
    ) -> None:
        self._tier = tier
        self._now = now
        self._have_all: dict[str, int] = {}
        retries = options.retries if policy is Policy.RETRY else 0
        self._budget = RetryBudget(retries=retries, deadline=options.deadline_ms)
        self._cooldowns = Cooldowns(
            failures=_FAILURES_IN_A_ROW, duration=options.tier_cooldown_s * 1_000
        )

    def guard(self, connector: Any, end_of: Callable[[int], int]) -> None:  # noqa: ANN401 - vLLM's own type.
        """Let a connector be asked by those alone who may; the others hear that it has nothing.

        If it offers to load a request's tokens whole while the request waits, `end_of` says, given
        their number, where the load ends.
        """
        ask = connector.get_num_new_matched_tokens

        def guarded(request: Any, num_computed_tokens: int) -> Any:  # noqa: ANN401
            may_ask = self._budget.allows(request.request_id, self._now())
            may_ask = may_ask and self._have_all.get(request.request_id) != request.num_tokens
            if not may_ask or self._cooldowns.is_cooling(self._tier, self._now()):
                return 0, False
            count, waits = ask(request, num_computed_tokens)
            if waits and num_computed_tokens + (count or 0) == request.num_tokens:
                count = end_of(request.num_tokens) - num_computed_tokens
            return (count, waits) if count is None or count > 0 else (0, False)

        connector.get_num_new_matched_tokens = guarded

    def has_all(self, request: Any) -> None:  # noqa: ANN401 - vLLM's own type.
        """Note that all tokens of a request were loaded; it asks again once it has more."""
        self._have_all[request.request_id] = request.num_tokens

    def load_failed(self) -> None:
        """Note that loads failed: one failure, however many requests it affects."""
        self._cooldowns.failed(self._tier, self._now())

    def load_succeeded(self) -> None:
        """Note that a load went well."""
        self._cooldowns.succeeded(self._tier)

    def asks_again(self, request_id: Any) -> bool:  # noqa: ANN401 - a name; the budget takes any key.
        """Note that a request was affected; return whether it may ask the connector again."""
        return self._budget.failed(request_id, self._now())

    def forget(self, request_id: Any) -> None:  # noqa: ANN401 - as above.
        """Forget a request that has ended."""
        self._budget.ended(request_id)
        self._have_all.pop(request_id, None)

    @property
    def num_cooling(self) -> int:
        """How many tiers are in cooldown."""
        return len(self._cooldowns.cooling(self._now()))
