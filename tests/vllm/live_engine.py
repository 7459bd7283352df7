"""The live models and how a test holds one running engine: prompts, truths, and its messages.

The subscriber binds and the engine connects, over real ZeroMQ; the messages of a request are read
until as many have come as the engine says it published.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import zmq
from kvbraid.engine import EngineProfile
from kvbraid.hashing import HashAlgo
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.tiny_models import FOLDER
from tests.vllm.engine_process import ENVIRONMENT
from tests.vllm.soak import NUM_REQUESTS

PROGRAM: Final = Path(__file__).with_name("engine_process.py")
MESSAGE_TIMEOUT_MS: Final = 10_000
MAX_OUTPUT: Final = 12


def _full(block_size: int) -> GroupSpec:
    return GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=block_size)


def _window(window: int, block_size: int = 32) -> GroupSpec:
    return GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=block_size, window=window)


ENGINE: Final = EngineProfile(hash_algo=HashAlgo.SHA256, hash_seed="0")


def _topology(*groups: GroupSpec) -> Topology:
    return Topology(groups=groups)


@dataclass(frozen=True, slots=True)
class LiveModel:
    """A tiny model, the pool that makes it evict, and what an operator would configure.

    `retention` is the engine's option of tokens between the blocks it keeps, None for all.
    """

    folder: str
    block_size: int
    num_blocks: int
    topology: Topology
    max_model_len: int = 1_200
    dtype: str = "float32"  # Of seeded weights.
    retention: int | None = 0

    @property
    def path(self) -> Path:
        """The folder that the engine reads."""
        return FOLDER / self.folder


MODELS: Final = (
    LiveModel("gptoss", 32, 180, _topology(_window(128), _full(32))),
    LiveModel("gemma3", 32, 400, _topology(*[_window(256)] * 5, _full(32))),
    LiveModel(
        "llama4",
        32,
        400,
        _topology(
            *[GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=32, chunk=256)] * 3,
            _full(32),
        ),
    ),
    LiveModel(
        "qwen3next",
        128,
        120,
        _topology(*[GroupSpec(kind=SpecKind.MAMBA, block_size=128)] * 3, _full(128)),
        dtype="bfloat16",  # Its CPU backend takes nothing else.
    ),
    LiveModel("mistral_swa", 32, 90, _topology(_window(256))),
)

DROP_IN_MODELS: Final = (
    *MODELS,
    LiveModel("gemma4", 32, 180, _topology(*[_window(128, block_size=64)] * 2, _full(32))),
    LiveModel(
        "lfm2",
        128,
        90,
        _topology(*[GroupSpec(kind=SpecKind.MAMBA, block_size=128)] * 2, _full(128)),
    ),
)
"""Those that run on our cache as well; with blocks of unequal sizes among them."""


class Answer(NamedTuple):
    """What came of prompts: tokens reused and output of each, and the payloads published."""

    cached: list[int]
    outputs: list[list[int]]
    payloads: list[bytes]


class LiveEngine:
    """One running engine. Not thread-safe; a request at a time."""

    def __init__(self, process: subprocess.Popen[str], subscriber: "zmq.Socket[bytes]") -> None:
        self._process = process
        self._subscriber = subscriber
        self._num_received = 0

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None  # Started with pipes.
        assert self._process.stdout is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"the engine ended with status {self._process.wait()}; see stderr"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def start(self, settings: Mapping[str, object]) -> None:
        """Load a model, as `engine_process` says; returns when it takes requests."""
        self._subscriber.poll(0)  # A binding subscriber subscribes only inside a call.
        assert self._ask(dict(settings)) == {"ready": True}

    def generate(self, prompt: list[int], max_tokens: int) -> tuple[int, list[int], list[bytes]]:
        """Return the tokens the engine reused, its output, and the payloads it published."""
        answer = self.generate_together([prompt], max_tokens)
        return answer.cached[0], answer.outputs[0], answer.payloads

    def generate_together(self, prompts: list[list[int]], max_tokens: int) -> Answer:
        """Have prompts answered at the same time."""
        self._subscriber.poll(50 if self._num_received == 0 else 0)
        answer = self._ask({"prompts": prompts, "max_tokens": max_tokens})
        payloads = list(self._payloads(answer["published"]))
        return Answer(answer["cached"], answer["outputs"], payloads)

    def tamper(self, prompt: list[int], max_tokens: int) -> list[dict[str, bool]]:
        """Have a reused block overwritten, group by group; return what came of it.

        Per group: `did`, whether there was one; `changed`, whether another block's bytes changed
        the output; `kept`, whether the block's own bytes did not.
        """
        request = {"prompt": prompt, "max_tokens": max_tokens}
        rows: list[dict[str, bool]] = self._ask({"tamper": request})["groups"]
        return rows

    def reset(self) -> bool:
        """Have the engine forget its cache; return whether it did."""
        return bool(self._ask({"reset": True})["reset"])

    def _payloads(self, published: int) -> Iterator[bytes]:
        while self._num_received < published:
            arrived = self._subscriber.poll(MESSAGE_TIMEOUT_MS)
            assert arrived, f"message {self._num_received} of {published} never came"
            _topic, sequence, payload = self._subscriber.recv_multipart()
            assert int.from_bytes(sequence, "big") == self._num_received
            self._num_received += 1
            yield payload


@contextlib.contextmanager
def running(
    model: LiveModel,
    *,
    scheduler: str | None = None,
    options: Mapping[str, object] = MappingProxyType({}),
    is_seeded: bool = False,
) -> Iterator[LiveEngine]:
    """Start the model's engine, with its own scheduler or ours, and stop it at the end.

    `options` are our scheduler's. `is_seeded`: with weights that make outputs depend on the
    prompt.
    """
    cache = str(Path(sys.prefix) / "engine-cache")  # What an engine compiles at its first start.
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.set_hwm(0)
        subscriber.linger = 0
        subscriber.subscribe(b"")
        subscriber.bind("tcp://127.0.0.1:*")
        environment = os.environ | ENVIRONMENT
        environment |= {"VLLM_CACHE_ROOT": cache, "TORCHINDUCTOR_CACHE_DIR": cache}
        with subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        ) as process:
            try:
                engine = LiveEngine(process, subscriber)
                engine.start(
                    {
                        "model": str(model.path),
                        "endpoint": subscriber.getsockopt_string(zmq.LAST_ENDPOINT),
                        "block_size": model.block_size,
                        "num_blocks": model.num_blocks,
                        "max_model_len": model.max_model_len,
                        "retention": model.retention,
                        "scheduler": scheduler,
                        "options": dict(options),
                        "is_async": False,
                        "seeded_dtype": model.dtype if is_seeded else None,
                    }
                )
                yield engine
            finally:
                process.kill()


class Prompts:
    """Documents asked about again and again, and conversations that go on."""

    def __init__(self, model: LiveModel, seed: int) -> None:
        self._random = Random(seed)
        self._limit = model.max_model_len - MAX_OUTPUT
        self._documents = [self._tokens(900) for _ in range(5)]
        self._last: list[int] = []

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(10, 250) for _ in range(count)]

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(NUM_REQUESTS):
            question = self._tokens(self._random.randrange(1, 200))
            if self._last and self._random.random() < 0.4:
                prompt = self._last + question
            else:
                document = self._random.choice(self._documents)
                prompt = document[: self._random.randrange(64, len(document))] + question
            yield prompt[: self._limit]

    def remember(self, prompt: list[int], output: list[int]) -> None:
        """The next turn may go on from here."""
        self._last = prompt + output
