"""Engine processes over real pipes and sockets."""

import os
import signal
from collections import Counter

import msgspec
import pytest
import zmq
from kvbraid.errors import ServiceError
from kvbraid.sim.fleet.engine import EngineRequest
from kvbraid.sim.fleet.presets import PRESETS
from kvbraid.sim.fleet.processes import EngineProcess

PRESET = PRESETS["qwen3-next-sim"]


def test_what_an_engine_published_can_be_replayed_and_adds_up_to_its_cache() -> None:
    held: Counter[tuple[int, int]] = Counter()
    requests = [list(range(first, first + 3000)) for first in range(0, 8000, 1000)]
    with EngineProcess("pod", PRESET) as engine:
        *_, answer = [engine.serve(EngineRequest(prompt, [1, 2, 3])) for prompt in requests]
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.rcvtimeo = 10_000
            assert engine.ready.replay_endpoint is not None
            dealer.connect(engine.ready.replay_endpoint)
            dealer.send_multipart([b"", (0).to_bytes(8, "big")])
            numbers = []
            while True:
                *_, seq, payload = dealer.recv_multipart()
                if seq == b"\xff" * 8:
                    break
                numbers.append(int.from_bytes(seq, "big"))
                for event in msgspec.msgpack.decode(payload)[1]:
                    sign = 1 if event["type"] == "BlockStored" else -1
                    for key in event["block_hashes"]:
                        held[event["group_idx"], key] += sign
    assert numbers == list(range(answer.last_seq + 1))
    assert min(held.values()) >= 0
    assert held.total() == answer.cached_blocks
    assert answer.removed_blocks > 0


def test_an_engine_ends_with_its_input_and_ignores_the_drivers_ctrl_c() -> None:
    with EngineProcess("pod", PRESET) as engine:
        assert engine.ready.endpoint.startswith("tcp://127.0.0.1:")
        os.kill(engine.child.pid, signal.SIGINT)
        assert engine.serve(EngineRequest([1, 2, 3])).hit == 0
    assert engine.child.returncode == 0


def test_an_engine_that_died_is_an_error_that_names_it() -> None:
    with EngineProcess("lost", PRESET) as engine:
        assert engine.ready
        engine.child.kill()
        engine.child.wait()
        with pytest.raises(ServiceError, match="engine lost ended"):
            engine.serve(EngineRequest([1, 2, 3]))
