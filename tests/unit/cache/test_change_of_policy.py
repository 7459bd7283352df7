"""A change of policy gives all checkpoints other values, though no call may take long."""

from hashlib import sha256

from kvbraid.cache import ByValue, CacheManager, EvictionPolicy, Need
from kvbraid.models import PrefillCost

from tests.unit.cache.caches import config, full


def test_after_a_few_calls_the_order_is_as_if_all_had_been_valued_at_once() -> None:
    """The cache begins with values, and short requests of different lengths have different ones.
    When it was filled twice and nothing came back, all go in the order of use. 2 048 are valued at
    the change, and as many whenever a request ends."""
    num_requests = 5_000
    retention = ByValue(cost=PrefillCost(1.0, 0.1))
    cache = CacheManager(config(full(), num_blocks=12_000, retention=retention, events=False))

    def serve(number: int, num_blocks: int, num_computed: int) -> bytes:
        hashes = [sha256(b"%d %d" % (number, at)).digest() for at in range(num_blocks)]
        request = cache.add([0] * (16 * num_blocks + 1), block_hashes=hashes)
        need = Need(request=request, num_new_tokens=num_computed)
        assert cache.allocate([need]).num_fit == 1
        cache.take_work()
        cache.start_step()
        cache.release([request])
        return hashes[-1]

    def order() -> list[bytes]:
        return [each.block_hash for each in cache.debug.checkpoints() if each.block_hash in ends]

    lengths = [1 + number % 3 for number in range(num_requests)]
    by_use = [serve(number, length, 16 * length + 1) for number, length in enumerate(lengths)]
    ends = set(by_use)
    assert order() != by_use
    serve(num_requests, 2 * 12_000 - sum(lengths), 16)  # It is aborted after its first block.
    choice = cache.policy_choice()
    assert choice is not None
    assert choice.now.policy is EvictionPolicy.DENSE
    for _ in range(2):
        assert order() != by_use
        cache.release([cache.add([0])])
    assert order() == by_use
    cache.debug.check_integrity()
