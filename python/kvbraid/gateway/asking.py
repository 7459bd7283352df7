"""What data planes ask that send requests themselves: a request, or the beginning of one.

Invariant: a request has one booking however often it is asked about, since the booking has the
request's name. Of a body that was cut only its first field is read: what follows could change the
rest.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec

from kvbraid.gateway.choosing import BYTES_PER_TOKEN, Chooser
from kvbraid.gateway.headers import MODEL, SESSION, TRACEPARENT, request_id
from kvbraid.gateway.prompts import Prompt, PromptReader
from kvbraid.ids import PodId
from kvbraid.policy import Decision
from kvbraid.service.requests import ReportBody

_FIRST_MODEL: Final = re.compile(rb'\s*\{\s*"model"\s*:\s*("(?:[^"\\]|\\.){0,512}")')
_NOT_PLAIN: Final = re.compile(r'["\\{}]')
_TEXT: Final = msgspec.json.Decoder(str)


class Question(NamedTuple):
    """A request that a data plane wants to send.

    `headers` have names in lower case. Without a `path` the request is no prompt. `num_bytes` is
    how long the body is said to be, of which only the beginning is here if it `is_cut`.
    """

    name: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    num_bytes: int
    is_cut: bool = False


def first_model(cut: bytes) -> str:
    """Return the model that the beginning of a body names as its first field; else nothing."""
    found = _FIRST_MODEL.match(cut)
    try:
        return _TEXT.decode(found[1]) if found else ""
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def name_of(given: Mapping[bytes, bytes]) -> str:
    """Return a data plane's name of a request if it is usual, and plain in JSON; else our own."""
    name = request_id(given, "").decode("ascii")
    return name if name and not _NOT_PLAIN.search(name) else uuid4().hex


class Asker:
    """Asks the router for data planes."""

    def __init__(self, reader: PromptReader, chooser: Chooser) -> None:
        self._reader = reader
        self._chooser = chooser
        self._picking = chooser.service.picking
        self._most_bytes = chooser.service.limits.tokens * BYTES_PER_TOKEN

    async def decide(
        self, asked: Question, left_out: Callable[[str], frozenset[PodId]]
    ) -> Decision:
        """Choose a rank for a request and book it; `left_out` names pods, for a model.

        Raises:
            RefusalError: `unknown_model` or `no_pod`, as `Fleet.find_model`.
            NoRankError: No rank may get the request.
        """
        prompt = await self._prompt(asked)
        request = self._chooser.request(prompt, asked.headers.get(MODEL, ""))
        return await self._chooser.choose(
            asked.name,
            prompt,
            request,
            avoided=self._chooser.fleet.lacking(request.lora) | left_out(request.model),
            num_bytes=min(asked.num_bytes, self._most_bytes),  # Nobody's word makes it longer.
            unwanted=lambda: self.release(asked.name),
        )

    def release(self, name: str) -> None:
        """Release a booking whose request is not sent."""
        self._picking.report(ReportBody(pick=name, event="failed"))

    async def _prompt(self, asked: Question) -> Prompt:
        if asked.is_cut:
            return Prompt(
                model=first_model(asked.body),
                session=asked.headers.get(SESSION),
                traceparent=asked.headers.get(TRACEPARENT, ""),
                why_no_tokens="cut_body",
            )
        return await self._reader.read(asked.path, asked.headers, asked.body)
