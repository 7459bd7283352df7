"""Where every byte of a hybrid model's KV cache lives.

    groups (kvbraid.models) -> plan (planner) -> tensors (tensors.py, torch) -> references

A plan is pure data: it needs neither torch nor numpy nor the native core. `kvbraid.layout.tensors`
needs the extra `torch`, `kvbraid.layout.descriptors` needs numpy; both are imported by name.
"""

from kvbraid.layout.from_config import PlannedModel, plan_config
from kvbraid.layout.gate import Gate, Takes, gate
from kvbraid.layout.geometry import Geometry, Layout, geometry_of
from kvbraid.layout.layers import LayoutGroup, LayoutLayer, Split, UnknownPage, from_grouping
from kvbraid.layout.plan import (
    NULL_BLOCK,
    Buffer,
    Chunk,
    MemoryPlan,
    PlannedGroup,
    Reference,
    Run,
    View,
)
from kvbraid.layout.planner import PlanOptions, plan_memory
from kvbraid.layout.probe import Probe, geometry_from_layouts, probe_backend

__all__ = [
    "NULL_BLOCK",
    "Buffer",
    "Chunk",
    "Gate",
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
    "Run",
    "Split",
    "Takes",
    "UnknownPage",
    "View",
    "from_grouping",
    "gate",
    "geometry_from_layouts",
    "geometry_of",
    "plan_config",
    "plan_memory",
    "probe_backend",
]
