"""Whether blocks may run across layers: what the connector takes, and what the groups are.

    connector                        groups                               blocks run across layers
    none                             any                                  no
    HYBRID                           attention and states                 yes
    HYBRID                           one page of an unknown type          no, with a warning
    CROSS_LAYER (older interface)    one group, attention, one geometry   yes
    PER_LAYER                        any                                  no

Invariant: the answer carries its reason. Where it is no, every slot gets a buffer of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kvbraid.layout.planning.layers import LayoutGroup, UnknownPage


class ConnectorForm(Enum):
    """What a connector can take."""

    HYBRID = "whole blocks of several groups"
    CROSS_LAYER = "whole blocks of one group"
    PER_LAYER = "a view per layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossLayerDecision:
    """Whether blocks run across layers, why, and what a user should know about it."""

    is_cross_layer: bool
    why: str
    warnings: tuple[str, ...] = ()


def decide_cross_layer(
    takes: ConnectorForm | None, groups: Sequence[LayoutGroup]
) -> CrossLayerDecision:
    """Decide whether blocks may run across layers; `takes` is None without a connector."""
    if takes is None or not groups:
        missing = "no connector takes blocks" if takes is None else "there are no groups"
        return CrossLayerDecision(is_cross_layer=False, why=missing)
    if takes is ConnectorForm.PER_LAYER:
        return CrossLayerDecision(
            is_cross_layer=False, why="the connector takes a view per layer, not blocks"
        )
    return _hybrid(groups) if takes is ConnectorForm.HYBRID else _single(groups)


def _hybrid(groups: Sequence[LayoutGroup]) -> CrossLayerDecision:
    for group in groups:
        for layer in group.layers:
            if isinstance(layer.page, UnknownPage):
                why = f"layer {layer.name} keeps a {layer.page.type_name}, which is not known"
                warning = (
                    f"{why}: every slot has a buffer of its own, and a block is as many copies as "
                    "it has layers; describe the layer as attention or as a state"
                )
                return CrossLayerDecision(is_cross_layer=False, why=why, warnings=(warning,))
    return CrossLayerDecision(
        is_cross_layer=True, why="the connector takes whole blocks of several groups"
    )


def _single(groups: Sequence[LayoutGroup]) -> CrossLayerDecision:
    """The older interface: one group of attention layers, all with one geometry."""
    if len(groups) > 1:
        why = f"the connector takes whole blocks of one group, and there are {len(groups)}"
        return CrossLayerDecision(is_cross_layer=False, why=why)
    layers = groups[0].layers
    for layer in layers:
        if layer.heads is None:
            why = f"layer {layer.name} keeps no keys and values, and the connector takes no others"
            return CrossLayerDecision(is_cross_layer=False, why=why)
        if layer.geometry is None or layer.geometry.with_layers is None:
            reason = layer.unprobed or "its backend has no order with layers"
            return CrossLayerDecision(is_cross_layer=False, why=f"layer {layer.name}: {reason}")
    if len({(layer.geometry, layer.page.page_bytes) for layer in layers}) > 1:
        why = "the connector takes one tensor, and the layers have several geometries"
        return CrossLayerDecision(is_cross_layer=False, why=why)
    return CrossLayerDecision(
        is_cross_layer=True, why="the connector takes whole blocks of one group"
    )
