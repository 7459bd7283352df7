"""A log of events in a real nats-server: what a relay writes, and what late replicas know."""

import contextlib
import shutil
from pathlib import Path

import httpx
import pytest
from kvbraid.events.digest import digests_under
from kvbraid.events.sequence import Settled
from kvbraid.fleet import FleetIndex
from kvbraid.fleet.index import IndexOptions
from kvbraid.ids import PodId, PodState
from kvbraid.service.feeds.rank_feed import PodFeed
from kvbraid.service.relay import RelaySubscriber
from kvbraid.service.shared.threads import on_thread

from tests.service.engines import LOOPBACK, consecutive_ports, open_publisher
from tests.service.serving import serving, until
from tests.service.stores import stored as blocks
from tests.shared.logs import (
    SECRET,
    STREAM,
    engines,
    jetstream,
    reading,
    relaying,
    stored,
    table,
    tell,
)
from tests.shared.replicas import CONFIG, NATS, Nats, comes, nats

pytestmark = pytest.mark.skipif(NATS is None, reason="needs nats-server")
ONE = ("gpt-oss-sim",)


def test_a_late_replica_answers_every_request_as_one_that_follows_the_engines(
    tmp_path: Path,
) -> None:
    with jetstream(tmp_path) as server, engines() as fleet, reading() as live:
        live.add(fleet)
        with relaying(table(server), fleet) as relay:
            fleet.serve(300)
            assert live.knows(fleet)
            assert relay.has(fleet.seqs())
            assert relay.counts["stored"] == sum(fleet.seqs().values()) + 4
            with reading(table(server)) as late:
                late.add(fleet, replay=False)  # The log alone.
                assert late.knows(fleet)
                answers = late.answers(fleet)
                assert len(answers) == 300
                assert answers == live.answers(fleet)
                assert {row[3] for rows in answers for row in rows} == {"exact"}
                fleet.serve(30)
                assert late.knows(fleet)
                assert live.knows(fleet)
                assert late.answers(fleet) == live.answers(fleet)


def test_a_server_that_is_killed_and_comes_back_costs_nothing(tmp_path: Path) -> None:
    with (
        jetstream(tmp_path) as server,
        engines() as fleet,
        relaying(table(server), fleet) as relay,
        reading(table(server)) as replica,
    ):
        replica.add(fleet, replay=False)
        fleet.serve(60)
        assert replica.knows(fleet)
        server.kill()
        fleet.serve(20)
        assert comes(lambda: replica.states() == {PodState.STALE})
        assert replica.log
        assert "no events come from the log EVENTS" in replica.log.problem
        assert "nothing goes into the log EVENTS" in relay.feed.writer.problem
        server.start()
        assert relay.has(fleet.seqs())
        assert replica.knows(fleet)
        assert relay.feed.writer.problem == ""
        assert stored(server)["messages"] == sum(fleet.seqs().values()) + len(fleet.models)


def test_a_server_that_comes_back_with_an_older_stream_gets_the_rest_again(tmp_path: Path) -> None:
    folder, older = tmp_path / "now", tmp_path / "older"
    with (
        jetstream(folder) as server,
        engines(models=ONE) as fleet,
        relaying(table(server), fleet) as relay,
        reading(table(server)) as replica,
    ):
        replica.add(fleet)
        fleet.serve(10)
        assert relay.has(fleet.seqs())
        server.kill()
        shutil.copytree(folder, older)
        server.start()
        fleet.serve(20)
        assert relay.has(fleet.seqs())
        assert replica.knows(fleet)
        server.kill()
        shutil.rmtree(folder)
        shutil.copytree(older, folder)
        server.start()
        fleet.serve(1)
        assert relay.has(fleet.seqs())
        assert replica.knows(fleet)
        with reading(table(server)) as late:
            late.add(fleet, replay=False)
            assert late.knows(fleet)
            assert late.answers(fleet) == replica.answers(fleet)


def test_a_relay_that_starts_again_goes_on_where_the_log_ends(tmp_path: Path) -> None:
    with jetstream(tmp_path) as server, engines(models=ONE) as fleet:
        with relaying(table(server), fleet) as relay:
            fleet.serve(10)
            assert relay.has(fleet.seqs())
        with reading(table(server)) as replica:
            replica.add(fleet, replay=False)
            assert replica.knows(fleet)
            fleet.serve(10)
            with relaying(table(server), fleet) as relay:
                assert relay.has(fleet.seqs())
                assert (relay.counts["duplicate"], relay.counts["published"] > 0) == (0, True)
                assert replica.knows(fleet)
                assert [row.restarts for row in replica.feed.status()] == [0]


