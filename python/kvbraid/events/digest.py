"""A digest by which payloads are compared when their bytes are not kept: 64 bits.

Equal bytes have equal digests. The key is drawn at random in each process, or made of a secret, so
nobody outside can make two different payloads with one digest.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from kvbraid._native import PayloadDigest


class Digests(Protocol):
    """Digests under one key."""

    def of(self, payload: bytes, /) -> int:
        """Return the digest of a payload."""

    def of_each(self, payloads: Sequence[bytes], /) -> list[int]:
        """Return the digests of payloads, in order."""


RANDOM: Final[Digests] = PayloadDigest()
"""Under the key of this process."""


def digests_under(secret: bytes) -> Digests:
    """Return digests that another process with this secret of 32 bytes has too."""
    return PayloadDigest(secret)
