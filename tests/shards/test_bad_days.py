"""Shards that are down, hang, lie or refuse: their pods are bounds, and nothing is an error."""

import logging
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.fleet import FleetIndex, Request
from kvbraid.fleet.answer import Explanation
from kvbraid.ids import PodId, PodState
from kvbraid.service.answers import PodRow, PodsAnswer
from kvbraid.service.config import PodConfig
from kvbraid.service.errors import RefusalError
from kvbraid.service.http.app import Application
from kvbraid.service.keys import KeyEntry, digest
from kvbraid.service.registry import Service
from kvbraid.service.replicas import SharedTable
from kvbraid.service.requests import ReportBody
from kvbraid.service.sharding import shard_of
from kvbraid.service.shards.asking import QUESTION, ShardAsker
from kvbraid.service.shards.merging import (
    merge_pods,
    read_pods,
    read_reasons,
    unknown_reasons,
)
from kvbraid.service.shards.messages import (
    ShardQuestion,
    WrongAnswerError,
    promise_question,
    prompt_of,
    read_answer,
    read_roster,
    score_question,
)

from tests.service.in_process import TestClient
from tests.service.serving import until
from tests.shards.fleets import OF, Fleet, answering, fleet, stored_prompt

PROMPT = Request(model="m", token_ids=range(160))
PODS = [f"pod-{number}" for number in range(9)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("kvbraid.shards")
    logger.disabled = True
    yield
    logger.disabled = False


def held(made: Fleet) -> None:
    for pod in PODS:
        made.register(pod)
        made.apply(pod, stored_prompt(range(160)))


def bounds(made: Fleet) -> set[int]:
    """The shards whose pods are bounds; those of all other shards are what they should be."""
    columns = made.front.score(PROMPT, with_seen=True).columns()
    assert len(columns.ranks) == len(PODS) + 1
    found = set()
    for row, (pod, _) in enumerate(columns.ranks):
        if pod == "some-pod":
            continue
        numbers = (columns.lower[row], columns.upper[row], columns.expected[row])
        if columns.states[row] is PodState.DEGRADED:
            assert numbers == (0, 160, 0)
            found.add(shard_of(pod, OF))
        else:
            assert numbers == (144, 144, 144)
    told = {row["pod"]: row for row in msgspec.json.decode(made.front.ask_rows(PROMPT))["pods"]}
    for name in PODS:
        is_bound = shard_of(PodId(name), OF) in found
        assert told[name]["exactness"] == ("bound" if is_bound else "exact")
    return found


def test_a_shard_that_dies_between_two_answers_makes_bounds_and_comes_back() -> None:
    with fleet() as made:
        held(made)
        assert bounds(made) == set()
        made.servers[2].stop()
        assert bounds(made) == {2}
        assert "shard 2/3" in made.front.problem
        decision = made.service.picking.choose("r", PROMPT)
        assert shard_of(decision.rank[0], OF) != 2
        made.servers[2].start()
        assert until(lambda: made.front.problem, lambda told: not told) == ""
        assert bounds(made) == set()


def test_a_shard_that_has_started_anew_knows_its_pods_by_their_events_alone() -> None:
    with fleet() as made:
        held(made)
        made.servers[2].stop()
        made.servers[2].new_index()
        made.servers[2].start()
        assert until(lambda: "refuses: no pod serves" in told(made), bool)
        assert bounds(made) == {2}
        made.servers[2].index.register(PodId("some-pod"), model="m")
        assert "lacks" in told(made)
        assert bounds(made) == {2}


def told(made: Fleet) -> str:
    made.front.score(PROMPT).columns()
    return made.front.problem


def test_all_shards_may_be_down() -> None:
    with fleet() as made:
        held(made)
        for server in made.servers.values():
            server.stop()
        assert bounds(made) == {1, 2, 3}
        assert made.service.picking.choose("r", PROMPT).rank[0] in made.service.pods
        for server in made.servers.values():
            server.start()


def test_a_shard_that_hangs_is_waited_for_once() -> None:
    with fleet(answer_s=0.2) as made:
        held(made)
        link = made.front.links[3]
        with made.servers[3].hanging():
            assert bounds(made) == {3}
            assert link.counts["late"] == 1
            assert "is late" in made.front.problem
            for _ in range(5):
                assert bounds(made) == {3}
            assert link.counts["late"] == 1
        assert until(lambda: made.front.problem, lambda told: not told) == ""
        assert bounds(made) == set()
        assert link.counts["late"] == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xc1",
        b"no answer",
        msgspec.msgpack.encode([2, [], b"", b"", None]),
        msgspec.msgpack.encode([1, [["pod-0", 0]], b"\0", b"\xff" * 28, None]),
        msgspec.msgpack.encode([1, [["somebody", 0]], b"\0", bytes(28), None]),
    ],
)
def test_a_shard_that_lies_is_believed_about_nobody(answer: bytes) -> None:
    with fleet() as made:
        held(made)

        def lie(question: ShardQuestion) -> bytes:
            del question
            return answer

        with answering(made.servers[1], lie):
            columns = made.front.score(PROMPT).columns()
            assert {
                shard_of(pod, OF)
                for (pod, _), state in zip(columns.ranks, columns.states, strict=True)
                if state is PodState.DEGRADED and pod != "some-pod"
            } == {1}
            assert "shard 1/3" in made.front.problem
        assert bounds(made) == set()


