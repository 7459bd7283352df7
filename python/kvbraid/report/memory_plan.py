"""`kvbraid plan` as text: groups, the block, where layers stand, and what requests take.

Invariant: names and numbers are never cut; a table that a terminal is too narrow for is wider than
it. Everything is computed from the plan and the groups that it was made from.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions
from rich.table import Table

from kvbraid.errors import counted
from kvbraid.layout import MemoryPlan, PlannedModel, fingerprint
from kvbraid.layout.plan import PlannedGroup
from kvbraid.layout.planning.waste import (
    SlotChoice,
    group_waste,
    longest_request,
    request_cost,
    slot_choices,
)
from kvbraid.models.layers import runs
from kvbraid.report.models import options_line
from kvbraid.sim.traces.memory_size import show_size

REQUEST_TOKENS: Final = (1_024, 8_192, 32_768, 131_072)
_EMPTY: Final = "-"
_UNLIMITED: Final = 10_000


def plan_title(planned: PlannedModel) -> str:
    """Return what was planned, in a line."""
    model, ranks = planned.grouped.model, planned.grouped.options.num_ranks
    groups = counted(len(planned.plan.groups), "group")
    where = "" if ranks == 1 else f", one of {ranks} ranks"
    split = "" if planned.split is None else f", split {planned.split.value}"
    return (
        f"{model.model_type}: {counted(model.num_layers, 'layer')} in {groups}, layout "
        f"{planned.layout.value}{split}{where}"
    )


def show_plan(console: Console, planned: PlannedModel) -> None:
    """Print all that people want to know about a plan."""
    plan = planned.plan
    _lines(console, [plan_title(planned)])
    _table(console, _group_table(planned))
    _lines(console, [*_block(plan), *_unused(planned)])
    if len(plan.buffers) > 1:
        _lines(console, _buffers(plan))
    for number, buffer in enumerate(plan.buffers):
        if buffer.slots > 1:
            _lines(console, _slots(plan, number, console.width), soft_wrap=True)
    _lines(console, ["", *_capacity(planned), "What a request takes at its fullest:"])
    _table(console, _request_table(planned))
    choices = slot_choices(planned.groups)
    if len(choices) > 1:
        _lines(console, _chosen(planned))
        _table(console, _choice_table(choices, plan))
    _lines(console, [*_about(planned), f"fingerprint {fingerprint(plan)}"])


def _lines(console: Console, lines: Iterable[str], *, soft_wrap: bool = False) -> None:
    for line in lines:
        console.print(line, markup=False, soft_wrap=soft_wrap)


def _table(console: Console, table: Table) -> None:
    """Print a table as wide as its content is; a terminal that is narrower wraps its lines."""
    narrow = console.width
    console.width = max(narrow, console.measure(table, options=_unlimited(console)).maximum)
    console.print(table)
    console.width = narrow


def _unlimited(console: Console) -> ConsoleOptions:
    return console.options.update(width=_UNLIMITED)


def _columns(*names: str) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name == "kind" else "right", no_wrap=True)
    return table


def _group_table(planned: PlannedModel) -> Table:
    table = _columns("group", "kind", "tokens", "layers", "bytes used", "unused", "%", "runs")
    wasted = group_waste(planned.plan, planned.groups)
    for index, (group, waste) in enumerate(zip(planned.plan.groups, wasted, strict=True)):
        table.add_row(
            str(index),
            group.kind.value,
            f"{group.block_size:,}",
            str(len(group.layers)),
            f"{group.used_bytes:,}",
            f"{waste.unused_bytes:,}",
            _percent(waste.unused_bytes, planned.plan.block_bytes),
            str(group.num_runs),
        )
    return table


def _block(plan: MemoryPlan) -> Iterator[str]:
    size = f"{plan.block_bytes:,} bytes ({show_size(plan.block_bytes)})"
    if len(plan.buffers) == 1:
        yield f"A block takes {size} in one range: {plan.buffers[0].why}."
    else:
        yield f"A block takes {size} in {len(plan.buffers)} buffers."
    exact = sorted({group.num_runs for group in plan.groups})
    whole = sorted({len(group.references) for group in plan.groups})
    layers = sorted({len(group.layers) for group in plan.groups})
    apart = f"; if each layer had memory of its own, it would take {_copies(layers)}"
    unless = "" if exact == whole else f", or {_copies(exact)} (runs) without its unused bytes"
    yield f"Moving a block takes {_copies(whole)}{unless}{'' if layers == whole else apart}."


def _unused(planned: PlannedModel) -> Iterator[str]:
    wasted = group_waste(planned.plan, planned.groups)
    for where, sizes in (
        ("without a layer", [each.empty_bytes for each in wasted]),
        ("in the padding of pages", [each.padding_bytes for each in wasted]),
    ):
        found = tuple(index for index, size in enumerate(sizes) if size)
        if found:
            least, most = min(sizes[i] for i in found), max(sizes)
            size = f"{most:,}" if least == most else f"{least:,} to {most:,}"
            groups = (
                f"group {runs(found)} has" if len(found) == 1 else f"groups {runs(found)} have"
            )
            yield f"Of a block, {groups} {size} bytes {where}."


def _buffers(plan: MemoryPlan) -> Iterator[str]:
    """Yield one line for buffers in a row that differ in their layers alone."""
    found = [
        (number, (buffer.slots, buffer.block_bytes, _reason(plan, number)))
        for number, buffer in enumerate(plan.buffers)
    ]
    for (slots, block_bytes, why), alike in groupby(found, key=itemgetter(1)):
        numbers = tuple(number for number, _ in alike)
        buffers = (
            f"Buffers {runs(numbers)}, each with"
            if len(numbers) > 1
            else f"Buffer {numbers[0]} with"
        )
        yield f"{buffers} {counted(slots, 'slot')} and {block_bytes:,} bytes of a block: {why}."


def _reason(plan: MemoryPlan, number: int) -> str:
    """Why a buffer is as it is, without the name of the layer that the reason starts with."""
    why = plan.buffers[number].why
    names = (name for group in plan.groups for name in _members(group, number))
    return next(
        (why.removeprefix(f"layer {n}: ") for n in names if why.startswith(f"layer {n}: ")), why
    )


def _members(group: PlannedGroup, buffer: int) -> list[str]:
    """The layers of a group in one buffer, in the order of their slots."""
    mine = (reference for reference in group.references if reference.buffer == buffer)
    layers = group.layers_of_views()
    names = (layers[chunk.name] for each in mine for chunk in each.chunks)
    return list(dict.fromkeys(names))


def _slots(plan: MemoryPlan, buffer: int, columns: int) -> Iterator[str]:
    """Yield which layer of each group stands in which slot, in bands that fit the terminal."""
    rows = {index: _members(group, buffer) for index, group in enumerate(plan.groups)}
    rows = {index: names for index, names in rows.items() if names}
    num_slots = plan.buffers[buffer].slots
    empty = _EMPTY if plan.buffers[buffer].axis("layers") is not None else ""
    cell = max(len(name) for names in rows.values() for name in names) + 2
    label = len(f"group {max(rows)}")
    in_band = max(1, (columns - label) // cell)
    yield f"Layers by slot{f' of buffer {buffer}' if len(plan.buffers) > 1 else ''}:"
    for first in range(0, num_slots, in_band):
        slots = range(first, min(first + in_band, num_slots))
        yield "slot".ljust(label) + "".join(f"{slot:>{cell}}" for slot in slots)
        for index, names in rows.items():
            found = (names[slot] if slot < len(names) else empty for slot in slots)
            yield (
                f"group {index}".ljust(label)
                + "".join(f"{name:>{cell}}" for name in found).rstrip()
            )


def _request_table(planned: PlannedModel) -> Table:
    plan, num_blocks = planned.plan, planned.plan.num_blocks
    fits = [] if num_blocks is None else ["fit at once"]
    table = _columns("tokens", "blocks", "bytes", "", "unused", "%", *fits)
    for tokens in REQUEST_TOKENS:
        cost = request_cost(plan, planned.groups, tokens)
        unused = cost.pool_bytes - cost.used_bytes
        table.add_row(
            f"{tokens:,}",
            f"{cost.num_blocks:,}",
            f"{cost.pool_bytes:,}",
            show_size(cost.pool_bytes),
            show_size(unused),
            _percent(unused, cost.pool_bytes),
            *([] if num_blocks is None else [f"{(num_blocks - 1) // cost.num_blocks:,}"]),
        )
    return table


def _capacity(planned: PlannedModel) -> Iterator[str]:
    num_blocks, memory = planned.plan.num_blocks, planned.memory_bytes
    if num_blocks is None or memory is None:
        yield "Give --memory to see how many blocks, tokens and requests fit."
        return
    longest = longest_request(planned.groups, num_blocks - 1)
    fits = "a request of any length" if longest is None else f"one request of {longest:,} tokens"
    yield (
        f"{memory:,} bytes ({show_size(memory)}) hold {num_blocks:,} blocks. Block 0 is the null "
        f"block; the others hold {fits}."
    )


def _chosen(planned: PlannedModel) -> Iterator[str]:
    """Say why the engine has so many slots, and what the table of choices shows."""
    sets = Counter(
        (layer.page, group.kind.value) for group in planned.groups for layer in group.layers
    )
    listed = ", ".join(f"{count} {kind}" for (_, kind), count in sets.items())
    now = max(len(group.layers) for group in planned.groups)
    all_fit = now == max(sets.values())
    yield (
        f"Sets of equal layers: {listed}. The engine takes {counted(now, 'slot')}, so that "
        f"{'every set is one group' if all_fit else 'the smallest set is one group'}. Fewer slots "
        "are smaller blocks and more groups; more slots stay empty in more groups."
    )
    yield "What a request would take (*: as planned):"


def _choice_table(choices: Sequence[SlotChoice], plan: MemoryPlan) -> Table:
    now = max(len(group.layers) for group in plan.groups)
    names = [
        f"{counted(each.num_slots, 'slot')}{'*' if each.num_slots == now else ''}\n"
        f"{counted(each.num_groups, 'group')}"
        for each in choices
    ]
    table = _columns("tokens", *names)
    table.add_row("(block)", *(show_size(each.block_bytes) for each in choices))
    for tokens in REQUEST_TOKENS:
        table.add_row(f"{tokens:,}", *(show_size(each.pool_bytes(tokens)) for each in choices))
    return table


def _about(planned: PlannedModel) -> Iterator[str]:
    plan = planned.plan
    yield options_line(planned.grouped.options)
    if not plan.is_cross_layer:
        yield f"Every slot has a buffer of its own: {plan.why}."
    yield from (f"warning: {warning}" for warning in plan.warnings)
    pages = {layer.page.page_bytes for group in planned.groups for layer in group.layers}
    if planned.grouped.options.packed and len(pages) == 1:
        yield "All pages are of one size: there is nothing to pack."
    readers: dict[int, list[int]] = {}
    for reader, owner in sorted(planned.grouped.model.aliases.items()):
        readers.setdefault(owner, []).append(reader)
    for owner, numbers in readers.items():
        read = "layer {} reads" if len(numbers) == 1 else "layers {} read"
        yield f"{read.format(runs(tuple(numbers)))} the cache of layer {owner}"
    for name, value in planned.grouped.model.assumed.items():
        yield f"assumed: {name} = {value} (not in the config)"


def _copies(counts: Sequence[int]) -> str:
    """Write "1 copy", or "9 to 10 copies"."""
    if len(counts) == 1:
        return f"{counts[0]:,} {'copy' if counts[0] == 1 else 'copies'}"
    return f"{counts[0]:,} to {counts[-1]:,} copies"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}"
