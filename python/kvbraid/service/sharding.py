"""Which shard of a fleet indexes a pod: a function of the pod's id alone.

Invariant: every process of a fleet gives the same answer, in every version. If the number of
shards grows by one, pods move to the new shard alone.
"""

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from kvbraid.errors import InvalidValueError, shortened
from kvbraid.ids import PodId

MOST_SHARDS: Final = 64

_SHARD: Final = re.compile(r"([1-9][0-9]?)/([1-9][0-9]?)")


class Shard(NamedTuple):
    """One of several servers that index a fleet together; numbers begin at 1."""

    number: int
    of: int

    @classmethod
    def read(cls, text: str) -> "Shard":
        """Read what an operator writes: 2/3.

        Raises:
            InvalidValueError: There is no such shard.
        """
        found = _SHARD.fullmatch(text)
        if found is None or not int(found[1]) <= int(found[2]) <= MOST_SHARDS:
            expected = f'expected "NUMBER/OF", as in "2/3", of at most {MOST_SHARDS} shards'
            raise InvalidValueError(f"shared.shard = {shortened(text)}; {expected}")
        return cls(int(found[1]), int(found[2]))

    def has(self, pod: PodId) -> bool:
        """Whether this shard indexes a pod."""
        return shard_of(pod, self.of) == self.number

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@lru_cache(maxsize=1 << 15)
def shard_of(pod: PodId, of: int) -> int:
    """Return the number of a pod's shard: the largest hash wins (rendezvous hashing)."""

    def weight(number: int) -> bytes:
        text = f"{number}\0{pod}".encode("utf-8", "surrogatepass")
        return blake2b(text, digest_size=8).digest()

    return max(range(1, of + 1), key=weight)
