"""The page on operating kvbraid: the service's own remedies, sums that add up, answers as said."""

from dataclasses import replace
from typing import Final

import pytest
from kvbraid.events.model import BlockStored
from kvbraid.events.wire import encode_batch
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState
from kvbraid.service.config import PodConfig
from kvbraid.service.remedy import remedy_for
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.docs.test_reference_pages import tables

POD: Final = PodConfig(model="m", endpoint="tcp://h:5557")
LISTED: Final = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))
SECONDS: Final = {"15 minutes": 900, "one hour": 3600, "since the start, a week ago": 604_800}


def test_the_page_explains_each_part_of_a_remedy() -> None:
    pods = (POD, replace(POD, replay_endpoint="tcp://h:5558"))
    said = {
        part for pod in pods for part in remedy_for(PodState.DEGRADED, pod).split("; ") if part
    }
    (table,) = tables("operate.md", "A pod that kvbraid met late")
    assert {first for first, _ in table} == said


@pytest.mark.parametrize("state", [PodState.EXACT, PodState.REBUILDING, PodState.STALE])
def test_nothing_is_to_be_done_if_nothing_is_lost(state: PodState) -> None:
    assert remedy_for(state, POD) == ""


def test_the_sizes_are_batches_per_second_times_seconds() -> None:
    (table,) = tables("operate.md", "How large the buffer has to be")
    assert table
    for rate, outage, steps in table:
        assert int(rate) * SECONDS[outage] == int(steps.replace(" ", ""))


@pytest.mark.parametrize(("topology", "lower"), [(LISTED, 32), (None, 0)])
def test_a_pod_that_was_met_late_answers_as_the_page_says(
    topology: Topology | None, lower: int
) -> None:
    index, pod = FleetIndex(), PodId("a")
    index.register(pod, model="m", topology=topology)
    index.lose(pod)
    index.set_state(pod, PodState.DEGRADED, reason="batches 0 to 3 are lost")
    stored = BlockStored(
        block_hashes=(1, 2),
        parent_block_hash=None,
        token_ids=tuple(range(32)),
        block_size=16,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    index.apply(pod, encode_batch([stored]))
    (row,) = index.score(Request(model="m", token_ids=tuple(range(65)))).rows
    assert (row.lower, row.expected, row.upper) == (lower, 32, 64)
