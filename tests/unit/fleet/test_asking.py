"""Several requests in one call, requests in an event loop, and what a request's tokens may be."""

import asyncio
import re
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from kvbraid.errors import InvalidValueError, KvbraidError, UnknownError
from kvbraid.events import BlockStored, encode_batch
from kvbraid.fleet.answer import Scores
from kvbraid.fleet.awaiting import AT_ONCE_TOKENS, TOKENS_OF_A_RANK
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.spec import GroupSpec, SpecKind, Topology

POD = PodId("a")
FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4)
HELD = tuple(range(8))


def an_index() -> FleetIndex:
    index = FleetIndex()
    index.register(POD, model="m", topology=Topology(groups=(FULL,)))
    stored = BlockStored(
        block_hashes=(1, 2), parent_block_hash=None, token_ids=HELD, block_size=4, group_idx=0
    )
    index.apply(POD, encode_batch([stored]))
    return index


def request(*more: int, **fields: Any) -> Request:  # noqa: ANN401 - fields of the request
    return Request(**{"model": "m", "token_ids": [*HELD, *more], **fields})


def lower(scores: Scores) -> list[int]:
    return [row.lower for row in scores.rows]


def test_several_requests_get_an_answer_each_in_order() -> None:
    index = an_index()
    asked = [request(9), request(token_ids=[1, 2]), request(9, cache_salt="s")]
    assert [lower(each) for each in index.score_many(asked)] == [[8], [0], [0]]
    assert index.score_many([]) == []


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (request(model="x"), UnknownError, r"^requests\[1\]: no pod serves model"),
        (request(-1), InvalidValueError, r"^requests\[1\]: token id 8 is -1"),
        (request(tiers=["tape"]), InvalidValueError, r"^requests\[1\]: tier \"tape\" is not one"),
        (request(pods="a"), InvalidValueError, r"^requests\[1\]: pods is 'a'; expected a list"),
        (request(lora="\udcff"), InvalidValueError, r"^requests\[1\]: lora is"),
        (request(extra_keys=7), InvalidValueError, r"^requests\[1\]: extra_keys is 7"),
    ],
)
def test_a_request_that_cannot_be_scored_is_named_by_its_place(
    wrong: Request, error: type[KvbraidError], message: str
) -> None:
    with pytest.raises(error, match=message):
        an_index().score_many([request(9), wrong])


def test_a_thread_waits_for_one_answer_of_many_and_not_for_all() -> None:
    """Every answer has thousands of rows. While one call makes a hundred, others get theirs."""
    index = an_index()
    index.register(PodId("many"), model="m", dp_size=4_096, topology=Topology(groups=(FULL,)))
    call = threading.Thread(target=index.score_many, args=([request(9)] * 100,))
    num_between = 0
    call.start()
    while call.is_alive():
        index.score(request(9))
        num_between += 1
    # If the call held the index until its end, two would: one before it, one that waits for it.
    assert num_between > 3