@pytest.mark.parametrize("is_relayed", [True, False])
def test_an_engine_that_starts_again_is_known_anew(tmp_path: Path, *, is_relayed: bool) -> None:
    with (
        jetstream(tmp_path) as server,
        engines(models=ONE) as fleet,
        reading(table(server)) as replica,
    ):
        replica.add(fleet, replay=False)
        with contextlib.ExitStack() as stack:
            relay = stack.enter_context(relaying(table(server), fleet))
            fleet.serve(20)
            assert replica.knows(fleet)
            if not is_relayed:
                stack.close()
            fleet.restart(ONE[0])
            fleet.serve(5)
            if not is_relayed:
                relay = stack.enter_context(relaying(table(server), fleet))
            assert relay.has(fleet.seqs())
            assert replica.knows(fleet)
            with reading() as live:
                live.add(fleet)
                assert live.knows(fleet)
                assert replica.answers(fleet) == live.answers(fleet)
            with reading(table(server)) as late:  # The earlier process is not read at all.
                late.add(fleet, replay=False)
                assert late.knows(fleet)
                assert late.log
                assert late.log.counts["read"] == fleet.seqs()[ONE[0]] + 1


def test_what_is_published_twice_is_stored_once(tmp_path: Path) -> None:
    with (
        jetstream(tmp_path) as server,
        engines(models=ONE) as fleet,
        relaying(table(server), fleet) as first,
        relaying(table(server), fleet) as second,
    ):
        fleet.serve(20)
        assert first.has(fleet.seqs())
        assert second.has(fleet.seqs())
        assert stored(server)["messages"] == fleet.seqs()[ONE[0]] + 1
        assert first.counts["duplicate"] + second.counts["duplicate"] > 0


@pytest.mark.parametrize("replay", [True, False])
def test_what_the_log_has_lost_is_asked_of_the_engine_or_leaves_bounds(
    tmp_path: Path, *, replay: bool
) -> None:
    with (
        jetstream(tmp_path) as server,
        engines(models=ONE) as fleet,
        relaying(table(server), fleet) as relay,
    ):
        fleet.serve(30)
        assert relay.has(fleet.seqs())
        for lost in ("PURGE", {"seq": 4}), ("MSG.DELETE", {"seq": 9}):
            assert tell(server, f"$JS.API.STREAM.{lost[0]}.{STREAM}", lost[1])["success"]
        with reading(table(server)) as late:
            late.add(fleet, replay=replay)
            assert late.knows(fleet, PodState.EXACT if replay else PodState.DEGRADED)
            fleet.serve(3)
            assert late.knows(fleet, PodState.EXACT if replay else PodState.DEGRADED)


def test_a_tail_that_was_lost_is_asked_of_the_engine(tmp_path: Path) -> None:
    with jetstream(tmp_path) as server, engines(models=ONE) as fleet:
        with relaying(table(server), fleet) as relay:
            fleet.serve(10)
            assert relay.has(fleet.seqs())
        last = stored(server)["last_seq"]
        assert tell(server, f"$JS.API.STREAM.MSG.DELETE.{STREAM}", {"seq": last})["success"]
        fleet.serve(10)
        with reading(table(server)) as late:
            late.add(fleet)
            assert late.knows(fleet)


def test_a_stream_that_is_full_is_counted_and_goes_on_when_it_is_not(tmp_path: Path) -> None:
    with jetstream(tmp_path) as server, engines(models=ONE) as fleet:
        stream = {"name": STREAM, "subjects": ["kvbraid.default.events.>"], "discard": "new"}
        tell(server, f"$JS.API.STREAM.CREATE.{STREAM}", {**stream, "max_msgs": 5})
        with relaying(table(server), fleet) as relay, reading(table(server)) as replica:
            replica.add(fleet, replay=False)
            fleet.serve(10)
            assert comes(lambda: relay.counts["refused"] > 1)
            assert "maximum messages exceeded" in relay.feed.writer.problem
            assert stored(server)["messages"] == 5
            tell(server, f"$JS.API.STREAM.UPDATE.{STREAM}", {**stream, "max_msgs": 5000})
            assert relay.has(fleet.seqs())
            assert replica.knows(fleet)
            assert relay.feed.writer.problem == ""


