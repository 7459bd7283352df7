"""One connection to a shard: HTTP/1.1 whose requests follow each other without waiting.

Invariant: answers come in the order of their questions, so one that is late is read and dropped
before the next question is asked. A shard that owes a late answer is asked nothing. Nothing here
waits, except on the thread that connects. One thread at a time uses a link.
"""

import contextlib
import select
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import urlsplit

import httptools

from kvbraid.errors import one_line

CONNECT_S: Final = 2.0
GIVE_UP_S: Final = 5.0
"""Without an answer, after which the connection is given up."""

ALIVE_S: Final = 10.0
"""Without a question, after which one is asked: a server closes a connection that is idle."""

MOST_BYTES: Final = 64 << 20
"""Of one answer."""

MOST_UNREAD: Final = 256
"""Questions whose answers nobody waits for, and which the shard has not answered yet."""

_PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_PIECE: Final = 1 << 16
_WOULD_WAIT: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


ShardOutcome: TypeAlias = Literal["answered", "late", "down", "refused", "malformed", "not_told"]
"""What can become of a question; `not_told`: a promise that nobody was told of."""


class HttpAnswer(NamedTuple):
    """What a shard has answered."""

    status: int
    body: bytes


class ShardTarget(NamedTuple):
    """Where a question goes, what its body is, and how many deadlines its answer may take."""

    path: str
    content_type: str
    deadlines: int = 1
    method: str = "POST"


class _Expected(NamedTuple):
    """An answer to come: whether anybody waits for it, and since when."""

    is_waited_for: bool
    asked_at: float


