"""What failures mean for runs: the closure of taint, then resume points, owners and waiters.

```text
1  failed blocks        those of the report that a load of a run fills, or has filled
2  taint                every block that a step wrote after it had read a tainted one, of any run
3  resume points        the rule over each run's own table, less what is tainted
4  owners               a tainted block that runs share is written again by one of them
```
A thin face of the native core, which reads the tables of a live cache where they are.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, cast

from kvbraid._native import assess_snapshot
from kvbraid.cache import CacheManager
from kvbraid.cache.tables import Refusal, Why
from kvbraid.ids import BlockId
from kvbraid.loads import Failures
from kvbraid.reading import COUNT, check, check_fields
from kvbraid.recovery.decision.assessment import Assessment, Ignored, Verdict
from kvbraid.recovery.decision.run import Run
from kvbraid.recovery.decision.snapshot import Snapshot

if TYPE_CHECKING:
    from kvbraid._native import _VerdictTuple


def assess(
    source: CacheManager | Snapshot,
    runs: Sequence[Run],
    failures: Failures,
    *,
    busy: Collection[BlockId] = (),
    max_refusals: int = 0,
    former: Sequence[BlockId] = (),
) -> Assessment:
    """Return what the failures taint, and where each affected run resumes. Changes nothing.

    Args:
        source: The cache whose tables count, or a copy of tables.
        runs: All runs that go on, and those that ended while their steps were in flight.
        failures: What failed, of all ranks together. Numbers that are no block, group, position or
            request at all count as one of each kind.
        busy: Blocks that a transfer may still write.
        max_refusals: How many refused boundaries to tell for each run.
        former: The blocks that held former contents. A run that read a block and gave it back
            names what it read: the block, or, if the block was handed out again, the number of
            blocks plus an index of `former`. The tables of ended runs do the same.

    Raises:
        UnknownError: A run that goes on has no tables.
        InvalidValueError: A run has not one table for each group, two runs of a request go on, or
            a number is no unsigned integer of 32 bits.
    """
    check("max_refusals", max_refusals, COUNT)
    try:
        if isinstance(source, Snapshot):
            answer = assess_snapshot(source, runs, failures, busy, max_refusals, former)
        else:
            answer = source.tables.native.assess(runs, failures, busy, max_refusals, former)
    except (OverflowError, TypeError):
        for run in runs:
            check_fields(run, _RUN, prefix="")
            for gone in run.given_back:
                check_fields(gone, _GIVEN_BACK, prefix="")
        raise
    garbage, verdicts, ignored, told = answer
    tainted = cast("list[BlockId]", memoryview(garbage).cast("I").tolist())
    num_lost = len(tainted) - bisect_left(tainted, _num_blocks(source))
    counts = zip(Ignored, ignored, strict=True)
    return Assessment(
        tainted=tuple(tainted[:-num_lost] if num_lost else tainted),
        lost=tuple(tainted[-num_lost:] if num_lost else ()),
        told=tuple(told),
        verdicts=tuple([_verdict(row) for row in verdicts]),
        ignored={why: count for why, count in counts if count},
    )


def _num_blocks(source: CacheManager | Snapshot) -> int:
    return source.num_blocks if isinstance(source, Snapshot) else source.config.num_blocks


def _verdict(row: "_VerdictTuple") -> Verdict:
    request, first, handed_out, resume, in_place, owner_of, waits_for, busy, told = row
    refused = tuple([Refusal(*each[:4], Why(each[4])) for each in told]) if told else ()
    return Verdict(
        request, first, handed_out, resume, in_place, owner_of, waits_for, busy, refused
    )


_RUN: Final = dict.fromkeys(
    (
        "num_tokens",
        "num_known_tokens",
        "num_local_tokens",
        "num_loaded_tokens",
        "num_processed_tokens",
        "num_computed_tokens",
    ),
    COUNT,
)
_GIVEN_BACK: Final = dict.fromkeys(("group", "position", "block_id"), COUNT)
