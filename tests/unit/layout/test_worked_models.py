"""The plans of published models have the bytes, strides and runs that were worked out for them."""

from kvbraid.layout import Layout, from_json, to_json
from kvbraid.models import EngineOptions

from tests.unit.layout.worked_models import planned


def test_gemma_2_keeps_a_block_of_either_group_in_one_range() -> None:
    plan = planned("gemma-2-2b")
    assert plan.block_bytes == 851_968
    assert [group.references[0].exact() for group in plan.groups] == [((0, 851_968),)] * 2
    view = plan.views["25"]
    assert view.shape == (2, 4, 16, 4, 256)
    assert view.stride == (16_384, 425_984, 1_024, 256, 1)
    assert view.offset == 12 * 65_536


def test_a_plan_is_read_back_from_its_json() -> None:
    plan = planned("gpt-oss-20b", EngineOptions(num_ranks=2), layout=Layout.HND)
    assert from_json(to_json(plan)) == plan