class ShardLink:
    """A connection to one shard, made again and again.

    Attributes:
        name: How operators know the shard: its number, and its address.
        problem: Why it cannot be asked; empty if it can.
        complaint: What was wrong with its last answer.
        counts: What has become of questions.
        is_waited_for: Whether an answer is to come that somebody waits for.
    """

    def __init__(
        self,
        number: str,
        url: str,
        key: str | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None  # The configuration was checked.
        self.name = f"shard {number} ({url})"
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (80 if self._tls is None else 443)
        authorization = "" if key is None else f"authorization: Bearer {key}\r\n"
        self._head = f"host: {parts.netloc}\r\n{authorization}content-length: "
        self._path = parts.path.rstrip("/")
        self._clock = clock
        self._socket: socket.socket | None = None
        self._unsent = b""
        self._room = memoryview(bytearray(_PIECE))
        self._body = bytearray()
        self._parser = httptools.HttpResponseParser(self)
        self._made: socket.socket | None = None  # By the thread that connects.
        self._is_over = threading.Event()
        self._num_failures = 0
        self._asked_at = clock()
        self.counts: Counter[str] = Counter(dict.fromkeys(get_args(ShardOutcome), 0))
        self.problem = self.complaint = ""
        self._answer: HttpAnswer | None = None
        self._drop("is not connected yet")

    def fileno(self) -> int:
        """Return the number of the socket, while there is one."""
        assert self._socket is not None
        return self._socket.fileno()

    @property
    def trouble(self) -> str:
        """Why it cannot be asked, or what was wrong with its last answer."""
        return self.problem or self.complaint

    @property
    def events(self) -> int:
        """What to wait for."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def ask(self, target: ShardTarget, body: bytes, *, is_waited_for: bool = True) -> bool:
        """Ask a question unless the shard is down, or owes an answer; say whether it is asked."""
        self.look()
        if self.problem or (not is_waited_for and len(self._expected) >= MOST_UNREAD):
            self.counts["down" if is_waited_for else "not_told"] += 1
            return False
        self._asked_at = self._clock()
        self._expected.append(_Expected(is_waited_for, self._asked_at))
        if is_waited_for:
            self._answer, self.is_waited_for = None, True
        first = f"{target.method} {self._path}{target.path} HTTP/1.1"
        first += f"\r\ncontent-type: {target.content_type}"
        head = f"{first}\r\n{self._head}{len(body)}\r\n\r\n".encode("ascii")
        self._send(head + body)
        return True

    def look(self) -> None:
        """Take a connection that was made, and what has come since."""
        if self._socket is None and self._made is not None:
            self._socket, self._made = self._made, None
            self.problem = ""
        if self._socket is not None:
            self.proceed()
        if self._expected and self._clock() - self._expected[0].asked_at > GIVE_UP_S:
            self._drop(f"has not answered for {GIVE_UP_S:g} s")

    def keep_alive(self, target: ShardTarget, body: bytes) -> None:
        """Ask a question if none was asked for long; nobody waits for the answer."""
        self.look()
        if self._clock() - self._asked_at > ALIVE_S:
            self.ask(target, body, is_waited_for=False)

    def proceed(self) -> None:
        """Send and read as much as goes without waiting."""
        if self._unsent:
            self._send(b"")
        self._receive()

    def take(self) -> HttpAnswer | None:
        """Return the answer to the last question; None: nobody waits for it any more."""
        if self.is_waited_for:
            self.is_waited_for, self._is_late, self.problem = False, True, "is late"
        if self._answer is None:
            self.counts["late" if self._is_late else "down"] += 1
        return self._answer

    def judge(self, what: ShardOutcome, complaint: str = "") -> None:
        """Note what an answer was."""
        self.counts[what] += 1
        self.complaint = complaint
        if what == "answered":
            self._num_failures = 0

    def close(self) -> None:
        """Close the connection for good."""
        self._is_over.set()
        for each in (self._socket, self._made):
            if each is not None:
                each.close()
        self._socket = self._made = None
        self.problem = "is not asked any more"

    def _send(self, more: bytes) -> None:
        """Send what is left, and more, as much as goes without waiting."""
        left = memoryview(self._unsent + more if self._unsent else more)
        try:
            while left and self._socket is not None:
                left = left[self._socket.send(left) :]
        except _WOULD_WAIT:
            pass
        except OSError as error:
            self._drop(f"is down: {_told(error)}")
            return
        self._unsent = bytes(left)

    def _receive(self) -> None:
        """Read all that has come; of TLS also what no poll tells of: it is decrypted already."""
        try:
            while self._socket is not None:
                num = self._socket.recv_into(self._room)
                if not num:
                    self._drop("is down: it has closed the connection")
                    return
                self._parser.feed_data(self._room[:num])
                if self._tls is None and num < len(self._room):
                    return
        except _WOULD_WAIT:
            return
        except (OSError, httptools.HttpParserError) as error:
            self._drop(f"is down: {_told(error)}")

    # ---- what the parser has found ---------------------------------------------------------

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of an answer."""
        self._body += piece
        if len(self._body) > MOST_BYTES:
            raise OSError(f"an answer of more than {MOST_BYTES} bytes")

    def on_message_complete(self) -> None:
        """Take an answer."""
        if not self._expected:
            raise OSError("an answer to no question")
        if self._expected.popleft().is_waited_for:
            if self._is_late:
                self._is_late, self.problem = False, ""
            else:
                self._answer = HttpAnswer(self._parser.get_status_code(), bytes(self._body))
                self.is_waited_for = False
        self._body = bytearray()

    # ---- connecting ------------------------------------------------------------------------

    def _drop(self, problem: str) -> None:
        """Close the connection, and make another one on a thread of its own."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self.problem = problem
        self._unsent, self._body = b"", bytearray()
        self._expected: deque[_Expected] = deque()  # The answers to come.
        self._is_late = self.is_waited_for = False
        self._parser = httptools.HttpResponseParser(self)
        threading.Thread(target=self._connect, name="kvbraid-shard", daemon=True).start()

    def _connect(self) -> None:
        while True:
            if self._num_failures:
                pause = _PAUSES_S[min(self._num_failures, len(_PAUSES_S)) - 1]
                self._is_over.wait(pause)
            if self._is_over.is_set():
                return
            self._num_failures += 1  # Until it answers: one that hangs can be connected to.
            try:
                made = self._new_socket()
            except OSError as error:
                self.problem = f"is down: {_told(error)}"
            else:
                self._made = made
                if self._is_over.is_set():
                    made.close()
                return

    def _new_socket(self) -> socket.socket:
        made = socket.create_connection((self._host, self._port), timeout=CONNECT_S)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                made = self._tls.wrap_socket(made, server_hostname=self._host)
            made.setblocking(False)
        except OSError:
            with contextlib.suppress(OSError):
                made.close()
            raise
        return made


def _told(error: Exception) -> str:
    return one_line(str(error) or type(error).__name__)