@pytest.mark.parametrize("number", [1, 3])
def test_a_shard_tells_nothing_of_pods_of_another_shard(number: int) -> None:
    with fleet() as made:
        held(made)
        for pod in made.pods_of(2):
            made.servers[number].index.register(PodId(pod), model="m")
        assert bounds(made) == set()
        assert len(made.front.score(PROMPT).columns().ranks) == len(PODS) + 1


@pytest.mark.parametrize(
    ("given", "is_let_in"), [("the key", True), ("another", False), (None, False)]
)
def test_a_front_needs_a_key_where_shards_have_one(given: str | None, is_let_in: bool) -> None:
    entry = KeyEntry(name="front", sha256=digest(b"the key").hex(), rights=["explain", "route"])
    with fleet(key=given, keys=[entry]) as made:
        held(made)
        assert bounds(made) == (set() if is_let_in else {1, 2, 3})
        assert ("refuses" in made.front.problem) is not is_let_in


def test_promises_are_told_withdrawn_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbraid.service.shards.answering.MOST_PROMISES", 2)
    with fleet() as made:
        held(made)
        index, pod = made.shard("pod-0").index, PodId("pod-0")
        other = Request(model="m", token_ids=range(1000, 1160))
        scores = made.front.score(other)
        numbers = [scores.promise(pod, junction=at) for at in range(3)]
        assert until(index.num_promised, lambda num: num == 2) == 2
        assert all(map(made.front.withdraw, numbers))
        assert until(index.num_promised, lambda num: num == 0) == 0
        assert not made.front.withdraw(numbers[0])
        made.shard("pod-0").service.questions.check_integrity()


@contextmanager
def asking(made: Fleet, clock: Callable[[], float] = lambda: 0.0) -> Iterator[ShardAsker]:
    """Asks the shards of a fleet, without a thread that looks after it, by a clock that stands."""
    table = SharedTable(shards=[server.url for server in made.servers.values()])
    with closing(ShardAsker(table, None, clock)) as asker:
        until(asker.problems, lambda problems: not problems)
        yield asker


def refuse(body: bytes) -> None:
    raise InvalidValueError(f"{len(body)} bytes")


QUESTIONS = dict.fromkeys(
    (1, 2, 3), score_question(prompt_of(PROMPT), PROMPT, None, with_seen=False)
)


def test_what_is_told_while_others_are_asked_goes_out_although_that_raises() -> None:
    pod, prompt = PodId("pod-0"), prompt_of(PROMPT)
    told = promise_question(prompt, "run:1", (pod, 0), 0, sparse_windows=None)
    number = shard_of(pod, OF)
    with fleet() as made, asking(made) as asker:
        held(made)

        def tell_and_refuse(body: bytes) -> None:
            asker.tell(number, told)
            refuse(body)

        with pytest.raises(InvalidValueError):
            asker.ask(QUESTION, {number: QUESTIONS[number]}, 160, tell_and_refuse)
        assert until(made.shard("pod-0").index.num_promised, bool) == 1


