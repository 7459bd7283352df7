"""One model's config, read field by field: a value, else a listed default, else a refusal.

Invariant: nothing is guessed. A field is present (not null, not "auto"); or the architecture's
table of defaults has it, and this is recorded in `assumed`; or it is refused by name. This module
reads no file.
"""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Final, TypeAlias, cast

from kvbraid.errors import InvalidValueError, shortened
from kvbraid.models.cache_types import DTYPES, CacheType, cache_type, plain
from kvbraid.reading import check, one_of

FieldNames: TypeAlias = tuple[str, ...]
Default: TypeAlias = "int | str | Callable[[ConfigReader], int | str]"

MAX_LAYERS: Final = 4096
_MAX_SIZE: Final = (1 << 32) - 1
_MAX_NESTED: Final = 8
TEXT_KEYS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
# What engines do for every architecture when the config is silent.
COMMON_DEFAULTS: Final[Mapping[str, Default]] = {
    "dtype": "bfloat16",
    "mamba_ssm_dtype": "float32",
}


def text_model(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the text model's part of a config, with the outer type and dtype if it has none.

    Multimodal configs nest it under one of `TEXT_KEYS`, some twice.

    Raises:
        InvalidValueError: Nested deeper than any published config.
    """
    for _ in range(_MAX_NESTED):
        inner = next(
            (config[key] for key in TEXT_KEYS if isinstance(config.get(key), Mapping)), None
        )
        if not isinstance(inner, Mapping):
            return config
        outer = {
            name: config[name]
            for name in ("model_type", "dtype", "torch_dtype")
            if config.get(name) is not None
        }
        config = outer | {name: value for name, value in inner.items() if value is not None}
    msg = f"the text model is nested deeper than {_MAX_NESTED} objects; give the text model's own"
    raise InvalidValueError(msg)


class ConfigReader:
    """Reads named fields of one config; a dot in a name leads into a nested object.

    It changes only `assumed`, which collects the defaults used so far.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        *,
        model_type: str,
        defaults: Mapping[str, Default],
        cache_dtype: str | None = None,
        state_dtype: str | None = None,
    ) -> None:
        check("state_dtype", state_dtype, one_of(DTYPES).or_none())
        self.model_type = model_type
        self.assumed: dict[str, object] = {}
        self._values = values
        self._cache_type = None if cache_dtype is None else cache_type(cache_dtype)
        self._state_dtype = state_dtype
        self._defaults = {**COMMON_DEFAULTS, **defaults}

    def at_layer(self, number: int, names: FieldNames) -> "ConfigReader":
        """Return a reader of one layer: a field that lists its layers becomes the layer's entry.

        Defaults that the new reader assumes are recorded here too. A list that ends before the
        layer stays a list.
        """
        lists = {name: self._values.get(name) for name in names}
        entries = {
            name: entry[number]
            for name, entry in lists.items()
            if isinstance(entry, list) and number < len(entry)
        }
        if not entries:
            return self
        reader = copy(self)
        reader._values = {**self._values, **entries}
        return reader

    def find(self, *names: str) -> object | None:
        """Return the first of these fields that is present, else a listed default, else None."""
        for name in names:
            value: object = self._values
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None and value != "auto":
                return value
        for name in names:
            if name in self._defaults:
                default = self._defaults[name]
                self.assumed[name] = default(self) if callable(default) else default
                return self.assumed[name]
        return None

    def optional_size(self, *names: str) -> int | None:
        """Return a whole number of at least 1, or None if the field is absent or null.

        Raises:
            InvalidValueError: The field holds anything else.
        """
        value = self.find(*names)
        return None if value is None else self.as_size(names[0], value)

    def as_size(self, name: str, value: object) -> int:
        """Return a field's value as a whole number of at least 1.

        Raises:
            InvalidValueError: The value is anything else.
        """
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_SIZE:
            raise self.wrong(name, value, f"a whole number of at least 1, at most {_MAX_SIZE}")
        return value

    def size(self, *names: str) -> int:
        """Return a whole number of at least 1.

        Raises:
            InvalidValueError: The field is missing, or holds anything else.
        """
        value = self.optional_size(*names)
        if value is None:
            raise self.missing(*names)
        return value

    def num_layers(self) -> int:
        """Return the number of layers, at most `MAX_LAYERS`."""
        value = self.size("num_hidden_layers", "num_layers", "n_layer", "n_layers")
        if value > MAX_LAYERS:
            raise self.wrong("num_hidden_layers", value, f"at most {MAX_LAYERS}")
        return value

    def items(self, name: str) -> list[object] | None:
        """Return a list field, or None if it is absent or null."""
        value = self.find(name)
        if value is not None and not isinstance(value, list):
            raise self.wrong(name, value, "a list")
        return cast("list[object] | None", value)

    def dtype(self, *names: str) -> str:
        """Return the type of elements that the field names."""
        value = self.find(*names)
        assert value is not None  # COMMON_DEFAULTS has every type field.
        known = DTYPES.get(str(value).removeprefix("torch."))
        if known is None:
            raise self.wrong(names[0], value, f"one of {', '.join(DTYPES)}")
        return known

    def cache_type(self) -> CacheType:
        """Return how keys and values are stored: in the model's own type, or as asked for."""
        return self._cache_type or plain(self.model_dtype())

    def model_dtype(self) -> str:
        """Return the model's own type."""
        return self.dtype("dtype", "torch_dtype")

    def matrix_dtype(self, *names: str) -> str:
        """Return the type of a state matrix, which the field names."""
        return self.dtype(*names) if self._state_dtype is None else DTYPES[self._state_dtype]

    def missing(self, *names: str) -> InvalidValueError:
        """Return the refusal of a config without this field, and the remedy."""
        wanted = " or ".join(f"`{name}`" for name in names)
        return InvalidValueError(
            f"the {self.model_type} config has no {wanted}, and its sizes are not guessed; "
            "add the field as the model's publisher states it"
        )

    def wrong(self, name: str, value: object, expected: str) -> InvalidValueError:
        """Return the refusal of a value that cannot be right, and what was expected."""
        return InvalidValueError(
            f"the {self.model_type} config has `{name}` = {shortened(value)}; expected {expected}"
        )
