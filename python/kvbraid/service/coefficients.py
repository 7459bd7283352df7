"""GET /v1/policy: the rule that chooses ranks, and the coefficients of each model that count now.

The answers and what makes them stand here together: nothing else needs them.
"""

import msgspec

from kvbraid.policy import CostRule
from kvbraid.policy.in_use import InUse
from kvbraid.policy.router import Router


class FitRow(msgspec.Struct, frozen=True, kw_only=True):
    """How far a fit is, and how well it tells its samples; medians in seconds.

    `num_kept` samples are there, and the fit rests on `num_samples` of them; none: the
    coefficients are what was expected. `took_s` is what a prefill took, `error_s` how far the fit
    is off, and `expected_error_s` how far the expected coefficients are; null without a fit.
    """

    num_kept: int
    num_samples: int
    took_s: float | None = None
    error_s: float | None = None
    expected_error_s: float | None = None


class CoefficientsRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt of one model costs, in seconds; `origin` is given, default or fitted.

    `busy` is the share of ranks that were busy when the last requests arrived. `displacement` is
    what a second of work for tokens that are not present costs others at that; null with a policy
    that has no such price.
    """

    model: str
    origin: str
    fixed: float
    per_token: float
    per_pair: float
    per_loaded_token: float
    per_decoded_token: float
    busy: float
    displacement: float | None
    fit: FitRow | None


class PolicyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /v1/policy; the first three coefficients are null with a policy of others."""

    policy: str
    potential: float | None
    displacement: float | None
    queue: float | None
    slack: float
    models: list[CoefficientsRow]


def policy_answer(router: Router) -> PolicyAnswer:
    """Return what counts now."""
    policy = router.policy
    costs = policy.options if isinstance(policy, CostRule) else None
    displacement = None if costs is None else costs.displacement
    return PolicyAnswer(
        policy=policy.name,
        potential=None if costs is None else costs.potential,
        displacement=displacement,
        queue=None if costs is None else costs.queue,
        slack=policy.slack,
        models=[_row(*each, displacement) for each in router.in_use().items()],
    )


def _row(model: str, used: InUse, displacement: float | None) -> CoefficientsRow:
    seconds = used.seconds
    return CoefficientsRow(
        model=model,
        origin=used.origin,
        fixed=seconds.fixed,
        per_token=seconds.per_token,
        per_pair=seconds.per_pair,
        per_loaded_token=seconds.per_loaded_token,
        per_decoded_token=seconds.per_decoded_token,
        busy=used.busy,
        displacement=None if displacement is None else displacement * used.busy / (1 - used.busy),
        fit=_fit(used),
    )


def _fit(used: InUse) -> FitRow | None:
    if used.fit is None:
        return None
    quality = used.fit.quality
    return FitRow(
        num_kept=used.num_kept,
        num_samples=used.fit.num_samples,
        took_s=quality and quality.took,
        error_s=quality and quality.error,
        expected_error_s=quality and quality.given_error,
    )
