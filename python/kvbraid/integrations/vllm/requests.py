"""vLLM's requests as our cache knows them: by number, with tokens and hashes brought up to date.

The law: before a call names a request, `number_of` has told the cache every token and hash that
vLLM's request has by then. Hashes are taken as the engine computed them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from vllm.v1.request import Request

from kvbraid.cache import CacheManager
from kvbraid.errors import UnknownError, UnsupportedError
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys, Lora, MediaItem


@dataclass(slots=True)
class _Known:
    number: int
    num_prompt_tokens: int
    num_tokens: int
    num_hashes: int


class Requests:
    """The requests that hold blocks, or were looked up. Forgets one when its blocks go."""

    def __init__(self, cache: CacheManager) -> None:
        self._cache = cache
        self._known: dict[str, _Known] = {}

    def number_of(self, request: Request) -> int:
        """Make the request known, or bring it up to date; return its number."""
        known = self._known.get(request.request_id)
        hashes = request.block_hashes
        if known is None:
            return self._add(request)
        num_tokens = request.num_tokens
        if num_tokens == known.num_tokens and len(hashes) == known.num_hashes:
            return known.number
        if num_tokens < known.num_tokens or request.num_prompt_tokens != known.num_prompt_tokens:
            raise UnsupportedError(
                f"request {request.request_id} had {known.num_tokens} tokens, "
                f"{known.num_prompt_tokens} of them its prompt, and has {num_tokens} and "
                f"{request.num_prompt_tokens} now: streaming input is not supported; start vLLM "
                "without --scheduler-cls"
            )
        self._cache.extend(
            known.number,
            request.all_token_ids[known.num_tokens :],
            block_hashes=hashes[known.num_hashes :],
        )
        known.num_tokens, known.num_hashes = num_tokens, len(hashes)
        return known.number

    def _add(self, request: Request) -> int:
        tokens = request.all_token_ids[:]
        lora = request.lora_request
        number = self._cache.add(
            tokens,
            num_prompt_tokens=request.num_prompt_tokens,
            extra=_extra_keys(request),
            lora_id=lora.adapter_id if lora else None,
            session_id=request.session_id,
            block_hashes=request.block_hashes,
        )
        self._known[request.request_id] = _Known(
            number, request.num_prompt_tokens, len(tokens), len(request.block_hashes)
        )
        return number

    def find(self, request_id: str) -> int | None:
        """Return the number of a request, or None where it is not known."""
        known = self._known.get(request_id)
        return None if known is None else known.number

    def known(self, request_id: str) -> int:
        """Return the number of a request.

        Raises:
            UnknownError: It was never looked up or allocated for, or was freed.
        """
        number = self.find(request_id)
        if number is None:
            raise UnknownError(
                f"request {request_id} is not known; look it up or allocate for it first"
            )
        return number

    def forget(self, request_id: str) -> int | None:
        """Stop knowing a request; return its number, or None where it was not known."""
        known = self._known.pop(request_id, None)
        return None if known is None else known.number

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of all known requests."""
        return (known.number for known in self._known.values())


def _extra_keys(request: Request) -> ExtraKeys:
    """Return what events say of the request; its hashes have all of it in them already."""
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
