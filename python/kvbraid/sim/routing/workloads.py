"""What users of a fleet ask for: five kinds of traffic that are made up, and recorded traces.

Invariant: a kind, a scale and a seed give the same requests each time. Prompts are lists of parts
that requests share, and become tokens only when they are sent.

    chat    conversations that go on where they ended, over a few system prompts
    shared  one question each, on one of many system prompts of very different popularity
    agents  long tool loops that fork, and fan out into several requests at once
    docs    long documents, about half of which are asked about again
    mixed   all of them at once
"""

import random
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, count, islice
from typing import Final, NamedTuple, TypeAlias

from kvbraid.errors import UnknownError
from kvbraid.reading import POSITIVE, check
from kvbraid.sim.traces.trace import Trace

TokenArray: TypeAlias = "array[int]"

TRACE_OUTPUTS: Final = 300
"""The tokens of an answer to a prompt of a trace, which says nothing about answers."""


class Ask(NamedTuple):
    """One request: its session, its prompt and how long that is, the tokens of the answer.

    `is_together` says that it comes at the same time as the one before it.
    """

    session: int
    prompt: Callable[[], TokenArray]
    num_tokens: int
    num_outputs: int
    is_together: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order in which they come."""

    name: str
    asks: Sequence[Ask]


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors for the lengths of texts, and for how many system prompts or live sessions are."""

    length: float = 1.0
    count: float = 1.0


class _Text(NamedTuple):
    """A text in parts, which other texts may share."""

    parts: tuple[TokenArray, ...]
    num_tokens: int

    def __add__(self, more: "_Text") -> "_Text":  # type: ignore[override]
        return _Text(self.parts + more.parts, self.num_tokens + more.num_tokens)

    def tokens(self) -> TokenArray:
        return array("I", b"".join(self.parts))


class _Source:
    """Where texts, numbers and sessions come from."""

    def __init__(self, seed: str, scale: Scale) -> None:
        self.random = random.Random(seed)  # noqa: S311 - it makes texts up, and guards nothing
        self._scale = scale
        self._sessions = count()

    def text(self, least: int, most: int) -> _Text:
        """Return a new text; two of them differ from the first token on."""
        size = max(1, round(self.random.randint(least, most) * self._scale.length))
        return _Text((array("I", self.random.randbytes(4 * size)),), size)

    def texts(self, number: int, least: int, most: int) -> list[_Text]:
        """Return several texts."""
        return [self.text(least, most) for _ in range(self.number(number))]

    def number(self, number: int) -> int:
        """Scale a number of texts or sessions."""
        return max(1, round(number * self._scale.count))

    def is_too_long(self, text: _Text, most: int) -> bool:
        """Tell whether a text is longer than so many tokens."""
        return text.num_tokens > most * self._scale.length

    def chance(self, share: float) -> bool:
        """Decide with this probability."""
        return self.random.random() < share

    def session(self) -> int:
        """Return the number of a new session."""
        return next(self._sessions)

    def ask(self, session: int, prompt: _Text, answer: _Text, *, is_together: bool = False) -> Ask:
        """Return a request that is answered so."""
        return Ask(session, prompt.tokens, prompt.num_tokens, answer.num_tokens, is_together)


class _Live(NamedTuple):
    """A session, and all that has been said in it."""

    session: int
    history: _Text


_Kind: TypeAlias = Callable[[_Source], Iterator[Ask]]


def _chat(source: _Source) -> Iterator[Ask]:
    systems = source.texts(8, 300, 1_500)
    live: list[_Live | None] = [None] * source.number(400)
    while True:
        place = source.random.randrange(len(live))
        now = live[place]
        if now is None or source.is_too_long(now.history, 16_000) or source.chance(0.08):
            now = _Live(source.session(), source.random.choice(systems))
        prompt, answer = now.history + source.text(50, 1_500), source.text(50, 600)
        live[place] = _Live(now.session, prompt + answer)
        yield source.ask(now.session, prompt, answer)


def _shared(source: _Source) -> Iterator[Ask]:
    systems = source.texts(250, 1_500, 6_000)
    weights = list(accumulate((rank + 1) ** -0.95 for rank in range(len(systems))))
    while True:
        (system,) = source.random.choices(systems, cum_weights=weights)
        prompt = system + source.text(50, 400)
        yield source.ask(source.session(), prompt, source.text(50, 300))


