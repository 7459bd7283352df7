"""The decision: from runs and failures to a plan, under a policy. It changes nothing."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Final

from kvbraid.cache import CacheManager
from kvbraid.cache.failed_loads import Recovery
from kvbraid.ids import BlockId
from kvbraid.loads import Failures
from kvbraid.recovery.decision.assess import assess
from kvbraid.recovery.decision.assessment import Assessment, Verdict
from kvbraid.recovery.decision.plan import Action, RecoveryPlan, RequestPlan
from kvbraid.recovery.decision.policy import Policy
from kvbraid.recovery.decision.run import Run
from kvbraid.recovery.decision.snapshot import Snapshot

# Python 3.11 takes long to find a member of an enumeration, and hundreds of requests ask for one.
_REWIND: Final = Action.REWIND
_START_OVER: Final = Action.START_OVER
_FAIL: Final = Policy.FAIL


def decide(  # noqa: PLR0913 - what is asked for by name is hard to confuse.
    source: CacheManager | Snapshot,
    runs: Sequence[Run],
    failures: Failures,
    *,
    busy: Collection[BlockId] = (),
    policy: Policy = Policy.RECOMPUTE,
    max_refusals: int = 0,
    former: Sequence[BlockId] = (),
) -> RecoveryPlan:
    """Return what to do after loads failed.

    Args:
        source: The cache whose tables count, or a copy of tables.
        runs: All runs that go on, and those that ended while their steps were in flight.
        failures: What failed, of all ranks together.
        busy: Blocks that a transfer may still write: no request writes into them in place, and
            the plan holds those of affected requests that give their blocks back or end.
        policy: What happens to affected requests. Whether one may ask a tier again is not decided
            here: after `retry` and `recompute` it resumes at the same boundary.
        max_refusals: How many refused boundaries to tell for each request.
        former: As in `assess`.

    Raises:
        UnknownError: A run that goes on is not known to the cache.
        InvalidValueError: A run has not one table for each group, or two runs of a request go on.
    """
    found = assess(source, runs, failures, busy=busy, max_refusals=max_refusals, former=former)
    by_request = {run.request: run for run in runs if not run.has_ended}
    plans = {v.request: _plan(by_request[v.request], v, policy) for v in found.verdicts}
    spoilt = [record for record in sorted(failures.causes) if not record.is_foreign]
    return RecoveryPlan(
        requests=plans,
        tainted=found.tainted,
        recovery=_recovery(by_request, plans, found),
        drop=tuple(r for r in spoilt if failures.causes[r].spoils_record),
        back_off=tuple(r for r in spoilt if not failures.causes[r].spoils_record),
        ignored=found.ignored,
        lost=found.lost,
        told=found.told,
    )


def _plan(run: Run, verdict: Verdict, policy: Policy) -> RequestPlan:
    request, _, handed_out, resume, in_place, owner_of, waits_for, _, refused = verdict
    if handed_out:
        action = Action.TAINTED_OUTPUT
    elif policy is _FAIL:
        action = Action.FAIL
    else:
        action = _REWIND if in_place else _START_OVER
    processed = run.num_processed_tokens
    recompute, dropped = processed - resume, run.num_computed_tokens - processed
    return RequestPlan(  # Made by position: keywords take twice as long.
        request, action, resume, recompute, dropped, owner_of, waits_for, refused
    )


def _recovery(
    runs: Mapping[int, Run], plans: Mapping[int, RequestPlan], found: Assessment
) -> Recovery:
    rewound: dict[int, int] = {}
    preempted: list[int] = []
    uncommitted: dict[int, int] = {}
    for request, plan in plans.items():
        if plan.action is _REWIND:
            rewound[request] = plan.resume
        elif plan.action is _START_OVER:
            preempted.append(request)
        else:
            continue
        if runs[request].delays_commit:
            uncommitted[request] = plan.resume
    given_back = (v.busy for v in found.verdicts if v.busy and v.request not in rewound)
    return Recovery(
        forget=found.tainted,
        # Not those of waiters: their blocks are not whole.
        commit={r: n for r, n in uncommitted.items() if not plans[r].waits_for},
        rewind=rewound,
        hold=sorted(set(chain.from_iterable(given_back))),
        preempt=preempted,
        # What a load has left unwritten: others may hold the hit before it.
        zero={r: max(n, runs[r].num_local_tokens) for r, n in uncommitted.items() if r in rewound},
    )