def test_a_stream_whose_limit_is_reached_drops_its_oldest(tmp_path: Path) -> None:
    with (
        jetstream(tmp_path) as server,
        engines(models=ONE) as fleet,
        relaying(table(server, log_bytes=1 << 20), fleet) as relay,
    ):
        while stored(server)["first_seq"] < 2:
            fleet.serve(100)
            assert relay.has(fleet.seqs())
        assert stored(server)["bytes"] <= 1 << 20
        with reading(table(server)) as late:
            late.add(fleet, replay=False)
            assert late.knows(fleet, PodState.DEGRADED)


def test_a_question_that_a_newer_server_calls_completed_has_no_problem(tmp_path: Path) -> None:
    with (
        jetstream(tmp_path) as server,
        engines(models=ONE) as fleet,
        relaying(table(server), fleet) as relay,
        reading(table(server)) as late,
    ):
        late.add(fleet)
        fleet.serve(5)
        assert relay.has(fleet.seqs())
        assert late.knows(fleet)
        assert late.log
        [follow] = late.log._follows.values()
        late.log._take_status(follow, {"Status": "409", "Description": "Batch Completed"})
        assert not follow.problem
        assert follow.is_over
        assert not follow.is_over.is_set()


def test_messages_of_another_project_are_nobodys_batches(tmp_path: Path) -> None:
    with jetstream(tmp_path) as server, engines(models=ONE) as fleet:
        subject = f"kvbraid.default.events.{ONE[0]}.0"
        with relaying(table(server), fleet) as relay:
            fleet.serve(10)
            assert relay.has(fleet.seqs())
            for headers in None, {"Nats-Msg-Id": "their-own"}, {"Nats-Msg-Id": f"{ONE[0]}.0.x.1"}:
                assert tell(server, subject, b"hello", headers)["stream"] == STREAM
            tell(server, "kvbraid.default.events.nobody.0", b"hello")
            with reading(table(server)) as late:
                late.add(fleet, replay=False)
                assert late.knows(fleet)
                assert late.log
                assert late.log.counts["foreign"] == 3
                fleet.serve(10)
                assert late.knows(fleet)


def test_who_may_write_a_pods_subject_may_write_its_answers_and_raises_nothing(
    tmp_path: Path,
) -> None:
    with jetstream(tmp_path) as server, engines(models=ONE) as fleet:
        subject = f"kvbraid.default.events.{ONE[0]}.0"
        with relaying(table(server), fleet) as relay, reading(table(server)) as replica:
            replica.add(fleet)
            fleet.serve(5)
            assert relay.has(fleet.seqs())
            assert replica.knows(fleet)
            for number in range(20):  # Of two starts in turn, and no batch.
                told = f"{ONE[0]}.0.{number}-{number % 2:016x}.{number}"
                tell(server, subject, b"\xc1", {"Nats-Msg-Id": told})
            fleet.serve(5)
            assert comes(lambda: replica.feed.status()[0].restarts > 0)
            assert comes(lambda: not replica._is_amid)
            assert replica.feed.status()[0].failures == 0


def test_a_replica_that_has_saved_reads_what_came_since(tmp_path: Path) -> None:
    digests = digests_under(SECRET)
    with jetstream(tmp_path) as server, engines(models=ONE) as fleet:
        pod, saved = PodId(ONE[0]), list[tuple[bytes, list[Settled]]]()
        with relaying(table(server), fleet) as relay:
            with reading(table(server), digests=digests) as replica:
                replica.add(fleet, replay=False)
                fleet.serve(40)
                assert replica.knows(fleet)
                assert replica.feed.at_rest(
                    pod, lambda settled: saved.append((replica.index.save(pod), list(settled)))
                )
            fleet.serve(5)
            assert relay.has(fleet.seqs())
            with reading(table(server), digests=digests) as warm:
                warm.add(fleet, replay=False, saved=saved[0])
                assert warm.knows(fleet)
                assert warm.log
                since = fleet.seqs()[pod] - saved[0][1][0].last
                assert warm.log.counts["read"] == since + 1  # And the one that proves it.
                with reading(table(server)) as cold:
                    cold.add(fleet, replay=False)
                    assert cold.knows(fleet)
                    assert cold.answers(fleet) == warm.answers(fleet)


