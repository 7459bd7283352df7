"""Layer patterns: which caches each layer of a model owns, or whose cache it reads.

A pattern is a function that takes a config and returns one set of roles per layer, or None if the
fields it reads are absent; `first_of` tries several patterns. A pattern never looks at sizes:
sizes.py says what a role needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from kvbraid.models.config import ConfigReader


class Role(Enum):
    """A cache that a layer may own."""

    FULL = "full"
    SPARSE = "sparse"  # All tokens, and their index keys.
    WINDOW = "window"
    CHUNK = "chunk"
    STATE = "state"
    COMPRESSED_4 = "compressed_4"
    COMPRESSED_128 = "compressed_128"


@dataclass(frozen=True, slots=True)
class Reads:
    """A layer owns no cache and reads that of an earlier layer, `owner` (0-based)."""

    owner: int


Roles: TypeAlias = tuple[Role | Reads, ...]
Layers: TypeAlias = tuple[Roles, ...]
Pattern: TypeAlias = Callable[[ConfigReader], Layers | None]

NO_CACHE: Final[Roles] = ()
FULL: Final[Roles] = (Role.FULL,)
WINDOW: Final[Roles] = (Role.WINDOW,)
STATE: Final[Roles] = (Role.STATE,)
BOTH: Final[Roles] = (Role.FULL, Role.STATE)  # Side by side; engines build attention first.

LAYER_NAMES: Final[Mapping[object, Roles]] = {
    "full_attention": FULL,
    "attention": FULL,
    "sliding_attention": WINDOW,
    "chunked_attention": (Role.CHUNK,),
    "linear_attention": STATE,
    "mamba": STATE,
    "conv": STATE,
    "hybrid": BOTH,
    "mlp": NO_CACHE,
    "moe": NO_CACHE,
}


def every(roles: Roles) -> Pattern:
    """All layers alike."""
    return lambda config: (roles,) * config.num_layers()


def first_of(*patterns: Pattern) -> Pattern:
    """The first pattern whose fields the config has."""

    def choose(config: ConfigReader) -> Layers | None:
        return next((found for each in patterns if (found := each(config)) is not None), None)

    return choose


def listed(
    name: str, meaning: Mapping[object, Roles] = LAYER_NAMES, *, empty_is_absent: bool = False
) -> Pattern:
    """One entry per layer; entries after the last layer (prediction heads) are ignored.

    `empty_is_absent`: an empty list counts as no field, as in the model's own class.
    """

    def read(config: ConfigReader) -> Layers | None:
        entries = config.items(name)
        if entries is None or (empty_is_absent and not entries):
            return None
        count = config.num_layers()
        if len(entries) < count:
            raise config.wrong(name, entries, f"{count} entries, one per layer")
        return tuple(_meaning(config, name, meaning, entry) for entry in entries[:count])

    return read


def spelled(name: str, meaning: Mapping[object, Roles]) -> Pattern:
    """One letter per layer."""

    def read(config: ConfigReader) -> Layers | None:
        letters = config.find(name)
        if letters is None:
            return None
        if not isinstance(letters, (str, list)):
            raise config.wrong(name, letters, "letters, one per layer")
        count = config.num_layers()
        if len(letters) != count:
            raise config.wrong(name, letters, f"{count} letters, one per layer")
        return tuple(_meaning(config, name, meaning, letter) for letter in letters)

    return read


def every_nth(name: str, *, nth: Roles, others: Roles) -> Pattern:
    """Every n-th layer differs: i where (i + 1) % n == 0."""

    def read(config: ConfigReader) -> Layers | None:
        step = config.optional_size(name)
        if step is None:
            return None
        count = config.num_layers()
        return tuple(nth if (i + 1) % step == 0 else others for i in range(count))

    return read


def period(step_name: str, offset_name: str, *, nth: Roles, others: Roles) -> Pattern:
    """One layer of each period differs: i where i % period == offset (which may be 0)."""

    def read(config: ConfigReader) -> Layers | None:
        step = config.size(step_name)
        offset = config.find(offset_name)
        if offset is None:
            raise config.missing(offset_name)
        if not isinstance(offset, int) or not 0 <= offset < step:
            raise config.wrong(offset_name, offset, f"0 to {step - 1}")
        return tuple(nth if i % step == offset else others for i in range(config.num_layers()))

    return read


def repeated(name: str, meaning: Mapping[object, Roles]) -> Pattern:
    """A word whose letters repeat over the layers (EXAONE's "LLLG")."""

    def read(config: ConfigReader) -> Layers | None:
        word = config.find(name)
        if not isinstance(word, str) or not word:
            return None
        roles = [_meaning(config, name, meaning, letter) for letter in word]
        return tuple(roles[i % len(roles)] for i in range(config.num_layers()))

    return read


def at(name: str, *, inside: Roles, outside: Roles, first: int = 0) -> Pattern:
    """A list of layer numbers, counted from `first`."""

    def read(config: ConfigReader) -> Layers | None:
        numbers = config.items(name)
        if numbers is None:
            return None
        count = config.num_layers()
        chosen = set()
        for number in numbers:
            if not isinstance(number, int) or not first <= number < first + count:
                raise config.wrong(name, number, f"layer numbers {first} to {first + count - 1}")
            chosen.add(number)
        return tuple(inside if i + first in chosen else outside for i in range(count))

    return read


def window_from_layer(config: ConfigReader) -> Layers:
    """Windows from layer `max_window_layers` on, and only where `use_sliding_window` is true."""
    count = config.num_layers()
    on = config.find("use_sliding_window") is True and config.find("sliding_window") is not None
    if not on:
        return (FULL,) * count
    first = config.find("max_window_layers")
    if not isinstance(first, int):
        raise config.missing("max_window_layers")
    return tuple(WINDOW if i >= first else FULL for i in range(count))


def full_unless(name: str, pattern: Pattern) -> Pattern:
    """`pattern` if the config has this size; all layers full if it is absent, null or 0."""

    def read(config: ConfigReader) -> Layers | None:
        value = config.find(name)
        if value is None or (value == 0 and not isinstance(value, bool)):
            return (FULL,) * config.num_layers()
        config.as_size(name, value)
        return pattern(config)

    return read


def all_or_none(pattern: Pattern) -> Pattern:
    """`pattern` for a class without layer types of its own: a mixed list makes all full."""

    def read(config: ConfigReader) -> Layers | None:
        types = config.items("layer_types")
        if types is not None and any(each != "sliding_attention" for each in types):
            return (FULL,) * config.num_layers()
        return pattern(config)

    return read


def windowed(pattern: Pattern) -> Pattern:
    """`pattern`, with windows instead of full layers if the config has a window."""

    def read(config: ConfigReader) -> Layers | None:
        layers = pattern(config)
        if layers is None or config.optional_size("sliding_window") is None:
            return layers
        return tuple(WINDOW if roles == FULL else roles for roles in layers)

    return read


def where(name: str, pattern: Pattern) -> Pattern:
    """`pattern` if this flag is set; otherwise all layers are full."""

    def read(config: ConfigReader) -> Layers | None:
        return pattern(config) if config.find(name) is True else (FULL,) * config.num_layers()

    return read


def windows_listed(name: str) -> Pattern:
    """A window per layer, null or 0 for a full layer; a single number is for all layers."""

    def read(config: ConfigReader) -> Layers | None:
        value, count = config.find(name), config.num_layers()
        if value is None:
            return None
        if not isinstance(value, list):
            config.as_size(name, value)
            return (WINDOW,) * count
        if len(value) < count:
            raise config.wrong(name, value, f"{count} entries, one per layer")
        return tuple(WINDOW if each else FULL for each in value[:count])

    return read


def owners(pattern: Pattern) -> Pattern:
    """The last `num_kv_shared_layers` layers own no cache.

    Each reads that of the last layer of its own type before them. (For Gemma 3n, vLLM 0.32 counts
    back one layer for a full layer and two for a window, which is the same in published models.)
    """

    def read(config: ConfigReader) -> Layers | None:
        layers = pattern(config)
        shared = config.find("num_kv_shared_layers")
        if layers is None or shared in (None, 0):
            return layers
        if not isinstance(shared, int) or not 0 < shared < len(layers):
            raise config.wrong("num_kv_shared_layers", shared, f"fewer than {len(layers)} layers")
        kept = layers[: len(layers) - shared]
        last = {roles: number for number, roles in enumerate(kept)}
        readers = layers[len(kept) :]
        if not last.keys() >= set(readers):
            wanted = "so few layers that those before them have every type among them"
            raise config.wrong("num_kv_shared_layers", shared, wanted)
        return kept + tuple((Reads(last[roles]),) for roles in readers)

    return read


def shared_by_factor(config: ConfigReader) -> Layers:
    """Cross-layer attention: of each `cla_share_factor` layers the first owns the cache."""
    count = config.num_layers()
    factor = config.size("cla_share_factor") if config.find("use_cla") is True else 1
    return tuple(FULL if i % factor == 0 else (Reads(i - i % factor),) for i in range(count))


def two_of_each(config: ConfigReader) -> Layers:
    """Two attention blocks in each layer, each with a cache of its own, counted one by one."""
    return (FULL,) * (2 * config.num_layers())


def looped(config: ConfigReader) -> Layers:
    """Layers that run twice: first with full attention, then with a window of their own."""
    if config.size("loop_num") != 2:
        raise config.wrong("loop_num", config.find("loop_num"), "2")
    return (FULL + WINDOW,) * config.num_layers()


def cycled(config: ConfigReader) -> Layers:
    """Two stacks of layers that run in cycles, with a cache for each run of a layer.

    In each of `H_cycles` the low stack runs `L_cycles` times and the high one once.
    """
    runs = config.size("H_cycles") * (config.size("L_cycles") + 1)
    if config.find("num_layers_per_stack") is not None:  # The class may have written it.
        return (FULL,) * (runs * config.size("num_layers_per_stack"))
    return (FULL,) * (runs * config.num_layers())


def blocks_listed(config: ConfigReader) -> Layers | None:
    """A block per layer, with or without attention; each has its own number of heads."""
    blocks = config.items("block_configs")
    if blocks is None:
        return None
    count = config.num_layers()
    if len(blocks) < count:
        raise config.wrong("block_configs", blocks, f"{count} entries, one per layer")
    attention = [b.get("attention") if isinstance(b, Mapping) else None for b in blocks[:count]]
    return tuple(
        FULL if isinstance(each, Mapping) and each.get("n_heads_in_group") else NO_CACHE
        for each in attention
    )


def last_of_each(name: str, *, tail: Roles, last: Roles, others: Roles) -> Pattern:
    """The last layer of each group of this size differs, and so may layers left at the end."""

    def read(config: ConfigReader) -> Layers:
        step, count = config.size(name), config.num_layers()
        whole = count // step * step
        return tuple(
            tail if i >= whole else last if (i + 1) % step == 0 else others for i in range(count)
        )

    return read


def decoder_decoder(config: ConfigReader) -> Layers:
    """Phi-4-flash: Mamba on even layers, windows on odd ones, until one full layer closes it.

    layer   0 1 2 3 ... n/2-1 | n/2   n/2+1 | n/2+2 n/2+3 ...
    role    S W S W ... W     | S     F     | -     reads F

    The even layers of the rest gate the output of layer n/2 within a step, and read no cache.
    """
    count = config.num_layers()
    half = count // 2
    if config.size("mb_per_layer") != 2 or count % 4:
        raise config.wrong("mb_per_layer", config.find("mb_per_layer"), "2, in 4n layers")
    crossed = (NO_CACHE, (Reads(half + 1),)) * (half // 2)
    return ((STATE, WINDOW) * (half // 2) + (STATE, FULL) + crossed)[:count]


def _meaning(
    config: ConfigReader, name: str, meaning: Mapping[object, Roles], entry: object
) -> Roles:
    if isinstance(entry, (str, int)) and entry in meaning:
        return meaning[entry]
    raise config.wrong(name, entry, f"only {_words(list(meaning))}")


def _words(entries: Sequence[object]) -> str:
    return ", ".join(str(entry) for entry in entries)
