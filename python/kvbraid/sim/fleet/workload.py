"""A shared-prefix workload: chat sessions over a few system prompts, with turns and forks.

Invariant: equal shape, models and seed give equal requests. A request depends only on earlier
requests of its session, so requests must run in the order given. Nothing here knows a pod or a
cache.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvbraid.errors import InvalidValueError

VOCABULARY: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadShape:
    """The sizes and probabilities of a workload. Sizes are inclusive ranges of tokens; shares are
    the probabilities of what comes next."""

    num_system_prompts: int = 5
    zipf_exponent: float = 1.1
    system_tokens: tuple[int, int] = (150, 500)
    turn_tokens: tuple[int, int] = (20, 180)
    output_tokens: tuple[int, int] = (4, 40)
    max_prompt_tokens: int = 2_000
    num_live_sessions: int = 16
    new_session_share: float = 0.25
    fork_share: float = 0.15


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """One request: the tokens of the prompt, and those that the engine pretends to generate."""

    model: str
    session: int
    prompt: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(slots=True)
class _Session:
    number: int
    model: str
    history: tuple[int, ...]
    turns: list[int] = field(default_factory=list)  # Where each turn's history ended.


def shared_prefix_workload(
    models: Sequence[str], *, seed: int, shape: WorkloadShape | None = None
) -> Iterator[WorkRequest]:
    """Yield requests in order, for ever.

    Raises InvalidValueError if there is no model.
    """
    if not models:
        raise InvalidValueError("no model to make requests for; give at least one")
    yield from _Generator(models, shape or WorkloadShape(), random.Random(seed)).requests()  # noqa: S311


class _Generator:
    def __init__(self, models: Sequence[str], shape: WorkloadShape, rng: random.Random) -> None:
        self._models, self._shape, self._rng = models, shape, rng
        self._sessions: list[_Session] = []
        self._num_sessions = 0
        self._system_prompts = [
            self._tokens(shape.system_tokens) for _ in range(shape.num_system_prompts)
        ]
        ranks = range(1, shape.num_system_prompts + 1)
        self._weights = [rank**-shape.zipf_exponent for rank in ranks]

    def requests(self) -> Iterator[WorkRequest]:
        while True:
            session = self._next_session()
            prompt = (*session.history, *self._tokens(self._shape.turn_tokens))
            outputs = self._tokens(self._shape.output_tokens)
            session.turns.append(len(session.history))
            session.history = (*prompt, *outputs)
            yield WorkRequest(session.model, session.number, prompt, outputs)

    def _next_session(self) -> _Session:
        """Continue a session, fork one at an earlier turn, or open one on a system prompt."""
        rng, shape = self._rng, self._shape
        room = shape.max_prompt_tokens - shape.turn_tokens[1] - shape.output_tokens[1]
        self._sessions = [s for s in self._sessions if len(s.history) <= room]
        choice = rng.random()
        if not self._sessions or choice < shape.new_session_share:
            (system,) = rng.choices(self._system_prompts, self._weights)
            return self._open(rng.choice(self._models), system)
        session = rng.choice(self._sessions)
        if choice < shape.new_session_share + shape.fork_share and session.turns:
            return self._open(session.model, session.history[: rng.choice(session.turns)])
        return session

    def _open(self, model: str, history: tuple[int, ...]) -> _Session:
        """Add a session; drop the oldest one if there are too many."""
        session = _Session(self._num_sessions, model, history)
        self._num_sessions += 1
        self._sessions = [*self._sessions, session][-self._shape.num_live_sessions :]
        return session

    def _tokens(self, size: tuple[int, int]) -> tuple[int, ...]:
        return tuple(self._rng.choices(range(VOCABULARY), k=self._rng.randint(*size)))