def test_a_server_that_comes_late_leaves_pods_stale_until_then(tmp_path: Path) -> None:
    server = Nats("--jetstream", "--store_dir", str(tmp_path))
    try:
        with engines(models=ONE) as fleet, reading(table(server)) as replica:
            replica.add(fleet, replay=False)
            with relaying(table(server), fleet) as relay:
                fleet.serve(10)
                assert replica.states() == {PodState.STALE}
                server.start()
                assert relay.has(fleet.seqs())
                assert replica.knows(fleet)
    finally:
        server.kill()


CONFIG_OF_BOTH = """
[server]
ready_after_s = 0
[shared]
url = "{url}"
log = "KVBRAID"
user = "replica"
password_file = "load"
relay_user = "relay"
relay_password_file = "relay"
replica = "a"
[[pods]]
id = "one"
model = "m"
endpoint = "{endpoint}"
replay_endpoint = "{replay_endpoint}"
[[pods.topology.groups]]
kind = "full_attention"
block_size = 4
"""


def test_the_configuration_of_deploy_lets_a_relay_write_and_a_replica_read(tmp_path: Path) -> None:
    secrets = {"KVBRAID_LOAD_PASSWORD": "a-secret", "KVBRAID_RELAY_PASSWORD": "another"}
    (tmp_path / "load").write_text("a-secret\n")
    (tmp_path / "relay").write_text("another\n")
    with (
        nats("--config", str(CONFIG), env=secrets, cwd=tmp_path) as server,
        open_publisher(replay_endpoint=LOOPBACK) as engine,
    ):
        config = tmp_path / "fleet.toml"
        config.write_text(
            CONFIG_OF_BOTH.format(
                url=server.url, endpoint=engine.endpoint, replay_endpoint=engine.replay_endpoint
            )
        )
        engine.publish(blocks(1, 1))
        given = ("--config", str(config))
        with serving(*given, name="relay") as (_, relay), serving(*given) as (_, replica):

            def row(url: str) -> tuple[object, ...]:
                answer = httpx.get(f"{url}/v1/pods").json()["pods"][0]
                return answer["state"], answer["last_seq"], answer["messages"]

            def says(url: str, line: str) -> bool:
                return f"\n{line}\n" in httpx.get(f"{url}/metrics").text

            assert until(lambda: row(relay), lambda it: it[1] == 0)[0] == "degraded"
            assert until(lambda: row(replica), lambda it: it[0] == "exact") == ("exact", 0, 1)
            engine.publish(blocks(2, 1))
            assert comes(lambda: says(relay, 'kvbraid_log_batches_total{what="stored"} 2.0'))
            assert comes(lambda: says(replica, 'kvbraid_log_batches_total{what="read"} 2.0'))
            assert says(replica, 'kvbraid_log_server_total{what="refused"} 0.0')
            for url in relay, replica:
                assert httpx.get(f"{url}/readyz").json() == {"status": "ready"}
            server.kill()
            for url, told in (relay, "nothing goes into"), (replica, "no events come from"):
                assert comes(lambda: says(url, "kvbraid_log_ok 0.0"))  # noqa: B023 - at once
                answer = httpx.get(f"{url}/readyz")
                assert (answer.status_code, told in answer.json()["detail"]) == (200, True)


def test_a_rank_without_a_log_leaves_the_start_of_another_one_to_its_engine(
    tmp_path: Path,
) -> None:
    port, replay_port = consecutive_ports(2), consecutive_ports(4) + 2
    feed = PodFeed(f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{replay_port}", dp_size=2)
    with jetstream(tmp_path) as server:
        ids = []
        for life in range(2):
            with open_publisher(
                f"tcp://127.0.0.1:{port + 1}", replay_endpoint=f"tcp://127.0.0.1:{replay_port + 1}"
            ) as engine:
                for number in range(3 + life):
                    engine.publish(blocks(1 + 100 * life + number, 1))
                index = FleetIndex(IndexOptions())
                relay = RelaySubscriber(index, table(server))
                with on_thread("relay", relay.writer.run, lambda: None), relay:
                    assert relay.writer.is_there(5)
                    index.register(PodId("p"), model="m", dp_size=2)
                    relay.add(PodId("p"), feed)
                    assert comes(lambda: relay.writer.counts["stored"] == 3 + life)  # noqa: B023
                    assert relay.writer.counts["duplicate"] == 0
                    ids.append(relay.writer._ranks[PodId("p"), 1].last)
        first, second = ids
        assert first
        assert second
        assert (first.start != second.start, first.seq, second.seq) == (True, 2, 3)
