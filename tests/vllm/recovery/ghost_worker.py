"""A worker whose blocks hold what they would: which prefix was computed into them, or garbage.

Invariant: a token that is computed from anything but its own prefix is garbage, in all groups, and
so is every later one. What it samples is a function of the prefix, and never right after garbage.
It follows vLLM's first model runner: tables are appended to, a resumed request gets a new one, and
with asynchronous scheduling the last token of a step comes from the step before.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from kvbraid.integrations.vllm import LoadFailures
from kvbraid.resume import first_read
from kvbraid.spec import GroupSpec, SpecKind

from tests.vllm.recovery.ghost_connector import Load

if True:  # Only after the connector has imported vLLM with its warnings off.
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

VOCABULARY: Final = 50_000
GARBAGE: Final = VOCABULARY + 1


def prefix_hashes(tokens: Sequence[int]) -> list[int]:
    """Return what tells each prefix apart, the empty one first."""
    hashes = [0]
    for token in tokens:
        hashes.append(hash((hashes[-1], token)))
    return hashes


def next_token(prefix_hash: int) -> int:
    """Return the token that follows a prefix."""
    return prefix_hash % VOCABULARY


def truth(prompt: Sequence[int], count: int) -> list[int]:
    """Return the tokens that a faultless engine answers with."""
    last, answer = prefix_hashes(prompt)[-1], []
    for _ in range(count):
        answer.append(next_token(last))
        last = hash((last, answer[-1]))
    return answer


@dataclass(slots=True)
class _State:
    tokens: list[int]
    num_prompt_tokens: int
    tables: list[list[int]]


@dataclass(frozen=True, slots=True)
class Part:
    """A block that a load fills."""

    group: int
    position: int
    block: int


@dataclass(slots=True)
class Worker:
    """`fails` says which parts of a load fail; `says` puts that into a step's report."""

    groups: Sequence[GroupSpec]
    is_async: bool
    fails: Callable[[Load, list[Part]], list[Part]] = lambda _load, _parts: []
    says: Callable[[Load, list[Part], KVConnectorOutput], None] = lambda *_: None
    ends: Callable[[Load], bool] = lambda _load: True
    blocks: dict[int, dict[int, int]] = field(default_factory=dict)
    loading: list[Load] = field(default_factory=list)
    num_garbage_reads: int = 0
    weights: int = 0
    """The number of the weights: what others have computed is garbage."""
    _requests: dict[str, _State] = field(default_factory=dict)
    _previous: dict[str, int | None] = field(default_factory=dict)
    _garbage: Iterator[int] = field(default_factory=lambda: count(1))

    def execute(self, output: Any, loads: Sequence[Load]) -> Any:  # noqa: ANN401 - vLLM's own types.
        """Run a step; return what workers return."""
        for name in output.finished_req_ids:
            self._requests.pop(name, None)
        self._follow(output)
        for block in output.new_block_ids_to_zero or ():
            self.blocks.pop(block, None)
        for copy in output.kv_cache_block_copies or ():
            source, destination = copy
            self.blocks[destination] = dict(self.blocks.get(source, {}))
        report = KVConnectorOutput(finished_recving=set())
        self.loading += [load for load in loads if load.is_async]
        for load in loads:
            if not load.is_async:
                self._load(load, report)
        sampled = {name: self._compute(name, n) for name, n in output.num_scheduled_tokens.items()}
        self._previous = sampled
        for load in [load for load in self.loading if self.ends(load)]:
            self.loading.remove(load)
            self._load(load, report)
            report.finished_recving.add(load.request)
        return ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={name: index for index, name in enumerate(sampled)},
            sampled_token_ids=[[] if token is None else [token] for token in sampled.values()],
            kv_connector_output=report,
        )

    # Requests.

    def _follow(self, output: Any) -> None:  # noqa: ANN401 - vLLM's own type.
        for new in output.scheduled_new_reqs:
            tokens = list(new.prompt_token_ids)
            tables = [list(ids) for ids in new.block_ids]
            self._requests[new.req_id] = _State(tokens, len(tokens), tables)
        cached = output.scheduled_cached_reqs
        for index, name in enumerate(cached.req_ids):
            state = self._requests[name]
            num_tokens = state.num_prompt_tokens + cached.num_output_tokens[index]
            is_resumed = name in cached.resumed_req_ids
            if is_resumed or name not in self._previous:
                if self.is_async and cached.num_output_tokens[index]:
                    state.tokens = list(cached.all_token_ids[name])
                self._previous.pop(name, None)
            del state.tokens[num_tokens:]
            new_ids = cached.new_block_ids[index]
            if is_resumed:
                state.tables = [list(ids) for ids in new_ids]
            elif new_ids is not None:
                for table, ids in zip(state.tables, new_ids, strict=True):
                    table.extend(ids)
        self._starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        self._starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))

    _starts: dict[str, int] = field(default_factory=dict)

    def _compute(self, name: str, num_tokens: int) -> int | None:
        """Compute tokens of a request; return the sampled one, None if the prompt goes on."""
        state = self._requests[name]
        start = self._starts[name]
        end = start + num_tokens
        previous = self._previous.get(name)
        tokens = list(state.tokens)
        if self.is_async and previous is not None:
            tokens[end - 1 : end] = [previous]  # Scattered into the step's last position.
        assert len(tokens) >= end, f"{name} computes {end} of {len(tokens)} tokens"
        hashes = prefix_hashes(tokens[:end])
        is_right = hashes == prefix_hashes(state.tokens[:end]) and all(
            self._reads_right(spec, table, start, hashes)
            for spec, table in zip(self.groups, state.tables, strict=True)
        )
        self.num_garbage_reads += not is_right
        for spec, table in zip(self.groups, state.tables, strict=True):
            self._write(spec, table, range(start, end), hashes if is_right else None)
        if end < len(state.tokens):
            return None
        token = next_token(hashes[-1]) if is_right else GARBAGE
        state.tokens.append(token)
        return token

    # Blocks.

    def _reads_right(
        self, spec: GroupSpec, table: Sequence[int], start: int, hashes: Sequence[int]
    ) -> bool:
        size = spec.block_size
        if spec.kind is SpecKind.MAMBA:
            position = (start - 1) // size
            held = self.blocks.get(table[position], {})
            return start == 0 or held.get(start) == self._content(hashes[start])
        for token in range(min(first_read(spec, start), start), start):
            held = self.blocks.get(table[token // size], {})
            if held.get(token % size) != self._content(hashes[token + 1]):
                return False
        return True

    def _content(self, prefix_hash: int) -> int:
        """Return what the present weights compute of a prefix."""
        return hash((prefix_hash, self.weights)) if self.weights else prefix_hash

    def _write(
        self, spec: GroupSpec, table: Sequence[int], tokens: range, hashes: Sequence[int] | None
    ) -> None:
        size = spec.block_size
        if spec.kind is SpecKind.MAMBA:
            end = tokens.stop
            held = self._content(hashes[end]) if hashes is not None else -next(self._garbage)
            self.blocks[table[(end - 1) // size]] = {end: held}
            return
        for token in tokens:
            block = table[token // size]
            if block:
                held = -next(self._garbage) if hashes is None else self._content(hashes[token + 1])
                self.blocks.setdefault(block, {})[token % size] = held

    def parts(self, load: Load) -> list[Part]:
        """Return the blocks that a load fills."""
        found = []
        for group, (spec, table) in enumerate(zip(self.groups, load.tables, strict=True)):
            positions = range(load.first // spec.block_size, -(-load.end // spec.block_size))
            for position in positions[-1:] if spec.kind is SpecKind.MAMBA else positions:
                if position < len(table) and table[position]:
                    found.append(Part(group, position, table[position]))
        return found

    def _load(self, load: Load, report: KVConnectorOutput) -> None:
        parts = self.parts(load)
        failed = self.fails(load, parts)
        hashes = prefix_hashes(load.tokens[: load.end])
        for part in parts:
            spec, table = self.groups[part.group], load.tables[part.group]
            first = max(load.first, part.position * spec.block_size)
            tokens = range(first, min(load.end, (part.position + 1) * spec.block_size))
            self._write(spec, table, tokens, None if part in failed else hashes)
        if failed:
            self.says(load, failed, report)


def as_places(load: Load, failed: Sequence[Part], report: KVConnectorOutput) -> None:
    groups: dict[int, set[int]] = {}
    for part in failed:
        groups.setdefault(part.group, set()).add(part.position)
    _say(report, LoadFailures(places={load.request: groups}))


def as_group_blocks(load: Load, failed: Sequence[Part], report: KVConnectorOutput) -> None:
    del load
    _say(report, LoadFailures(group_blocks={(part.group, part.block) for part in failed}))


def as_flat_ids(load: Load, failed: Sequence[Part], report: KVConnectorOutput) -> None:
    del load
    report.invalid_block_ids |= {part.block for part in failed}


def as_request(load: Load, failed: Sequence[Part], report: KVConnectorOutput) -> None:
    del failed
    if load.is_async:
        report.failed_recving.add(load.request)
    else:
        _say(report, LoadFailures(requests={load.request}))


FORMS: Final = (as_places, as_group_blocks, as_flat_ids, as_request)


def _say(report: KVConnectorOutput, failures: LoadFailures) -> None:
    known = report.kv_connector_worker_meta
    report.kv_connector_worker_meta = failures if known is None else known.aggregate(failures)
