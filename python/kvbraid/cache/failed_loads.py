"""The calls of a cache manager that an engine makes when a load failed.

Their law: what the load left unwritten is neither read nor found. A failed copy leaves with
`pool.forget`, and `pool.hold` keeps a block that the load may still write. Each call either does
what it says or raises and changes nothing.
"""

from kvbraid._native import CacheCore
from kvbraid.cache.counts import check_counts


class FailedLoads:
    """A part of `CacheManager`."""

    _core: CacheCore

    def record_blocks_for_zeroing(self, request: int, start_token: int) -> None:
        """List a request's blocks from a token on for zeroing, because a load left them unwritten.

        Groups without `needs_zeroing` list nothing, and a ring is listed whole.

        Raises:
            UnknownError: The request is not known.
            InvalidValueError: The token is inside a block, or somebody else holds a block or finds
                it by a hash.
        """
        check_counts(start_token=start_token)
        self._core.record_blocks_for_zeroing(request, start_token)
