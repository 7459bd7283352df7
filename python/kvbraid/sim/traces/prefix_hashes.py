"""Block hashes of a trace's prompts, without tokens: ids of prefixes, spread over 16 bytes.

Invariant: two hashes are equal exactly if the prefixes are. An id stands for the whole prefix up
to the end of a trace's block. Together with the number of a 16-token part of that block, it stands
for the prefix up to the end of the part. A model's block always ends where a part ends. The number
is spread over the bytes by multiplying it with an odd number, which never maps two numbers to the
same result.

    trace, 64     | id 7                | id 8                |
    parts, 16     | 28 | 29 | 30 | 31  | 32 | 33 | 34 | 35  |
    model, 32     |      29 |       31  |      33 |       35  |      one hash per model block
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.sim.traces.trace import TraceRequest

PART_TOKENS: Final = 16

_NUM_BYTES: Final = 16
_MASK: Final = (1 << 8 * _NUM_BYTES) - 1
_SPREAD: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835  # 2^128 over the golden ratio; odd.
_NUM_REMEMBERED: Final = 256


def check_parts(what: str, block_tokens: int) -> None:
    """Refuse blocks that parts of 16 tokens do not fill.

    Raises:
        InvalidValueError: The message says whose blocks they are.
    """
    if block_tokens % PART_TOKENS or block_tokens < 1:
        raise InvalidValueError(
            f"blocks of the {what} have {block_tokens} tokens; expected a multiple of "
            f"{PART_TOKENS}, in which traces are simulated"
        )


class PrefixHashes:
    """Computes hashes for one block size. It remembers conversations, whose prompts mostly grow.

    Args:
        trace_block_tokens: Tokens that an id covers.
        block_size: Tokens that a hash covers.

    Raises:
        InvalidValueError: A size is not a multiple of 16 tokens.
    """

    def __init__(self, trace_block_tokens: int, block_size: int) -> None:
        check_parts("trace", trace_block_tokens)
        check_parts("model", block_size)
        self.block_size = block_size
        self._per_id = trace_block_tokens // PART_TOKENS
        self._per_block = block_size // PART_TOKENS
        self._known: OrderedDict[int, tuple[Sequence[int], list[bytes]]] = OrderedDict()

    def of(self, request: TraceRequest) -> list[bytes]:
        """Return the hashes of all blocks that the ids cover. Do not change the returned list."""
        end = len(request.ids) * self._per_id // self._per_block
        before, known = self._known.pop(request.conversation, ((), []))
        shared = num_shared(before, request.ids) * self._per_id // self._per_block
        hashes = known[:shared]
        hashes += self._hashes(request.ids, len(hashes), end)
        self._known[request.conversation] = request.ids, hashes
        if len(self._known) > _NUM_REMEMBERED:
            self._known.popitem(last=False)
        return hashes

    def _hashes(self, ids: Sequence[int], first: int, end: int) -> list[bytes]:
        """Hash blocks `first` to `end`. Each block ends with a part; parts are numbered through
        all ids."""
        per_id, per_block = self._per_id, self._per_block
        return [
            ((ids[part // per_id] * per_id + part % per_id) * _SPREAD & _MASK).to_bytes(
                _NUM_BYTES, "little"
            )
            for part in range((first + 1) * per_block - 1, end * per_block, per_block)
        ]


def num_leading(ids: Sequence[int], is_known: Callable[[int], bool]) -> int:
    """Return how many leading ids are known. No id after an unknown one may be known."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if is_known(ids[middle]):
            low = middle + 1
        else:
            high = middle
    return low


def num_shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading ids two prompts share. Chained ids all differ after these."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high) // 2
        if a[middle] == b[middle]:
            low = middle + 1
        else:
            high = middle
    return low