def test_what_comes_while_another_answer_is_read_is_in_time() -> None:
    now = [0.0]
    with fleet() as made, asking(made, lambda: now[0]) as asker:
        held(made)

        def read(body: bytes) -> int:
            for link in asker.links.values():
                if link.is_waited_for:
                    select.select([link], [], [], 10)
            now[0] = 1.0  # The shards had 50 ms.
            return len(body)

        assert asker.ask(QUESTION, QUESTIONS, 160, read).keys() == {1, 2, 3}


def test_an_answer_that_comes_after_an_error_is_late() -> None:
    with fleet() as made, asking(made) as asker:
        held(made)
        with made.servers[2].hanging():
            with pytest.raises(InvalidValueError):
                asker.ask(QUESTION, QUESTIONS, 160, refuse)
            late = until(asker.problems, lambda problems: len(problems) == 1)
            assert [problem.partition(" (")[0] for problem in late] == ["shard 2/3"]
            assert asker.ask(QUESTION, QUESTIONS, 160, len).keys() == {1, 3}
        until(asker.problems, lambda problems: not problems)
        assert asker.ask(QUESTION, QUESTIONS, 160, len).keys() == {1, 2, 3}


def test_a_promise_of_a_dead_front_ends_by_age() -> None:
    with fleet() as made:
        held(made)
        now = [0.0]
        server = made.shard("pod-0")
        server.service.questions._clock = lambda: now[0]
        other = Request(model="m", token_ids=range(1000, 1160))
        made.front.score(other).promise(PodId("pod-0"))
        assert until(server.index.num_promised, bool) == 1
        now[0] = 1000.0
        made.front.score(Request(model="m", token_ids=range(3000, 3160))).promise(PodId("pod-0"))
        assert until(lambda: len(server.service.questions._promised), lambda num: num == 1) == 1
        assert server.index.num_promised() == 1


def test_many_threads_may_ask_at_once() -> None:
    with fleet() as made:
        held(made)
        found: list[Any] = []

        def ask() -> None:
            found.extend(bounds(made) for _ in range(20))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [set()] * 120


def test_a_long_prompt_goes_both_ways() -> None:
    with fleet() as made:
        held(made)
        long = Request(model="m", token_ids=range(400_000))
        assert list(made.front.score(long).columns().lower) == list(
            made.whole.score(long).columns().lower
        )


def test_a_put_for_another_shard_says_whose_pod_it_is() -> None:
    with fleet() as made:
        server = made.servers[1]
        theirs = next(pod for pod in PODS if shard_of(PodId(pod), OF) == 2)
        with pytest.raises(RefusalError, match=f"shard 2/3 indexes pod '{theirs}'") as refused:
            server.service.put(PodId(theirs), PodConfig(model="m", endpoint=None))
        assert (refused.value.code, refused.value.status) == ("other_shard", 421)
        ours = next(pod for pod in PODS if shard_of(PodId(pod), OF) == 1)
        wanted = {PodId(pod): PodConfig(model="m", endpoint=None) for pod in (ours, theirs)}
        server.service.change(wanted, ())
        assert set(server.service.pods) & {ours, theirs} == {ours}


def test_a_front_answers_every_route_or_names_the_shard_that_does() -> None:
    with fleet() as made:
        held(made)
        client = TestClient(Application(made.service))
        body = {"model": "m", "token_ids": list(range(160))}
        whole = msgspec.json.decode(made.whole.score(PROMPT).to_json())
        assert client.post("/v1/score", json=body).json() == whole
        assert client.post("/v1/pick", json=body).json()["lower"] == 144
        why = {row.pod: row.reason for row in made.whole.explain(PROMPT).rows}
        for path in ("/v1/explain", "/v1/strips"):
            rows = client.post(path, json=body).json()["pods"]
            assert {row["pod"]: row["reason"] for row in rows} == why
        noted = client.post("/v1/routed", json=body | {"pod": "pod-0", "produced": [1]})
        assert noted.json() == {"pod": "pod-0", "status": "noted"}
        refused = client.get("/v1/pods/pod-0/snapshot").json()["error"]
        assert refused["code"] == "other_shard"
        assert f"{made.shard('pod-0').url}) indexes pod 'pod-0'" in refused["message"]
        assert client.post("/v1/shard", content=b"").json()["error"]["code"] == "other_shard"
        rows = client.get("/v1/pods").json()["pods"]
        assert {row["state"] for row in rows} == {"exact"}
        assert client.get("/readyz").json() == {"status": "ready"}
        made.servers[1].stop()
        assert "shard 1/3" in until(lambda: client.get("/readyz").json().get("detail", ""), bool)
        text = client.get("/metrics").text
        assert 'kvbraid_shard_up{shard="1"} 0.0' in text
        assert 'kvbraid_shard_up{shard="2"} 1.0' in text
        assert 'kvbraid_shard_questions_total{outcome="answered",shard="2"}' in text
        assert 'kvbraid_shard_questions_total{outcome="malformed",shard="2"} 0.0' in text
        made.servers[1].start()


