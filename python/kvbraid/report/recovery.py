"""`kvbraid recover`: what a decision does with each request and why, in sentences and as JSON.

Blocks have the numbers that their engine knows them by. Names of tiers are printed as plain text.
"""

from collections.abc import Collection, Iterator
from textwrap import wrap
from typing import Any, Final

from kvbraid.cache.tables import Refusal, Why
from kvbraid.errors import printable
from kvbraid.ids import BlockId
from kvbraid.loads import Record
from kvbraid.models.layers import runs
from kvbraid.recovery import Action, RecoveryPlan, RequestPlan, State

_COLUMNS: Final = 80
_MOST_NUMBERS: Final = 400
_ACTIONS: Final = {
    Action.REWIND: "goes back to {resume} in place, and computes {recompute} again.",
    Action.START_OVER: (
        "gives its blocks back and starts over. It can resume at {resume} of its own; {recompute} "
        "are computed or loaded again."
    ),
    Action.FAIL: "ends with an error, as the policy says. It could have resumed at {resume}.",
    Action.TAINTED_OUTPUT: (
        "ends with the error tainted_output under every policy: an output token was computed from "
        "garbage and handed out."
    ),
}
_NO_BLOCK: Final = "has no block there any more"


def recovery_json(state: State, plan: RecoveryPlan) -> dict[str, Any]:
    """Return what `kvbraid recover --json` prints."""
    return {
        "requests": {
            str(request): _request_json(state, each) for request, each in plan.requests.items()
        },
        "tainted": _ids(state, plan.tainted),
        "held": _ids(state, plan.recovery.hold),
        "ignored": {reason.value: number for reason, number in sorted(plan.ignored.items())},
        "policy": state.policy.value,
    }


def _request_json(state: State, plan: RequestPlan) -> dict[str, Any]:
    return {
        "action": plan.action.value,
        "resume": plan.resume,
        "recompute": plan.recompute,
        "dropped": plan.num_dropped_tokens,
        "owner_of": _ids(state, plan.owner_of),
        "waits_for": _ids(state, plan.waits_for),
        "refused": [
            {
                "boundary": refusal.boundary,
                "group": refusal.group,
                "position": refusal.position,
                "block": state.in_its_pool(refusal.block_id),
                "why": refusal.why.value,
            }
            for refusal in plan.refused
        ],
    }


def recovery_text(state: State, plan: RecoveryPlan) -> str:
    """Return what `kvbraid recover` prints: at most 80 columns, a paragraph per request."""
    lines = [line for sentence in _overall(state, plan) for line in _paragraph(sentence)]
    for each in plan.requests.values():
        lines += ["", *_paragraph(_headline(each))]
        for reason in _reasons(state, each):
            lines += _paragraph(reason, bullet="- ")
    return "\n".join(lines)


def _paragraph(sentence: str, bullet: str = "") -> list[str]:
    return wrap(
        printable(sentence), _COLUMNS, initial_indent=bullet, subsequent_indent=" " * len(bullet)
    )


def _overall(state: State, plan: RecoveryPlan) -> Iterator[str]:
    going_on = {run.request for run in state.runs if not run.has_ended}
    untouched = going_on - plan.requests.keys()
    if plan.tainted:
        tainted = _blocks(state, plan.tainted)
        yield f"Tainted, and to be forgotten by the cache and all tiers: {tainted}."
    elif not plan.requests:
        yield "No request is affected: nothing failed that a load of one of them fills."
    if untouched and plan.requests:
        yield f"Untouched: {_named('request', untouched)}."
    if plan.recovery.hold:
        held = _blocks(state, plan.recovery.hold)
        yield f"In quarantine until every rank has reported the end of its transfer: {held}."
    for what, records in (("Dropped", plan.drop), ("Backed off", plan.back_off)):
        if records:
            yield f"{what}: {_records(records)}."
    if plan.ignored:
        reasons = ", ".join(
            f"{number} {why.value}" for why, number in sorted(plan.ignored.items())
        )
        yield f"Parts of the report that do not count: {reasons}."


def _headline(plan: RequestPlan) -> str:
    resume, recompute = _tokens(plan.resume), _tokens(plan.recompute)
    if plan.action is Action.REWIND and not plan.recompute:
        return f"Request {plan.request} keeps its blocks and stays at {resume}."
    what = _ACTIONS[plan.action].format(resume=resume, recompute=recompute)
    return f"Request {plan.request} {what}"


def _reasons(state: State, plan: RequestPlan) -> Iterator[str]:
    for refusal in plan.refused:
        yield f"Boundary {refusal.boundary} is refused: {_why(state, refusal)}."
    if plan.owner_of:
        owned = _blocks(state, plan.owner_of)
        yield f"It alone writes {owned} again, for all who share it."
    for owner in sorted(set(plan.waits_for.values())):
        awaited = [block for block, each in plan.waits_for.items() if each == owner]
        yield f"It waits until request {owner} has computed {_blocks(state, awaited)}."
    if plan.num_dropped_tokens:
        yield f"Steps in flight: the outputs of {_tokens(plan.num_dropped_tokens)} are dropped."


def _why(state: State, refusal: Refusal) -> str:
    spec = state.snapshot.topology.groups[refusal.group]
    size = spec.window or spec.chunk
    group = f"group {refusal.group} ({spec.kind.value}{f' of {size} tokens' if size else ''})"
    block, position = state.in_its_pool(refusal.block_id), refusal.position
    if refusal.why is Why.BAD:
        return f"{group} needs block {block} at position {position}, which is tainted"
    if refusal.why is Why.NOT_COMPUTED:
        return f"the draft head of {group} needs position {position}, which is not computed"
    if refusal.block_id:
        return f"{group} has no state there: block {block} holds one of other tokens"
    return f"{group} needs position {position}, and {_NO_BLOCK}"


def _ids(state: State, blocks: Collection[BlockId]) -> list[int]:
    return [state.in_its_pool(block) for block in sorted(blocks)]


def _blocks(state: State, blocks: Collection[BlockId]) -> str:
    return _named("block", _ids(state, blocks))


def _named(what: str, numbers: Collection[int]) -> str:
    """Numbers as ranges; only the first ones if there are very many."""
    each = sorted(set(numbers))
    text = f"{what if len(each) == 1 else what + 's'} {runs(tuple(each[:_MOST_NUMBERS]))}"
    more = len(each) - _MOST_NUMBERS
    return f"{text} and {more} more" if more > 0 else text


def _tokens(number: int) -> str:
    return f"{number} {'token' if number == 1 else 'tokens'}"


def _records(records: Collection[Record]) -> str:
    tiers = sorted({record.tier for record in records})
    of = ", ".join(f"{sum(r.tier == tier for r in records)} of {tier}" for tier in tiers)
    return f"{'record' if len(records) == 1 else 'records'} {of}"
