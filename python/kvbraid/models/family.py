"""The type of one row of the table of architectures, and the defaults that rows share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvbraid.models.config import ConfigReader, Default, FieldNames
from kvbraid.models.patterns import Pattern, Role
from kvbraid.models.sizes import Attention, Sizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture: which layer owns which cache, its size, and what configs leave out.

    `first` names roles that an engine registers before all others, in whichever layers they are;
    the rest follow in order of first appearance. `per_layer` names the fields that may list one
    entry per layer. `engine_state_dtype` is the type that an engine gives to state matrices if the
    config names none (None: the model's own).
    """

    pattern: Pattern
    sizes: Mapping[Role, Sizer]
    fields: str  # The fields that `pattern` reads, for the message if none of them is present.
    defaults: Mapping[str, Default] = field(default_factory=dict)
    first: tuple[Role, ...] = ()
    per_layer: FieldNames = ()
    engine_state_dtype: "Default | None" = None


def head_dim_by_division(config: ConfigReader) -> int:
    """Return hidden_size / num_attention_heads, as most classes define a head."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if hidden % heads:
        raise config.missing("head_dim")
    return hidden // heads


def one_kv_head_per_query_head(config: ConfigReader) -> int:
    """Return num_attention_heads: attention without grouping."""
    return config.size("num_attention_heads")


def per_head(heads: str, expand: str) -> Default:
    """The head size of a Mamba-2 layer: its inner width, divided among its heads."""
    return lambda config: config.size(expand) * config.size("hidden_size") // config.size(heads)


ATTENTION: Final = Attention()
DIVIDED: Final[Mapping[str, Default]] = {"head_dim": head_dim_by_division}
USUAL: Final[Mapping[str, Default]] = {
    "head_dim": head_dim_by_division,
    "num_key_value_heads": one_kv_head_per_query_head,
}
