"""Where a request goes, for other data planes: POST /internal/route, as Ray Serve's HAProxy asks.

The data plane sends the request itself. Its booking ends with a report to `/v1/picked`, or by
time.
"""

import asyncio
import contextlib
import logging
import re
from typing import Final

import msgspec

from kvbraid.errors import KvbraidError
from kvbraid.gateway.asking import Asker, Question, name_of
from kvbraid.gateway.bodies import Body
from kvbraid.gateway.choosing import Chooser
from kvbraid.gateway.headers import DP_RANK, REQUEST_ID, as_text
from kvbraid.gateway.prompts import PromptReader, path_of
from kvbraid.policy import Decision
from kvbraid.service.errors import RefusalError, as_refusal
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import (
    ClientGoneError,
    Receive,
    Scope,
    Send,
    once,
    refused,
    send_answer,
)
from kvbraid.service.http.calls import Answer
from kvbraid.service.http.connection_limits import ConnectionLimits
from kvbraid.service.http.metrics import RequestCounts

DIRECTIONS_PATH: Final = "/internal/route"
RIGHT: Final = "route"
"""What a data plane needs that asks there."""

CUT: Final = "x-body-truncated"
"""The header of a body of which only the beginning is sent: `have/full`, in bytes."""

CLIENT_PATH: Final = "x-kvbraid-path"
"""The header with the path of the client's request; without it the body's fields decide."""

_LENGTHS: Final = re.compile(r"[0-9]{1,15}/([0-9]{1,15})")
_logger: Final = logging.getLogger(__name__)


class DirectionsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /internal/route: a rank, and headers that its request gets on top.

    `replica_id` is the pod's id, with `/` and the rank if it has several. No text in it needs an
    escape in JSON: data planes look for it without reading JSON.
    """

    host: str
    port: int
    replica_id: str
    request_headers: dict[str, str]


class Directions:
    """The ASGI application of DIRECTIONS_PATH."""

    def __init__(
        self,
        reader: PromptReader,
        options: ForwardingOptions,
        *,
        chooser: Chooser,
        access: Access,
        limits: ConnectionLimits,
        requests: RequestCounts,
    ) -> None:
        self._asker = Asker(reader, chooser)
        self._options = options
        self._fleet = chooser.fleet
        self._access = access
        self._limits = limits
        self._answers = requests.of("POST", DIRECTIONS_PATH)
        self._asking = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        body = Body(receive, self._limits)
        self._asking += 1
        try:
            answer = await self._answer(scope, body)
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            answer = refused(RefusalError("shutting_down", "given up: the server ends"))
        except KvbraidError as error:
            answer = refused(as_refusal(error))
        except Exception as error:
            _logger.exception("POST %s failed", DIRECTIONS_PATH)
            answer = refused(RefusalError("internal", f"unexpected {type(error).__name__}"))
        finally:
            self._asking -= 1
            body.release()
        self._answers[answer.status] += 1
        if not body.is_complete:  # Nobody reads the rest of it.
            answer = answer._replace(close=True)
        with contextlib.suppress(asyncio.CancelledError):  # The server's end waits for no reader.
            await send_answer(send, answer)

    async def _answer(self, scope: Scope, body: Body) -> Answer:
        given = once(scope["headers"])
        authorization = given.get(b"authorization", b"")
        self._access.check(RIGHT, authorization, given.get(b"host", b""), given.get(b"origin"))
        if self._asking > self._options.requests:
            raise RefusalError("too_many_requests", f"{self._options.requests} are in flight")
        body_bytes = await body.read_whole(given)
        headers = as_text(given)
        path, _, _ = headers.get(CLIENT_PATH, "").partition("?")
        told = _LENGTHS.fullmatch(headers.get(CUT, ""))
        question = Question(
            name=name_of(given),
            path=path or path_of(body_bytes),
            headers=headers,
            body=body_bytes,
            num_bytes=int(told[1]) if told else len(body_bytes),
            is_cut=CUT in headers,
        )
        decision = await self._asker.decide(question, self._fleet.without_socket)
        return Answer(msgspec.json.encode(self._directions(decision)))

    def _directions(self, decision: Decision) -> DirectionsAnswer:
        pod, dp_rank = decision.rank
        address = self._fleet.target(pod)
        if address is None or address.socket is None:
            self._asker.release(decision.name)
            raise RefusalError("no_pod", f"pod {pod} was removed", remedy="ask again")
        host, port = address.socket
        headers = {REQUEST_ID.decode(): decision.name}
        is_rank = address.num_ranks > 1
        if is_rank:
            headers[DP_RANK] = str(dp_rank)
        return DirectionsAnswer(
            host=host,
            port=port,
            replica_id=f"{pod}/{dp_rank}" if is_rank else pod,
            request_headers=headers,
        )