def _agents(source: _Source) -> Iterator[Ask]:
    systems = source.texts(24, 2_000, 6_000)
    live: list[list[_Live]] = []  # The steps of each agent so far.
    most = source.number(60)
    while True:
        if len(live) < most and source.chance(0.5):
            live.append([_Live(source.session(), source.random.choice(systems))])
        if not live:
            continue
        place = source.random.randrange(len(live))
        steps = live[place]
        if source.chance(0.2):  # A fork: another agent goes on from an earlier step.
            steps = [_Live(source.session(), source.random.choice(steps).history)]
            live[place] = steps
        now = steps[-1]
        if source.chance(0.12):  # A fan-out: the same history, and a task for each.
            for number in range(source.random.randint(2, 5)):
                task, answer = now.history + source.text(100, 600), source.text(50, 400)
                yield source.ask(source.session(), task, answer, is_together=number > 0)
            continue
        prompt, answer = now.history + source.text(200, 2_500), source.text(30, 300)
        yield source.ask(now.session, prompt, answer)
        steps.append(_Live(now.session, prompt + answer))
        if source.is_too_long(prompt, 24_000):
            del live[place]


def _docs(source: _Source) -> Iterator[Ask]:
    instructions = source.text(300, 800)
    again: list[_Live] = []  # What will be asked about again.
    while True:
        if again and source.chance(min(1.0, len(again) / source.number(40))):
            now = again.pop(source.random.randrange(len(again)))
        else:
            document = instructions + source.text(6_000, 26_000)
            now = _Live(source.session(), document)
            if source.chance(0.45):
                again += [now] * source.random.randint(1, 2)
        yield source.ask(now.session, now.history + source.text(20, 200), source.text(100, 500))


def _mixed(source: _Source) -> Iterator[Ask]:
    kinds = [kind(source) for kind in (_chat, _shared, _agents, _docs)]
    while True:
        ask = next(source.random.choice(kinds))
        # A part of a fan-out that the other kinds have come before is a request like others.
        yield ask._replace(is_together=False)


KINDS: Final[Mapping[str, _Kind]] = {
    "chat": _chat, "shared": _shared, "agents": _agents, "docs": _docs, "mixed": _mixed,
}  # fmt: skip
"""Every kind of traffic that can be made up, by its name."""


def made_up(kind: str, *, seed: int, num_requests: int, scale: Scale | None = None) -> Workload:
    """Return the first requests of a kind of traffic.

    Raises:
        UnknownError: There is no such kind; the message lists all of them.
        InvalidValueError: There is not even one request.
    """
    check("num_requests", num_requests, POSITIVE)
    if kind not in KINDS:
        msg = f"workload {kind!r} is not known; expected one of {', '.join(KINDS)}"
        raise UnknownError(msg)
    source = _Source(f"{kind} {seed}", scale or Scale())
    return Workload(kind, list(islice(KINDS[kind](source), num_requests)))


def recorded(trace: Trace, *, num_requests: int | None = None) -> Workload:
    """Return the requests of a trace in its order.

    A trace knows whole blocks. Of what follows the last one, one token counts, as in `kvbraid
    cache simulate`. Times and answers are not in a trace: answers have `TRACE_OUTPUTS` tokens.
    """
    block = trace.block_tokens
    asks = []
    for request in islice(trace.play(), num_requests):
        size = min(request.num_tokens, len(request.ids) * block + 1)
        prompt = partial(_tokens, request.ids, block, size)
        asks.append(Ask(request.conversation, prompt, size, TRACE_OUTPUTS))
    return Workload(trace.name, asks)


def _tokens(ids: Sequence[int], block_tokens: int, num_tokens: int) -> TokenArray:
    """Return tokens of which two prompts share exactly those of their common ids."""
    repeated = block_tokens // 2  # An id takes the place of two tokens.
    blocks = (each.to_bytes(8, "little", signed=each < 0) * repeated for each in ids)
    tokens = array("I", b"".join(blocks))
    if len(tokens) < num_tokens:
        tokens.append(0)
    return tokens
