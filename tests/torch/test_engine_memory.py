"""An engine's own tensors, in all six of its layouts: explained, adopted, and coloured."""

from typing import Final

import pytest
import torch
from kvbraid.errors import LayoutError
from kvbraid.layout import MemoryPlan, from_engine
from kvbraid.layout.connectors import BlockDescriptors, LayerViews, register
from kvbraid.layout.descriptors import Descriptors, descriptors
from kvbraid.layout.tensors import adopt

from tests.torch.colours import Coverage, coverage, same
from tests.torch.conftest import Counts
from tests.unit.layout.engine_fakes import CASES, LAYOUTS, Engine, Group, lay_out, two_groups

CASES_OF: Final = {
    layout: [groups for groups, layouts in CASES if layout in layouts] for layout in LAYOUTS
}


def tensors_of(engine: Engine) -> dict[str, torch.Tensor]:
    """The engine's views as tensors of one storage."""
    memory = torch.from_numpy(engine.memory)
    found = {}
    for name, view in engine.views.items():
        offset = view.ctypes.data - memory.data_ptr()
        strides = [each // view.itemsize for each in view.strides]
        typed = memory.view(getattr(torch, view.dtype.name))
        found[name] = typed.as_strided(view.shape, strides, offset // view.itemsize)
    return found


def explained(layout: str, groups: list[Group]) -> Coverage:
    """Colour an engine's memory through its views (states: through the plan's)."""
    engine = lay_out(layout, groups)
    views = tensors_of(engine)
    plan = from_engine(engine.config, views)
    tensors = adopt(plan, views)
    theirs = {name: views[name] for name in plan.views if name in views}
    assert all(same(tensors.views[name], view) for name, view in theirs.items())
    return coverage(plan, tensors.memory, {**tensors.views, **theirs})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_references_name_every_byte_of_an_engines_tensors(layout: str, counts: Counts) -> None:
    found = [explained(layout, groups()) for groups in CASES_OF[layout]]
    counts.engine_layouts += 1
    counts.bytes_missed += sum(each.missed for each in found)
    counts.bytes_foreign += sum(each.foreign for each in found)
    assert [(each.missed, each.foreign) for each in found] == [(0, 0)] * len(found)
    assert len(found) >= 3


@pytest.mark.parametrize("layout", ["BLHNC", "LBHNC"])
def test_connectors_get_an_engines_memory_as_they_get_ours(layout: str) -> None:
    engine = lay_out(layout, two_groups())
    views = tensors_of(engine)
    plan = from_engine(engine.config, views)
    tensors = adopt(plan, views)
    taken: dict[str, torch.Tensor] = {}
    movers: list[Descriptors] = []
    register(plan, tensors, LayerViews(taken.update))
    register(plan, tensors, BlockDescriptors(movers.append))
    assert {name: view.data_ptr() for name, view in taken.items()} == {
        name: view.data_ptr() for name, view in views.items()
    }
    expected = descriptors(plan, [[1], [2]], bases=engine.memory.ctypes.data)
    assert movers[0].chunks([[1], [2]]).tolist() == expected.tolist()


def test_a_reference_that_is_wrong_is_seen() -> None:
    """The colours themselves can fail: a chunk that is moved misses bytes and holds others."""
    engine = lay_out("BLHNC", two_groups())
    views = tensors_of(engine)
    plan = from_engine(engine.config, views)
    tensors = adopt(plan, views)
    swapped = dict(zip(views, reversed(views.values()), strict=True))
    found = coverage(plan, tensors.memory, swapped)
    assert found.missed == found.foreign > 0


def test_no_views_are_no_memory_to_adopt() -> None:
    plan = MemoryPlan(buffers=(), groups=(), views={})
    with pytest.raises(LayoutError, match="no views"):
        adopt(plan, {})
