"""A second scheduler in the same state, and what of a state decides all that follows.

`twin` copies lists, mappings and objects, and shares what never changes. `Image` turns a scheduler
into plain tuples that are equal for states with the same future: blocks and loads are renamed in
the order in which they are met, steps count back from the next one, and counters that nobody reads
are left out. A field that is not named below counts as it is, which may keep equal states apart
but never takes different ones for equal.
"""

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from enum import Enum
from types import FunctionType, NoneType
from typing import Any, Final, TypeAlias

from kvbraid.recovery.ledger.contents import Content, block_of
from kvbraid.scheduler import Load

Value: TypeAlias = Any
"""Whatever a scheduler holds."""

# An array that was handed over is not changed any more.
_ATOMS: Final = (int, float, str, bytes, array, range, NoneType, Enum, FunctionType, frozenset)


def twin(value: Value, known: dict[int, Value]) -> Value:
    """Return a copy of an object graph; `known` has copies that were made already, by id."""
    kind = type(value)
    if kind in _shared:
        return value
    copied = known.get(id(value))
    if copied is not None:
        return copied
    copier = _copiers.get(kind)
    if copier is None:
        if _never_changes(kind):
            _shared.add(kind)
            return value
        copier = _copiers[kind] = _choose_copier(kind)
    return copier(value, known)


_Copier = Callable[[Value, dict[int, Value]], Value]
_shared: set[type] = set()
_copiers: dict[type, _Copier] = {}


def _never_changes(kind: type) -> bool:
    params = getattr(kind, "__dataclass_params__", None)
    is_frozen = params is not None and params.frozen
    return issubclass(kind, _ATOMS) or hasattr(kind, "_fields") or is_frozen


def _choose_copier(kind: type) -> _Copier:
    if kind in {list, deque, set, tuple}:
        return lambda value, known: kind([twin(each, known) for each in value])
    if kind is dict:
        return lambda value, known: {key: twin(each, known) for key, each in value.items()}
    if kind is Counter:
        return lambda value, known: value.copy()
    if not kind.__module__.startswith("kvbraid."):
        raise TypeError(f"{kind} may change: say how it is copied")
    return _copy_object


def _copy_object(value: Value, known: dict[int, Value]) -> Value:
    copied = known[id(value)] = object.__new__(type(value))
    for name in fields_of(type(value), value):
        part = getattr(value, name)
        object.__setattr__(copied, name, part if type(part) in _shared else twin(part, known))
    return copied


def fields_of(kind: type, value: object) -> Iterable[str]:
    """The names of what an object holds."""
    return kind.__dataclass_fields__ if is_dataclass(kind) else vars(value)


