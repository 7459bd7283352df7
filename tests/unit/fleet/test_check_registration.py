"""A pod that no index takes is refused before there is an index, in the same words."""

import pytest
from kvbraid.engine import EngineProfile
from kvbraid.errors import InvalidValueError
from kvbraid.fleet import FleetIndex
from kvbraid.fleet.registration import check_registration
from kvbraid.ids import PodId
from kvbraid.spec import GroupSpec, SpecKind, Topology

FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)
LARGE = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=1 << 31)


@pytest.mark.parametrize("topology", [Topology(groups=(FULL,) * 300), Topology(groups=(LARGE,))])
def test_what_an_index_refuses_is_refused_without_one(topology: Topology) -> None:
    with pytest.raises(InvalidValueError) as told:
        FleetIndex().register(PodId("a"), model="m", topology=topology)
    with pytest.raises(InvalidValueError) as checked:
        check_registration("m", topology, EngineProfile())
    assert str(checked.value) == str(told.value)


def test_what_an_index_takes_passes() -> None:
    check_registration("m", Topology(groups=(FULL,)), EngineProfile())
    check_registration("m", None, EngineProfile())