class Watched(FleetIndex):
    """Notes on which threads it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once: list[int] = []
        self.on_thread: list[int] = []

    def try_score(self, request: Request) -> Scores | None:
        self.at_once.append(threading.get_ident())
        return super().try_score(request)

    def score(self, request: Request, *, with_seen: bool = False) -> Scores:
        self.on_thread.append(threading.get_ident())
        return super().score(request, with_seen=with_seen)


def a_watched_index() -> Watched:
    index = Watched()
    index.register(POD, model="m", topology=Topology(groups=(FULL,)))
    return index


def awaited(index: FleetIndex, num_tokens: int) -> Scores:
    asked = Request(model="m", token_ids=array("I", range(num_tokens)))
    return asyncio.run(index.score_async(asked))


def test_a_short_request_is_scored_at_once_and_a_long_one_on_a_thread() -> None:
    index, longest = a_watched_index(), AT_ONCE_TOKENS - TOKENS_OF_A_RANK
    assert len(awaited(index, longest)) == 1
    assert (index.at_once, index.on_thread) == ([threading.get_ident()], [])
    index = a_watched_index()
    assert len(awaited(index, longest + 1)) == 1
    assert (index.at_once, threading.get_ident() in index.on_thread) == ([], False)
    assert len(index.on_thread) == 1


def test_a_request_to_very_many_ranks_is_scored_on_a_thread_however_short_it_is() -> None:
    index = a_watched_index()
    index.register(PodId("many"), model="m", dp_size=AT_ONCE_TOKENS // TOKENS_OF_A_RANK)
    awaited(index, 1)
    assert (index.at_once, len(index.on_thread)) == ([], 1)
    index.remove(PodId("many"))
    awaited(index, 1)
    assert len(index.at_once) == 1


def test_a_busy_index_makes_nobody_in_the_loop_wait() -> None:
    """Another thread scores a prompt of millions of tokens; meanwhile the loop goes on turning."""
    index = a_watched_index()
    busy = Request(model="m", token_ids=array("I", range(8_000_000)))
    call = threading.Thread(target=FleetIndex.score, args=(index, busy))

    async def ask_while_busy() -> int:
        call.start()
        while index.try_score(request(9)) is not None:
            await asyncio.sleep(0)
        asked = asyncio.create_task(index.score_async(request(9)))
        turns = 0
        while not asked.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert len(await asked) == 1
        return turns

    turns = asyncio.run(ask_while_busy())
    call.join()
    assert turns > 1
    assert len(index.on_thread) == 1


def test_an_awaited_request_that_is_wrong_is_refused_like_any_other() -> None:
    index = an_index()
    for wrong, message in ((request(-1), "token id 8 is -1"), (request(pods="a"), "pods is 'a'")):
        with pytest.raises(InvalidValueError, match=message):
            asyncio.run(index.score_async(wrong))


NO_REQUEST: Any = 3
ONE_REQUEST: Any = request(9)
GENERATOR: Any = (token for token in HELD)
TEXT: Any = "payload"
ONE_PAYLOAD: Any = b"payload"
MISUSE: dict[str, tuple[Callable[[FleetIndex], object], str]] = {
    "score": (lambda i: i.score(NO_REQUEST), "request is 3; expected Request"),
    "try_score": (lambda i: i.try_score(NO_REQUEST), "request is 3; expected Request"),
    "explain": (lambda i: i.explain(NO_REQUEST), "request is 3; expected Request"),
    "routed": (lambda i: i.routed(POD, NO_REQUEST, []), "request is 3; expected Request"),
    "score_async": (
        lambda i: asyncio.run(i.score_async(NO_REQUEST)), "request is 3; expected Request",
    ),
    "score_async, tokens": (
        lambda i: asyncio.run(i.score_async(request(token_ids=GENERATOR))),
        "token ids are a generator; expected a buffer of uint32 or a sequence",
    ),
    "score_many": (lambda i: i.score_many([ONE_REQUEST, NO_REQUEST]), "requests[1] is 3; exp"),
    "score_many, one": (lambda i: i.score_many(ONE_REQUEST), "expected a list of Request"),
    "score_many, a generator": (
        lambda i: i.score_many(request(pods=each) for each in "ab"),
        "requests[0]: pods is 'a'; expected a list",
    ),
    "apply": (lambda i: i.apply(POD, TEXT), "payload is 'payload'; expected bytes"),
    "apply_many": (
        lambda i: i.apply_many(POD, [ONE_PAYLOAD, TEXT], budget_s=1),
        "payloads[1] is 'payload'; expected bytes",
    ),
    "apply_many, one": (
        lambda i: i.apply_many(POD, ONE_PAYLOAD, budget_s=1),
        "payloads is b'payload'; expected a list of bytes, the payload frames",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_refused_with_the_value_and_what_was_expected(case: str) -> None:
    call, message = MISUSE[case]
    with pytest.raises(InvalidValueError, match=re.escape(message)):
        call(an_index())


BUFFERS: dict[str, Callable[[Sequence[int]], Request]] = {
    # The type checker reads these lines too: each is a type that a request's tokens may have.
    "list": lambda ids: Request(model="m", token_ids=list(ids)),
    "range": lambda ids: Request(model="m", token_ids=range(ids[0], ids[-1] + 1)),
    "array": lambda ids: Request(model="m", token_ids=array("I", ids)),
    "memoryview": lambda ids: Request(model="m", token_ids=memoryview(array("I", ids))),
    "numpy.uint32": lambda ids: Request(model="m", token_ids=np.array(ids, dtype=np.uint32)),
    "numpy.uint64": lambda ids: Request(model="m", token_ids=np.array(ids, dtype=np.uint64)),
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_tokens_may_be_any_sequence_or_array_of_integers(kind: str) -> None:
    asked = BUFFERS[kind](range(9))
    index = an_index()
    assert lower(index.score(asked)) == [8]
    assert [lower(each) for each in index.score_many([asked, asked])] == [[8], [8]]
    assert lower(asyncio.run(index.score_async(asked))) == [8]
