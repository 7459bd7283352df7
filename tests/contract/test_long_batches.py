"""Scores are answered between the slices of a long batch, and these answers are right too."""

import threading
from collections.abc import Iterator

import pytest
from kvbraid.events import encode_batch
from kvbraid.events.model import BlockRemoved, BlockStored
from kvbraid.fleet.answer import PodScore
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState

LONG, OTHER = PodId("long"), PodId("other")
BLOCKS = 200_000
SHARED = tuple(range(8))
# So many batches at most until a score has come in between two slices of one.
BATCHES = 50


def store(num_blocks: int, first: int = 1) -> BlockStored:
    return BlockStored(
        block_hashes=tuple(range(first, first + num_blocks)),
        parent_block_hash=None,
        token_ids=SHARED + (5,) * (num_blocks - len(SHARED)),
        block_size=1,
        kv_cache_spec_kind="full_attention",
        group_idx=0,
    )


@pytest.fixture
def index() -> FleetIndex:
    index = FleetIndex()
    for pod in (LONG, OTHER):
        index.register(pod, model="m")
        index.apply(pod, encode_batch([store(len(SHARED))]))
    return index


def ask(index: FleetIndex) -> dict[PodId, PodScore]:
    request = Request(model="m", token_ids=(*SHARED, 6, 6))
    return {row.pod: row for row in index.score(request).rows}


def answers_beside(index: FleetIndex, payloads: list[bytes]) -> Iterator[dict[PodId, PodScore]]:
    """Answers that were asked for while these batches were applied on another thread."""

    def feed() -> None:
        for payload in payloads:
            index.apply(LONG, payload)

    feeding = threading.Thread(target=feed)
    feeding.start()
    while feeding.is_alive():
        yield ask(index)
    feeding.join()


def test_scores_between_the_slices_of_a_batch_never_claim_what_is_not_so(
    index: FleetIndex,
) -> None:
    # After each of the two batches the pod holds the whole shared prefix; within them it does not.
    removal = BlockRemoved(block_hashes=tuple(range(1, BLOCKS + 1)), group_idx=0)
    batches = [encode_batch([store(BLOCKS), removal, store(len(SHARED))])]
    batches.append(encode_batch([removal, store(BLOCKS), removal, store(len(SHARED))]))
    between = 0
    for _ in range(BATCHES):
        for rows in answers_beside(index, batches):
            long, other = rows[LONG], rows[OTHER]
            assert (other.exactness, other.lower, other.upper) == ("exact", 8, 8)
            assert long.lower <= len(SHARED) <= long.upper
            if long.exactness == "exact":
                assert (long.lower, long.upper) == (8, 8)
            between += long.state is PodState.REBUILDING
        if between:
            break
    assert between, f"no score in {BATCHES} batches"
    index.check_integrity()
    assert ask(index)[LONG].exactness == "exact"


def test_who_must_not_wait_is_told_that_the_index_is_busy(index: FleetIndex) -> None:
    request = Request(model="m", token_ids=SHARED)
    at_once = index.try_score(request)
    assert at_once is not None
    assert at_once.rows == index.score(request).rows
    batch = encode_batch([store(BLOCKS)])
    busy = 0
    for _ in range(BATCHES):
        feeding = threading.Thread(target=index.apply, args=(LONG, batch))
        feeding.start()
        while feeding.is_alive():
            busy += index.try_score(request) is None
        feeding.join()
        if busy:
            break
    assert busy


def test_whoever_changes_the_index_waits_until_a_batch_is_in(index: FleetIndex) -> None:
    removal = BlockRemoved(block_hashes=tuple(range(1, BLOCKS + 1)), group_idx=0)
    batch = encode_batch([store(BLOCKS), removal])
    threads = [
        threading.Thread(target=index.apply, args=(LONG, batch)),
        threading.Thread(target=index.apply, args=(OTHER, batch)),
        threading.Thread(target=index.reset, args=(LONG,)),
        threading.Thread(target=index.lose, args=(OTHER,)),
        threading.Thread(target=index.register, args=(PodId("new"),), kwargs={"model": "m"}),
        threading.Thread(target=index.enforce_limits),
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        index.check_integrity()
        ask(index)
    index.check_integrity()
    kept = {row.pod: (row.num_blocks > 0, row.messages) for row in index.pods()}
    assert kept[LONG][1] == kept[OTHER][1] == 2
