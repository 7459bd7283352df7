"""What fronts ask and shards answer: golden bytes, both ways, and all other bytes are refused."""

from array import array
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kvbraid.fleet import FleetIndex, Request
from kvbraid.fleet.answer import Seen
from kvbraid.hashing import MediaItem
from kvbraid.ids import PodId, PodState
from kvbraid.service.shards.answering import DONE, Questions
from kvbraid.service.shards.link import MOST_BYTES
from kvbraid.service.shards.merging import Asked, merge
from kvbraid.service.shards.messages import (
    NUMBERS,
    STATES,
    PromiseQuestion,
    ScoreQuestion,
    ShardRows,
    WithdrawQuestion,
    WrongAnswerError,
    answer,
    are_at_most,
    numbers_of,
    promise_question,
    prompt_of,
    read_answer,
    read_question,
    read_roster,
    score_question,
    withdraw_question,
)

from tests.shards.fleets import FULL, stored_prompt

REQUEST = Request(
    model="m",
    token_ids=array("I", [1, 258]),
    lora="l",
    cache_salt="s",
    extra_key="k",
    extra_keys=[MediaItem("hash", 0, 1)],
    tiers=["gpu"],
)
PROMPT = b"\x01\xa1m\xc4\x08\x01\0\0\0\x02\x01\0\0\x04\xa1l\xa1s\xa1k\x91\x93\xa4hash\x00\x01"
SCORE = b"\x9c\xa5score" + PROMPT + b"\x91\xa3gpu\x91\xa1p\xc3"
PROMISE = b"\x9e\xa7promise" + PROMPT + b"\xa5run:1\xa1p\x02\x10\xc2"
WITHDRAW = b"\x93\xa8withdraw\x01\x92\xa5run:1\xa5run:2"
NONE = b"\0\0\0\0"
BLOCK = b"\x10\0\0\0"
ANSWER = (
    b"\x95\x01\x92\x92\xa1a\x00\x92\xa1b\x00\xc4\x02\x00\x03\xc4\x38"
    + (7 * BLOCK)
    + (NONE + BLOCK + NONE + NONE + BLOCK + NONE + NONE)
    + b"\x93\x10\x00\x00"
)
"""Of a prompt of 17 tokens: one pod holds a block of 16, and of another one nothing is known."""


def asked() -> list[bytes]:
    prompt = prompt_of(REQUEST)
    return [
        score_question(prompt, REQUEST, ["p"], with_seen=True),
        promise_question(prompt, "run:1", (PodId("p"), 2), 16, sparse_windows=False),
        withdraw_question(["run:1", "run:2"]),
    ]


def test_the_bytes_of_questions_are_those_of_version_1() -> None:
    assert asked() == [SCORE, PROMISE, WITHDRAW]


def test_questions_come_back() -> None:
    score, promise, withdraw = map(read_question, asked())
    assert isinstance(score, ScoreQuestion)
    back = score.request(score.tiers, score.pods)
    assert list(back.token_ids) == [1, 258]
    assert (back.lora, back.cache_salt, back.extra_key) == ("l", "s", "k")
    assert (back.extra_keys, back.tiers, back.pods) == (REQUEST.extra_keys, ["gpu"], ["p"])
    assert isinstance(promise, PromiseQuestion)
    assert (promise.pod, promise.dp_rank, promise.junction) == ("p", 2, 16)
    assert withdraw == WithdrawQuestion(version=1, promises=["run:1", "run:2"])


def scored() -> bytes:
    index = FleetIndex()
    for pod, state in (("a", PodState.EXACT), ("b", PodState.STALE)):
        index.register(PodId(pod), model="m", topology=FULL)
        index.set_state(PodId(pod), state)
    index.apply(PodId("a"), stored_prompt(range(16)))
    question = score_question(
        prompt_of(request := Request(model="m", token_ids=range(17))),
        request,
        None,
        with_seen=True,
    )
    return Questions(index).answer(read_question(question))


def test_the_bytes_of_an_answer_are_those_of_version_1() -> None:
    assert scored() == ANSWER


def columns_of(told: ShardRows) -> dict[str, list[int]]:
    numbers = numbers_of(told.rows).tolist()
    return {name: numbers[at :: len(NUMBERS)] for at, name in enumerate(NUMBERS)}


_Number = st.one_of(st.integers(0, 3), st.integers(0, (1 << 32) - 1))
_Limit = st.one_of(st.integers(0, 3), st.integers(0, (1 << 31) - 1))


@given(st.lists(st.tuples(_Number, _Limit)))
@example([(0, 1), (1, 0)])
@example([((1 << 32) - 1, (1 << 31) - 1)])
def test_all_numbers_are_compared_at_once_as_one_by_one(pairs: list[tuple[int, int]]) -> None:
    numbers, limits = (
        sum(pair[side] << 32 * place for place, pair in enumerate(pairs)) for side in (0, 1)
    )
    ones = int.from_bytes(b"\1\0\0\0" * len(pairs), "little")
    at_once = are_at_most(numbers, limits, ones)
    assert at_once == all(number <= limit for number, limit in pairs)