class Image:
    """Turns what a scheduler holds into tuples of numbers, bytes and names."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._blocks: dict[int, int] = {0: 0}
        self._loads: dict[int, int] = {}
        self._contents: dict[int, int] = {}
        self.loads: dict[int, Value] = {}

    def block(self, block: int) -> int:
        return self._blocks.setdefault(block, len(self._blocks))

    def known(self, block: int) -> int:
        """The name of a block; -1 if it has none: all of these are alike."""
        return self._blocks.get(block, -1)

    def named(self) -> list[int]:
        """The blocks that have names, in their order."""
        return list(self._blocks)

    def load(self, load: int | Load) -> int:
        """The name of a load. What it is about is told once, in `loads`."""
        number = load if isinstance(load, int) else load.number
        name = self._loads.setdefault(number, len(self._loads))
        if isinstance(load, Load) and name not in self.loads:
            targets = [(t.group, t.position, self.block(t.block_id)) for t in load.targets]
            self.loads[name] = (load.request, load.start, load.num_tokens, targets)
        return name

    def step(self, number: int) -> int:
        return self._num_steps - number

    def blocks(self, value: Value) -> Value:
        """The same with names of blocks: blocks, sequences or sets of them, mappings from them."""
        if isinstance(value, int):
            return self.block(value)
        if isinstance(value, dict):
            return tuple((self.block(key), self.of(each)) for key, each in value.items())
        if isinstance(value, set | frozenset):
            return tuple(sorted(self.block(each) for each in sorted(value)))
        return tuple(self.blocks(each) for each in value or ())

    def sets(self, value: dict[int, Value]) -> Value:
        """A mapping to sets of blocks."""
        return tuple((key, self.blocks(each)) for key, each in sorted(value.items()))

    def by_step(self, value: dict[int, Value]) -> Value:
        return tuple((self.step(number), self.of(each)) for number, each in value.items())

    def by_load(self, value: dict[int, Value]) -> Value:
        return tuple((self.load(number), self.of(each)) for number, each in value.items())

    def content(self, value: int) -> Value:
        """The name of what a block holds, or held, and of the block."""
        name = value if value >= 0 else self._contents.setdefault(value, len(self._contents))
        return (name if value < 0 else -1, self.block(block_of(Content(value))))

    def contents(self, value: list[list[int]]) -> Value:
        return tuple(tuple(map(self.content, table)) for table in value)

    def load_or_none(self, value: int | None) -> Value:
        return None if value is None else self.load(value)

    def last_load(self, num_loads: int) -> Value:
        return self.load(num_loads - 1) if num_loads else -1

    def step_or_none(self, value: int | None) -> Value:
        return None if value is None else self.step(value)

    def cooldowns(self, value: dict[str, tuple[int, float]]) -> Value:
        """How long ago tiers failed does not matter once it is long enough."""
        return tuple((t, n, min(9, self._num_steps - int(at))) for t, (n, at) in value.items())

    def retries(self, value: dict[int, tuple[float, int]]) -> Value:
        """Without a deadline it does not matter when requests failed first."""
        return tuple((request, number) for request, (_, number) in sorted(value.items()))

    def skip(self, value: Value) -> int:
        del value
        return 0

    def of(self, value: Value) -> Value:
        kind = type(value)
        if kind is int or kind is str or kind is bool or value is None:
            return value
        if kind is tuple or kind is list or kind is deque:
            return tuple([self.of(each) for each in value])
        if kind is dict:
            return tuple([(self.of(key), self.of(each)) for key, each in value.items()])
        if kind is set or kind is frozenset:
            return tuple(sorted(self.of(each) for each in sorted(value)))
        if kind is Load:
            return self.load(value)
        if isinstance(value, Enum):
            return value.name
        if isinstance(value, _ATOMS):
            return str(value)
        return tuple([rule(self, getattr(value, name)) for name, rule in rules_of(kind, value)])


Rule = Callable[[Image, Value], Value]

EXCEPTIONS: Final[dict[tuple[str, str], Rule]] = {
    # What every state of a world has in common, or what is looked at apart.
    ("RequestTable", "cache"): Image.skip,
    ("RequestTable", "options"): Image.skip,
    ("RequestTable", "tiers"): Image.skip,
    ("RequestTable", "rules"): Image.skip,
    ("RequestTable", "groups"): Image.skip,
    ("RecoveryState", "_cache"): Image.skip,
    ("RecoveryState", "_tiers"): Image.skip,
    ("RecoveryState", "_options"): Image.skip,
    ("RecoveryState", "_dump"): Image.skip,
    ("ScheduledRequest", "prompt"): Image.skip,
    ("ScheduledRequest", "extra"): Image.skip,
    ("ScheduledRequest", "stop_tokens"): Image.skip,
    ("ScheduledRequest", "max_tokens"): Image.skip,
    ("RetryBudget", "_retries"): Image.skip,
    ("RetryBudget", "_deadline"): Image.skip,
    ("Cooldowns", "_num_failures"): Image.skip,
    ("Cooldowns", "_duration"): Image.skip,
    ("Cooldowns", "_max_tiers"): Image.skip,
    ("Ownership", "_block_sizes"): Image.skip,
    ("Transfers", "_ranks"): Image.skip,
    # The parts of a step that still count are those that requests have in flight.
    ("Step", "scheduled"): Image.skip,
    # Numbers that go up all the time.
    ("RequestTable", "num_steps"): Image.skip,
    ("_Ended", "last_step"): Image.step_or_none,
    ("_Ended", "load"): Image.load_or_none,
    ("_Read", "load"): Image.load_or_none,
    ("Moment", "num_loads"): Image.last_load,
    ("OpenLoads", "_left"): Image.by_load,
    # Nothing is handed out between `catch_up` and the image.
    ("Moment", "time"): Image.skip,
    ("ReleasedBlocks", "_contents"): Image.skip,
    ("ReleasedBlocks", "_num_loads"): Image.skip,
    ("ReleasedBlocks", "_num_blocks"): Image.skip,
    ("ReleasedBlocks", "_former"): Image.skip,
    ("OpenLoads", "_late_steps"): Image.skip,
    ("RecoveryState", "_lost"): Image.skip,
    ("Step", "number"): Image.step,
    ("ScheduledRequest", "in_flight"): Image.by_step,
    ("Transfers", "_num_begun"): Image.skip,
    ("Transfers", "_transfers"): Image.by_load,
    ("Quarantine", "_transfers"): Image.by_load,
    ("Cooldowns", "_tiers"): Image.cooldowns,
    ("RetryBudget", "_failures"): Image.retries,
    # What is only told, and what nobody compares.
    ("RecoveryState", "actions"): Image.skip,
    ("ScheduledRequest", "run"): Image.skip,
    ("Scheduled", "run"): Image.skip,
    ("Quarantine", "num_unknown_reports"): Image.skip,
    ("Quarantine", "num_repeated_reports"): Image.skip,
    ("PromptCounts", "recomputed"): Image.skip,
    # Blocks.
    ("Target", "block_id"): Image.block,
    ("GroupBlock", "block_id"): Image.block,
    ("Run", "ended_tables"): Image.blocks,
    ("Work", "copies"): Image.blocks,
    ("Work", "blocks_to_zero"): Image.skip,  # Done when the step was scheduled.
    ("Work", "kept_states"): Image.skip,
    ("Failures", "blocks"): Image.blocks,
    ("_HeldBlocks", "blocks"): Image.blocks,
    ("Quarantine", "_held"): Image.blocks,
    ("_Read", "content"): Image.content,
    ("_Ended", "tables"): Image.contents,
    ("Ownership", "_blocks"): Image.blocks,
    ("Ownership", "_owned"): Image.sets,
    ("Ownership", "_awaited"): Image.sets,
}

_rules: dict[type, list[tuple[str, Rule]]] = {}


def rules_of(kind: type, value: Value) -> list[tuple[str, Rule]]:
    rules = _rules.get(kind)
    if rules is None:
        names = getattr(kind, "_fields", None) or fields_of(kind, value)
        rules = [(name, EXCEPTIONS.get((kind.__name__, name), Image.of)) for name in names]
        _rules[kind] = [(name, rule) for name, rule in rules if rule is not Image.skip]
        rules = _rules[kind]
    return rules
