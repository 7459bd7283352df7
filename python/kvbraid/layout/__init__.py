"""Where every byte of a hybrid model's KV cache lives.

    groups (kvbraid.models) -> plan (planner) -> tensors (tensors.py, torch) -> references

In reading order:

    plan         what a plan says; `sizes` are its numbers, `check` is what every plan keeps
    planning/    from groups of layers to a plan
    engine/      memory that vLLM has laid out, as a plan
    document     a plan as JSON and back, and its fingerprint
    tensors      the pool of a plan; needs torch
    descriptors  what to move, as arrays; needs numpy
    connectors   the pool in the form that a connector takes

A plan is pure data: it needs neither torch nor numpy nor the native core. `tensors` needs the
extra `torch`, `descriptors` needs numpy; both are imported by name.
"""

from kvbraid.layout.document import fingerprint, from_json, to_json
from kvbraid.layout.engine.describe import from_engine
from kvbraid.layout.plan import (
    NULL_BLOCK,
    Buffer,
    ByteRun,
    Chunk,
    MemoryPlan,
    PlannedGroup,
    Reference,
    View,
)
from kvbraid.layout.planning.cross_layer import (
    ConnectorForm,
    CrossLayerDecision,
    decide_cross_layer,
)
from kvbraid.layout.planning.from_config import PlannedModel, plan_config
from kvbraid.layout.planning.geometry import Geometry, Layout, geometry_of
from kvbraid.layout.planning.layers import (
    LayoutGroup,
    LayoutLayer,
    Split,
    UnknownPage,
    from_grouping,
)
from kvbraid.layout.planning.planner import PlanOptions, plan_memory
from kvbraid.layout.planning.probe import Probe, geometry_from_layouts, probe_backend

__all__ = [
    "NULL_BLOCK",
    "Buffer",
    "ByteRun",
    "Chunk",
    "ConnectorForm",
    "CrossLayerDecision",
    "Geometry",
    "Layout",
    "LayoutGroup",
    "LayoutLayer",
    "MemoryPlan",
    "PlanOptions",
    "PlannedGroup",
    "PlannedModel",
    "Probe",
    "Reference",
    "Split",
    "UnknownPage",
    "View",
    "decide_cross_layer",
    "fingerprint",
    "from_engine",
    "from_grouping",
    "from_json",
    "geometry_from_layouts",
    "geometry_of",
    "plan_config",
    "plan_memory",
    "probe_backend",
    "to_json",
]
