"""Several shards asked at once, over one connection to each.

Invariant: one question at a time, which is sent to all and then waited for together. What a shard
does not say in time, or not as a shard of this version does, is left out and noted on its link.
The caller's thread asks and waits.
"""

import contextlib
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from kvbraid.errors import InvalidValueError, one_line
from kvbraid.service.answers import ErrorAnswer
from kvbraid.service.replicas import SharedTable
from kvbraid.service.shards.link import HttpAnswer, ShardLink, ShardTarget
from kvbraid.service.shards.messages import MESSAGE_PACK, WrongAnswerError, withdraw_question

QUESTION: Final = ShardTarget("/v1/shard", MESSAGE_PACK)

TOKENS_OF_A_DEADLINE: Final = 65_536
"""For each so many tokens of a prompt, a shard has its deadline once more."""

_OK: Final = 200
_OF_THE_REQUEST: Final = "invalid_value"
"""The code of refusals that say something of the request, and not of the shard."""

_ERROR: Final = msgspec.json.Decoder(ErrorAnswer)
_NOTHING: Final = withdraw_question(())
_Told = TypeVar("_Told")


class ShardAsker:
    """A connection to each shard; thread-safe.

    Attributes:
        links: By the number of their shard.
    """

    def __init__(self, table: SharedTable, key: str | None, clock: Callable[[], float]) -> None:
        num = len(table.shards)
        self.links: Mapping[int, ShardLink] = {
            number: ShardLink(f"{number}/{num}", url, key, clock=clock)
            for number, url in enumerate(table.shards, start=1)
        }
        self._answer_s = table.shard_answer_s
        self._clock = clock
        self._lock = threading.Lock()
        self._untold: deque[tuple[int, bytes]] = deque()

    def ask(
        self,
        target: ShardTarget,
        bodies: Mapping[int, bytes],
        num_tokens: int,
        read: Callable[[bytes], _Told],
    ) -> dict[int, _Told]:
        """Ask about so many tokens, by the numbers of shards; return what is told in time.

        Raises:
            InvalidValueError: A shard says that no request can have a value of this one.
        """
        told: dict[int, _Told] = {}
        refused: dict[int, bytes] = {}
        with self._asking():
            deadlines = target.deadlines * (1 + num_tokens // TOKENS_OF_A_DEADLINE)
            end = self._clock() + self._answer_s * deadlines
            links = {n: self.links[n] for n in bodies if self.links[n].ask(target, bodies[n])}
            for number, answer in self._answers(links, end):
                if answer is not None and answer.status == _OK:
                    try:
                        told[number] = read(answer.body)
                    except (WrongAnswerError, msgspec.MsgspecError) as error:
                        wrong = f"is no shard of this version: {one_line(str(error))}"
                        links[number].judge("malformed", wrong)
                    else:
                        links[number].judge("answered")
                elif answer is not None:
                    refused[number] = answer.body
            for number, body in refused.items():  # Which may raise, so no answer is left.
                _note_refusal(links[number], body)
        return told

    def tell(self, number: int, question: bytes) -> None:
        """Send a question whose answer nobody waits for; while others are asked, soon after.

        It is sent before any question that is asked later.
        """
        self._untold.append((number, question))
        self._send_untold()

    def problems(self) -> list[str]:
        """Say which shards cannot be asked, or were wrong, and how."""
        with self._asking():
            for link in self.links.values():
                link.look()
        told = ((link.name, link.trouble) for link in self.links.values())
        return [f"{name} {what}" for name, what in told if what]

    def keep_alive(self) -> None:
        """Ask something where nothing was asked for long."""
        with self._asking():
            for link in self.links.values():
                link.keep_alive(QUESTION, _NOTHING)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for link in self.links.values():
                link.close()

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            with self._lock:
                self._send_in_order()
                yield
        finally:
            self._send_untold()  # What was told meanwhile, also if the block raises.

    def _send_untold(self) -> None:
        """Send what is to be told, unless another thread asks: that one sends it afterwards."""
        while self._untold and self._lock.acquire(blocking=False):
            try:
                self._send_in_order()
            finally:
                self._lock.release()

    def _send_in_order(self) -> None:
        while self._untold:
            number, question = self._untold.popleft()
            self.links[number].ask(QUESTION, question, is_waited_for=False)

    def _answers(
        self, links: Mapping[int, ShardLink], end: float
    ) -> Iterator[tuple[int, HttpAnswer | None]]:
        """Yield what each has answered, as soon as it has; None: nothing until the end.

        So an answer is read while others are under way, and what has come by then is in time.
        Whatever becomes of the caller, no link is left with an answer that somebody waits for.
        """
        waiting = {link.fileno(): n for n, link in links.items() if link.is_waited_for}
        left, left_s = dict(links), 1.0
        poll = select.poll()
        for fileno, number in waiting.items():
            poll.register(fileno, links[number].events)
        try:
            while waiting and left_s > 0:
                left_s = max(0.0, end - self._clock())
                for fileno, _ in poll.poll(left_s * 1000):
                    number, link = waiting[fileno], links[waiting[fileno]]
                    link.proceed()
                    if link.is_waited_for:
                        poll.modify(fileno, link.events)
                    else:
                        poll.unregister(fileno)
                        del waiting[fileno]
                        yield number, left.pop(number).take()
        finally:
            late = {number: link.take() for number, link in left.items()}
        yield from late.items()


def _note_refusal(link: ShardLink, body: bytes) -> None:
    """Note a refusal; one that says something of the request is raised.

    Raises:
        InvalidValueError: No request can have a value of this one.
    """
    try:
        error = _ERROR.decode(body).error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        link.judge("malformed", "answers with something else")
        return
    if error.code == _OF_THE_REQUEST:
        link.judge("answered")
        raise InvalidValueError(error.message)
    link.judge("refused", f"refuses: {one_line(error.message)}")
