"""What the router is asked about a request, and its choice: for whoever sends the request then.

Invariant: a choice that is made has a booking, and whoever is cancelled meanwhile is told of it.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from anyio.to_thread import run_sync

from kvbraid.fleet.request import Request
from kvbraid.gateway.counts import GatewayCounts
from kvbraid.gateway.fleet import Fleet
from kvbraid.gateway.prompts import Prompt
from kvbraid.ids import PodId
from kvbraid.policy import Decision
from kvbraid.service.registry import Service

BYTES_PER_TOKEN: Final = 4
"""Of a body whose prompt's ids are not known: what it costs its pod can only be estimated."""

_INLINE_TOKENS: Final = 32_768
_INLINE_RANKS: Final = 256


class Chooser:
    """Asks the router of one gateway's service."""

    def __init__(self, service: Service, fleet: Fleet, counts: GatewayCounts) -> None:
        self.service = service
        self.fleet = fleet
        self._counts = counts

    def request(self, prompt: Prompt, named: str = "") -> Request:
        """Return what the router is asked; `named` is a model that counts before the prompt's.

        Raises:
            RefusalError: `unknown_model` or `no_pod`, as `Fleet.find_model`.
        """
        model, adapter = self.fleet.find_model(named or prompt.model)
        tokens, why = prompt.token_ids, prompt.why_no_tokens
        if tokens is not None and len(tokens) > self.service.limits.tokens:
            tokens, why = None, "too_many_tokens"
        if tokens is None:
            self._counts.unknown[why] += 1
        return Request(
            model=model,
            token_ids=() if tokens is None else tokens,
            lora=prompt.lora or adapter,
            cache_salt=prompt.cache_salt,
            extra_key=prompt.extra_key,
        )

    async def choose(  # noqa: PLR0913 - as of `Router.pick`
        self,
        name: str,
        prompt: Prompt,
        request: Request,
        *,
        avoided: Collection[PodId],
        num_bytes: int,
        unwanted: Callable[[], None],
        may_overfill: bool = True,
    ) -> Decision:
        """Choose a rank of no avoided pod; `num_bytes` is how long the body is.

        `unwanted` is called if the caller is cancelled before a choice that is made nevertheless.

        Raises:
            FullError: Every rank is full, and none may be overfilled.
            NoRankError: No rank may get the request.
        """
        picking = self.service.picking

        def choose() -> Decision:
            return picking.choose(
                name,
                request,
                candidates=self.fleet.candidates(avoided),
                session=prompt.session,
                priority=prompt.priority,
                num_tokens=num_bytes // BYTES_PER_TOKEN,
                may_overfill=may_overfill,
                traceparent=prompt.traceparent,
            )

        is_short = (
            len(request.token_ids) <= _INLINE_TOKENS
            and self.service.num_ranks <= _INLINE_RANKS
            and self.service.front is None  # Which waits for shards.
        )
        if is_short:
            return choose()
        chosen = asyncio.ensure_future(run_sync(choose))
        try:
            return await asyncio.shield(chosen)
        except asyncio.CancelledError:  # The thread goes on, and books what nobody wants.
            chosen.add_done_callback(lambda _: unwanted())
            raise
