"""A simulated engine: what it answers and what it publishes."""

from typing import Any

import msgspec
from kvbraid.hashing import EngineHash, ExtraKeys, block_keys
from kvbraid.sim.fleet.engine import EngineAnswer, EngineRequest, SimulatedEngine
from kvbraid.sim.fleet.presets import ENGINE, PRESETS

PRESET = PRESETS["gpt-oss-sim"]


class Sink:
    """Payloads, decoded, in the order of their numbers."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def publish(self, payload: bytes) -> int:
        self.batches.append(msgspec.msgpack.decode(payload))
        return len(self.batches) - 1


def serve(engine: SimulatedEngine, num_tokens: int, salt: str | None = None) -> EngineAnswer:
    return engine.serve(EngineRequest(list(range(num_tokens)), [], salt))


def test_a_repeated_prompt_is_reused_and_publishes_what_it_recomputes() -> None:
    sink = Sink()
    engine = SimulatedEngine(PRESET, sink)
    assert serve(engine, 300) == EngineAnswer(
        hit=0, last_seq=0, cached_blocks=18 + 8, removed_blocks=0
    )
    assert serve(engine, 300).hit == 288
    assert len(sink.batches) == 1


def test_hashes_on_the_wire_are_those_of_the_engines_hash_function() -> None:
    sink = Sink()
    serve(SimulatedEngine(PRESET, sink), 100, salt="pepper")
    _, events, rank = sink.batches[0]
    assert rank == 0
    assert [event["group_idx"] for event in events] == [0, 1]
    engine_hash = EngineHash(seed=ENGINE.hash_seed, block_size=16)
    expected = block_keys(range(100), engine_hash, ExtraKeys(cache_salt="pepper"))
    assert events[1]["block_hashes"] == expected
    assert events[1]["extra_keys"] == [["pepper"], None, None, None, None, None]


def test_a_refused_request_is_answered_and_what_it_evicted_is_published() -> None:
    sink = Sink()
    engine = SimulatedEngine(PRESET, sink)
    serve(engine, 1000)
    answer = serve(engine, PRESET.num_blocks * 16)
    assert answer.error is not None
    assert "enlarge the pool" in answer.error
    assert answer.last_seq == len(sink.batches) - 1 > 0
    engine.cache.debug.check_integrity()
    assert serve(engine, 1000).error is None