def pod_rows(service: Service) -> dict[str, Any]:
    answer = TestClient(Application(service)).get("/v1/pods").json()
    assert answer["memory_bytes"] == service.pods_answer().memory_bytes > 0
    return {row["pod"]: row for row in answer["pods"]}


def test_a_front_shows_what_shards_say_of_their_pods_and_which_are_silent() -> None:
    with fleet() as made:
        held(made)
        theirs = {
            pod: row
            for server in made.servers.values()
            for pod, row in pod_rows(server.service).items()
        }
        assert pod_rows(made.service) == theirs
        assert {theirs[pod]["num_blocks"] for pod in PODS} == {10}
        own = made.service.pods_answer()
        assert own.memory_bytes == sum(
            server.index.memory_bytes() for server in made.servers.values()
        )
        made.servers[3].index.remove(PodId(lost := min(made.pods_of(3))))
        made.servers[2].stop()
        until(lambda: "is down" in made.front.problem, bool)
        rows = pod_rows(made.service)
        for pod, row in rows.items():
            if pod not in made.pods_of(2) | {lost}:
                assert row["groups"] == theirs[pod]["groups"]
                continue
            why = "does not have it yet" if pod == lost else "is down"
            assert f"shard {shard_of(PodId(pod), OF)}/3" in row["reason"]
            assert why in row["reason"]
            assert (row["state"], row["num_blocks"], row["groups"]) == ("degraded", 0, [])
        made.servers[2].start()


def pods_answer(pod: str, **fields: object) -> PodsAnswer:
    row = {
        "pod": pod, "dp_rank": 0, "model": "m", "state": "exact", "reason": "", "messages": 0,
        "groups": [], "placed": {}, "refused": {}, "hash_function": "", "num_blocks": 7,
        "memory_bytes": 0, "last_seq": None, "endpoint": None, "replay_endpoint": None,
        "bind": None,
    }  # fmt: skip
    answer = {"pods": [row | fields], "now_s": 100.01, "memory_bytes": 5}
    return read_pods(msgspec.json.encode(answer))


def test_counts_are_those_of_a_pods_own_shard_with_times_of_the_front() -> None:
    own = msgspec.structs.replace(pods_answer("a", running=2, url="http://a"), now_s=20.0)
    problem = {"event": "lost", "text": "", "at_s": 90.0}
    told = pods_answer("a", applied_s=99.0, last_seq=3, running=1, model="n", problem=problem)

    def merged(number: int) -> PodRow:
        (row,) = merge_pods(own, {number: told}, lambda _: 1, lambda number: f"silent: {number}")
        return row

    row = merged(1)
    assert (row.num_blocks, row.last_seq, row.state_s, row.applied_s) == (7, 3, None, 19.0)
    assert row.problem is not None
    assert (row.problem.at_s, row.running, row.url, row.model) == (10.0, 2, "http://a", "m")
    assert merged(2) == msgspec.structs.replace(
        own.pods[0], state=PodState.DEGRADED, reason="silent: 1"
    )


