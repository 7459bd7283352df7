"""A change of lean gives all checkpoints other values, though no call may take long."""

from hashlib import sha256

from kvbraid.cache import ByValue, CacheManager, Lean, Need
from kvbraid.models import PrefillCost

from tests.unit.cache.caches import config, full


def test_after_a_few_calls_the_order_is_as_if_all_had_been_valued_at_once() -> None:
    """Ends of short requests are worth more the longer they are. Before the change all go in the
    order of use. 2 048 are valued at the change, and as many whenever a request ends."""
    num_requests = 5_000
    retention = ByValue(cost=PrefillCost(1.0, 0.1))
    cache = CacheManager(config(full(), num_blocks=12_000, retention=retention, events=False))

    def serve(number: int, num_blocks: int) -> bytes:
        hashes = [sha256(b"%d %d" % (number, at)).digest() for at in range(num_blocks)]
        num_tokens = 16 * num_blocks + 1
        request = cache.add([0] * num_tokens, block_hashes=hashes)
        match = cache.match(request)
        need = Need(request=request, num_new_tokens=num_tokens - match.num_tokens, match=match)
        assert cache.allocate([need]).num_fit == 1
        cache.take_work()
        cache.start_step()
        cache.release([request])
        return hashes[-1]

    def order() -> list[bytes]:
        return [each.block_hash for each in cache.debug.checkpoints() if each.block_hash in ends]

    lengths = [1 + number % 3 for number in range(num_requests)]
    ends = dict.fromkeys(serve(number, length) for number, length in enumerate(lengths))
    by_length = [
        end for _, end in sorted(zip(lengths, ends, strict=True), key=lambda pair: pair[0])
    ]
    assert order() == list(ends)
    serve(num_requests, 4)
    serve(num_requests, 5)  # The first that goes on from a checkpoint.
    leaning = cache.leaning()
    assert leaning is not None
    assert leaning.now.lean is Lean.VALUE
    for _ in range(2):
        assert order() != by_length
        cache.release([cache.add([0])])
    assert order() == by_length
    cache.debug.check_integrity()
