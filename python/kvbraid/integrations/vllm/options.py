"""Options of our cache that vLLM does not have: `--additional-config` under the key "kvbraid"."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec
from vllm.config import ModelConfig, VllmConfig

from kvbraid.cache import ByValue
from kvbraid.errors import InvalidValueError, KvbraidError
from kvbraid.models import EngineOptions, PrefillCost, group_config, prefill_cost

KEY: Final = "kvbraid"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which window blocks and states stay cached.

    Attributes:
        retention: `engine`: as the engine's own option says. `value`: by value, where a reused
            token is worth the compute that it saves in this model. `value-flat`: by value, where
            every token is worth the same.
        interval: Tokens between the checkpoints of retention by value, rounded down to whole
            blocks of all groups, at least one; 0: none at intervals.
    """

    retention: Literal["engine", "value", "value-flat"] = "engine"
    interval: Annotated[int, msgspec.Meta(ge=0)] = 8_192


def retention_of(config: VllmConfig) -> ByValue | None:
    """Return the retention that was asked for; None means the engine's own.

    Raises:
        InvalidValueError: There is no such option, or the model's compute is not known.
    """
    options = _options(config.additional_config)
    if options.retention not in _COSTS:
        return None
    return ByValue(interval=options.interval, cost=_COSTS[options.retention](config.model_config))


def _options(additional: object) -> Options:
    asked = additional.get(KEY, {}) if isinstance(additional, Mapping) else {}
    try:
        return msgspec.convert(asked, Options)
    except msgspec.ValidationError as error:
        raise InvalidValueError(
            f'--additional-config has {asked!r} under "{KEY}": {error}; expected '
            '{"retention": "engine", "value" or "value-flat", "interval": tokens}'
        ) from error


def _cost(model: ModelConfig) -> PrefillCost:
    config = model.hf_config.to_dict()
    try:
        return prefill_cost(config, group_config(config, EngineOptions()).grouping)
    except KvbraidError as error:
        msg = f'{error}; "retention": "value-flat" works without this knowledge of the model'
        raise InvalidValueError(msg) from error


_COSTS: Final[Mapping[str, Callable[[ModelConfig], PrefillCost]]] = MappingProxyType(
    {"value": _cost, "value-flat": lambda _model: PrefillCost()}
)
