"""vLLM's requests in our cache: each has a number, and its tokens and hashes are kept up to date.

Invariant: before a call names a request, `number_of` has told the cache every token and hash that
vLLM's request has at that time. The hashes are those that the engine computed.
"""

from array import array
from dataclasses import dataclass
from typing import Final

from vllm.logger import init_logger
from vllm.v1.request import Request

from kvbraid.cache import CacheManager
from kvbraid.errors import UnknownError, UnsupportedError
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys, Lora, MediaItem, Tokens

logger = init_logger("vllm.kvbraid.hints")

HINT: Final = "kvbraid_will_return"
"""The key of a hint in `SamplingParams.extra_args`."""

_TOKEN_BYTES: Final = array("I").itemsize


@dataclass(slots=True)
class _Known:
    number: int
    num_prompt_tokens: int
    num_tokens: int
    num_hashes: int
    num_media: int


class Requests:
    """The requests that hold blocks or were looked up. A request is forgotten with its blocks."""

    def __init__(self, cache: CacheManager, hash_block_size: int) -> None:
        self._cache = cache
        self._hash_block_size = hash_block_size
        self._known: dict[str, _Known] = {}

    def number_of(self, request: Request) -> int:
        """Make the request known, or bring it up to date; return its number."""
        known = self._known.get(request.request_id)
        if known is None:
            return self._add(request)
        if request.num_prompt_tokens != known.num_prompt_tokens:
            self._take_next_input(request, known)
        elif request.num_tokens != known.num_tokens:
            self._extend(request, known, to_prompt=False)
        return known.number

    def _take_next_input(self, request: Request, known: _Known) -> None:
        """Follow a session whose next piece of input has come.

        The computed tokens, followed by the new piece, are now its prompt. The last sampled token
        was never computed and is dropped.
        """
        if self._cache.config.events and len(request.mm_features) != known.num_media:
            raise UnsupportedError(
                f"request {request.request_id}: media that come after a session's first piece "
                "cannot be told in events; leave --kv-events-config out, or start vLLM without "
                "--scheduler-cls"
            )
        kept = min(request.num_computed_tokens, known.num_tokens)
        self._cache.truncate(known.number, kept)
        known.num_tokens = kept
        known.num_hashes = min(known.num_hashes, kept // self._hash_block_size)
        self._extend(request, known, to_prompt=True)

    def _extend(self, request: Request, known: _Known, *, to_prompt: bool) -> None:
        self._cache.extend(
            known.number,
            self._tokens(request, known.num_tokens),
            block_hashes=request.block_hashes[known.num_hashes :],
            to_prompt=to_prompt,
        )
        known.num_prompt_tokens = request.num_prompt_tokens
        known.num_tokens = request.num_tokens
        known.num_hashes = len(request.block_hashes)

    def _add(self, request: Request) -> int:
        tokens = self._tokens(request, 0)
        lora = request.lora_request
        number = self._cache.add(
            tokens,
            num_prompt_tokens=request.num_prompt_tokens,
            extra=extra_keys(request),
            lora_id=lora.adapter_id if lora else None,
            session_id=request.session_id,
            block_hashes=request.block_hashes,
            will_return=will_return(request),
        )
        self._known[request.request_id] = _Known(
            number,
            request.num_prompt_tokens,
            request.num_tokens,
            len(request.block_hashes),
            len(request.mm_features),
        )
        return number

    def _tokens(self, request: Request, start: int) -> Tokens:
        """Return a request's tokens from `start` on, or as many zeros if there are no events.

        The engine computes the hashes, so tokens appear only in events. Media placeholders can be
        negative numbers, which events cannot hold.
        """
        if self._cache.config.events:
            tokens: list[int] = request.all_token_ids[start:]
            return tokens
        return array("I", bytes(_TOKEN_BYTES * (request.num_tokens - start)))

    def find(self, request_id: str) -> int | None:
        """Return the number of a request, or None if it is not known."""
        known = self._known.get(request_id)
        return None if known is None else known.number

    def id_of(self, number: int) -> str | None:
        """Return vLLM's name of a request; None if it is unknown. This searches all requests."""
        names = (name for name, known in self._known.items() if known.number == number)
        return next(names, None)

    def known(self, request_id: str) -> int:
        """Return the number of a request.

        Raises:
            UnknownError: The request was never looked up or allocated for, or it was freed.
        """
        number = self.find(request_id)
        if number is None:
            raise UnknownError(
                f"request {request_id} is not known; look it up or allocate for it first"
            )
        return number

    def forget(self, request_id: str) -> int | None:
        """Forget a request; return its number, or None if it was not known."""
        known = self._known.pop(request_id, None)
        return None if known is None else known.number


def extra_keys(request: Request) -> ExtraKeys:
    """Return the extra keys that events show; the engine's hashes already contain them."""
    lora = request.lora_request
    if lora is None and not request.mm_features and request.cache_salt is None:
        return NO_EXTRA_KEYS
    return ExtraKeys(
        lora=Lora(lora.lora_name, lora.lora_path) if lora else None,
        cache_salt=request.cache_salt,
        media=tuple(
            MediaItem(item.identifier, item.mm_position.offset, item.mm_position.length)
            for item in request.mm_features
        ),
    )


def will_return(request: Request) -> float | None:
    """Return what a client says of the request's end, in `extra_args`; None: nothing.

    What is no probability is logged and counts as nothing: one client must not stop the engine.
    """
    parameters = request.sampling_params
    hint = ((parameters and parameters.extra_args) or {}).get(HINT)
    if hint is None or (isinstance(hint, int | float) and 0 <= hint <= 1):
        return hint
    logger.warning(
        "kvbraid: request %s: %s is %r; expected true, false or a probability from 0 to 1. "
        "It counts as unknown.",
        request.request_id,
        HINT,
        hint,
    )
    return None