def test_what_a_shard_does_not_explain_or_note_is_said() -> None:
    with fleet() as made:
        held(made)
        client = TestClient(Application(made.service))
        body = {"model": "m", "token_ids": list(range(160))}
        pod = next(iter(made.pods_of(2)))
        routed = body | {"pod": pod, "produced": [1]}
        made.shard(pod).index.remove(PodId(pod))
        made.shard(pod).service._set_pods({})
        (row,) = made.front.explain(Request(model="m", token_ids=range(160), pods=[pod])).rows
        assert (row.state, row.lower, row.upper, row.groups) == (PodState.DEGRADED, 0, 160, [])
        assert row.reason.startswith(
            f"shard 2/3 ({made.servers[2].url}) refuses: no registered pod"
        )
        refused = client.post("/v1/routed", json=routed)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shard_silent")
        made.servers[2].stop()
        drawn = {row["pod"]: row for row in client.post("/v1/strips", json=body).json()["pods"]}
        assert {name for name, row in drawn.items() if "is down" in row["reason"]} == made.pods_of(
            2
        )
        assert drawn[pod]["upper"] == 160
        assert "is down" in client.post("/v1/routed", json=routed).json()["error"]["message"]
        made.servers[2].start()


@pytest.mark.parametrize(
    "fields",
    [{"lower": 9, "upper": 8}, {"upper": 161}, {"limiting": {"group": 0, "boundary": 1 << 60}}],
)
def test_a_shard_is_not_believed_what_cannot_be(fields: dict[str, object]) -> None:
    row = msgspec.to_builtins(unknown_reasons((PodId("a"), 0), 160, ""))
    assert read_reasons(160, told_rows(row))
    with pytest.raises(WrongAnswerError, match="rank 0 of a"):
        read_reasons(160, told_rows(row | fields))
    group = {"group": 0, "kind": "full_attention", "window": None, "held": [], "accepted": None}
    with pytest.raises(WrongAnswerError):
        read_reasons(160, told_rows(row | {"groups": [group | {"block_size": 0}]}))


def told_rows(*rows: dict[str, object]) -> bytes:
    return msgspec.json.encode({"model": "m", "num_tokens": 160, "pods": rows})


def test_no_choice_waits_for_an_explanation() -> None:
    with fleet() as made:
        held(made)
        begun, goes_on, explain = threading.Event(), threading.Event(), FleetIndex.explain
        server = made.servers[1]

        def waits(request: Request) -> Explanation:
            begun.set()
            assert goes_on.wait(20)
            return explain(server.index, request)

        server.index.explain = waits  # type: ignore[method-assign]
        asking = threading.Thread(target=made.front.explain, args=(PROMPT,))
        asking.start()
        assert begun.wait(20)
        assert list(made.front.score(PROMPT).columns().lower).count(144) == len(PODS)
        assert asking.is_alive()
        goes_on.set()
        asking.join()


def test_no_report_waits_for_the_shards_of_a_choice() -> None:
    with fleet() as made:
        held(made)
        picking = made.service.picking
        for name in ("ends", "fails"):
            picking.choose(name, Request(model="m", token_ids=range(1000, 2000)))
        with made.servers[3].hanging():
            choosing = threading.Thread(target=picking.choose, args=("waits", PROMPT))
            choosing.start()
            assert until(lambda: made.front.links[3].is_waited_for, bool)
            picking.report(ReportBody(pick="ends", event="first_token"))
            picking.report(ReportBody(pick="ends", event="end"))
            picking.report(ReportBody(pick="fails", event="failed"))
            assert picking.num_booked() == 0
            assert choosing.is_alive()
        choosing.join()
        assert picking.num_booked() == 1
        num = made.front.num_promised()
        assert until(lambda: num_promised(made), lambda found: found == num) == num


def num_promised(made: Fleet) -> int:
    """What all shards count as on its way."""
    return sum(server.index.num_promised() for server in made.servers.values())


def test_a_shard_refuses_what_is_no_question() -> None:
    with fleet() as made:
        held(made)
        client = TestClient(Application(made.servers[1].service))
        for body in (b"", b"\xc1", b"\x91" * 5000, bytes(100)):
            assert (
                client.post("/v1/shard", content=body).json()["error"]["code"] == "malformed_body"
            )
        narrow = made.servers[1].service.limits
        made.servers[1].service.limits = msgspec.structs.replace(narrow, tokens=10)
        question = msgspec.msgpack.encode(
            ["score", 1, "m", bytes(400), 4, None, None, None, None, None, None, False]
        )
        assert client.post("/v1/shard", content=question).status_code == 413
        made.servers[1].service.limits = narrow
        body = client.post("/v1/shard", content=question).content
        assert {
            pod for pod, _ in read_roster(read_answer(100, body).roster).ranks
        } >= made.pods_of(1)