def test_an_answer_comes_back() -> None:
    told = read_answer(17, ANSWER)
    assert read_roster(told.roster).ranks == (("a", 0), ("b", 0))
    assert told.states == (PodState.EXACT, PodState.STALE)
    numbers = columns_of(told)
    possible = {name for name, column in numbers.items() if column == [16, 16]}
    assert possible == {"upper", "soon"}
    assert all(numbers[name] == [16, 0] for name in numbers.keys() - possible)
    assert told.seen == Seen(16, 0, 0)
    assert read_question(WITHDRAW).num_tokens == 0
    assert msgspec.msgpack.encode([1]) == DONE
    assert set(STATES) == set(PodState)


@pytest.mark.parametrize(
    "ids", [[], [1, 2], range(3), [1 << 63], array("Q", [5]), array("I", [7])]
)
def test_ids_of_any_kind_come_back(ids: Sequence[int]) -> None:
    request = Request(model="m", token_ids=ids)
    question = read_question(score_question(prompt_of(request), request, None, with_seen=False))
    assert isinstance(question, ScoreQuestion)
    assert list(question.request().token_ids) == list(ids)
    assert question.num_tokens == len(ids)


QUESTION = msgspec.msgpack.decode(SCORE)
TOLD = msgspec.msgpack.decode(ANSWER)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, "other"), (1, 2), (2, 1), (2, "m" * 513), (3, b"\1\2\3"), (3, [1, 2]), (4, 5), (4, 2),
        (5, 1), (8, [["hash", -1, 1]]), (9, ["moon"]), (10, [""]), (10, ["p" * 129]), (11, 1),
    ],
)  # fmt: skip
def test_another_question_is_refused(place: int, value: object) -> None:
    with pytest.raises(WrongAnswerError):
        read_question(msgspec.msgpack.encode([*QUESTION[:place], value, *QUESTION[place + 1 :]]))
    for cut in (QUESTION[:-1], [*QUESTION, 1]):
        with pytest.raises(WrongAnswerError):
            read_question(msgspec.msgpack.encode(cut))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 2), (1, [["a", 0]]), (1, [["a", 0], ["a", 0]]), (1, [["a", 0], ["", 0]]), (1, "ab"),
        (2, b"\0"), (2, b"\0\4"), (3, TOLD[3][:28]), (3, TOLD[3][:-1]), (3, [TOLD[3]]),
        (3, TOLD[3][:-4] + b"\x12\0\0\0"), (3, TOLD[3][:-1] + b"\xff"),
        (3, b"\x11" + TOLD[3][1:]), (3, TOLD[3][:28] + b"\x11" + TOLD[3][29:]),
        (4, [-1, 0, 0]), (4, [1]),
    ],
)  # fmt: skip
def test_another_answer_is_refused(place: int, value: object) -> None:
    with pytest.raises(WrongAnswerError):
        read_answer(17, msgspec.msgpack.encode([*TOLD[:place], value, *TOLD[place + 1 :]]))


def test_more_withdrawals_than_fit_are_refused() -> None:
    assert read_question(withdraw_question(["p"] * 4096))
    with pytest.raises(WrongAnswerError):
        read_question(withdraw_question(["p"] * 4097))
    assert MOST_BYTES < 1 << 30


@given(st.binary(max_size=120) | st.builds(bytes.__add__, st.just(SCORE[:20]), st.binary()))
@example(b"\x91" * 5000)
@example(b"\x9c\xa5score\x01\xa2\xff\xff")
def test_any_bytes_are_a_question_or_refused(body: bytes) -> None:
    with suppress(WrongAnswerError):
        assert read_question(body).is_sound


@given(st.integers(0, len(ANSWER) - 1), st.binary(max_size=4), st.integers(0, 40))
def test_any_change_of_an_answer_is_read_or_refused(at: int, put: bytes, num_tokens: int) -> None:
    with suppress(WrongAnswerError):
        told = read_answer(num_tokens, ANSWER[:at] + put + ANSWER[at + len(put) :])
        merged = merge(Asked({1: {PodId("a"): 2}, 2: {PodId("c"): 1}}), {1: told}, num_tokens)
        columns = merged.columns
        assert {("a", 0), ("a", 1), ("c", 0)} <= set(columns.ranks)
        for name in NUMBERS:
            assert len(getattr(columns, name)) == len(columns.ranks)
            assert all(0 <= number <= num_tokens for number in getattr(columns, name))


def test_an_answer_of_an_index_is_that_of_its_columns() -> None:
    index = FleetIndex()
    index.register(PodId("a"), model="m", topology=FULL)
    scores = index.score(Request(model="m", token_ids=range(40)))
    told = read_answer(40, answer(scores))
    assert columns_of(told) == {name: list(getattr(scores.columns(), name)) for name in NUMBERS}
    assert told.seen is None
