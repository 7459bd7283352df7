"""Replicas through a real nats-server, and what becomes of their choices on bad days."""

import signal
from pathlib import Path

import pytest

from tests.shared.replicas import CONFIG, NATS, PODS, Nats, Replica, comes, nats, replicas

pytestmark = pytest.mark.skipif(NATS is None, reason="needs nats-server")
PASSWORD = {"KVBRAID_LOAD_PASSWORD": "a-secret", "KVBRAID_RELAY_PASSWORD": "b"}


def test_two_replicas_know_what_the_other_has_booked() -> None:
    with nats() as server:
        a, b = Replica(server.url, "a"), Replica(server.url, "b")
        with replicas(a, b):
            assert comes(lambda: a.num_others == b.num_others == 1)
            for _ in range(3):
                a.choose(6400)
            assert comes(lambda: b.running == 3)
            assert comes(lambda: a.running == 3)  # Its own, and nothing of them twice.
            decision = b.choose(6400)
            [terms] = [t for t in decision.terms() if t.wait + t.others == max(decision.view.wait)]
            assert terms.wait == 0 < terms.others
            assert a.problem == b.problem == ""
        assert comes(lambda: b.num_others == 0)


def test_a_prompt_that_another_replica_has_sent_counts_as_on_its_way() -> None:
    with nats() as server:
        a, b = Replica(server.url, "a"), Replica(server.url, "b")
        with replicas(a, b):
            assert comes(lambda: a.num_others == b.num_others == 1)
            first = a.choose(6400, first=7)
            assert comes(lambda: b.index.num_promised() == 1)
            second = b.choose(6400, first=7)
            assert (second.rank, second.resumable) == (first.rank, 6384)


def test_a_server_that_comes_late_goes_and_comes_back_changes_no_answer() -> None:
    server = Nats()
    a, b = Replica(server.url, "a"), Replica(server.url, "b")
    try:
        with replicas(a, b):
            assert comes(lambda: "Connect call failed" in a.problem and a.said("failed") > 1)
            assert a.choose().rank[0] in PODS
            for _ in range(2):
                server.start()
                assert comes(lambda: a.num_others == b.num_others == 1)
                assert comes(lambda: a.problem == "")
                server.kill()
                assert comes(lambda: a.num_others == 0 and "books apart" in a.problem)
                assert a.choose().rank[0] in PODS
    finally:
        server.kill()


def test_a_server_that_hangs_is_given_up_and_heard_again() -> None:
    with nats() as server:
        a, b = Replica(server.url, "a"), Replica(server.url, "b")
        with replicas(a, b):
            assert comes(lambda: a.num_others == 1)
            server.send(signal.SIGSTOP)
            assert comes(lambda: a.num_others == 0)
            assert a.choose().rank[0] in PODS
            assert comes(lambda: "books apart" in a.problem)
            server.send(signal.SIGCONT)
            assert comes(lambda: a.num_others == b.num_others == 1)


def test_two_replicas_of_one_name_count_each_other_and_say_so() -> None:
    with nats() as server:
        a, b = Replica(server.url, "same"), Replica(server.url, "same")
        with replicas(a, b):
            assert comes(lambda: a.num_others == b.num_others == 1)
            a.choose()
            assert comes(lambda: b.running == 1)
            assert comes(lambda: "two replicas have the name same" in b.problem)


def test_another_fleet_on_the_same_server_is_not_heard() -> None:
    with nats() as server:
        a, b = Replica(server.url, "a"), Replica(server.url, "b", fleet="test")
        c = Replica(server.url, "c")
        with replicas(a, b, c):
            assert comes(lambda: a.num_others == c.num_others == 1)
            assert (b.num_others, a.heard("foreign")) == (0, 0)


def test_the_configuration_of_deploy_lets_replicas_in_and_nobody_else(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("a-secret\n")
    wrong.write_text("another\n")
    with nats("--config", str(CONFIG), env=PASSWORD, cwd=tmp_path) as server:
        a, b = (
            Replica(server.url, name, user="replica", password_file=str(right)) for name in "ab"
        )
        c = Replica(server.url, "c", user="replica", password_file=str(wrong))
        d = Replica(server.url, "d", user="replica", password_file=str(tmp_path / "missing"))
        with replicas(a, b, c, d):
            assert comes(lambda: a.num_others == b.num_others == 1)
            a.choose()
            assert comes(lambda: b.running == 1)
            assert comes(lambda: "uthorization" in c.problem)
            assert comes(lambda: "missing" in d.problem)
            assert (c.num_others, d.num_others) == (0, 0)


def test_a_server_that_is_full_leaves_a_replica_apart(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("max_connections: 1")
    with nats("--config", str(config)) as server:
        a, b = Replica(server.url, "a"), Replica(server.url, "b")
        with replicas(a):
            assert comes(lambda: a.problem == "")
            with replicas(b):
                assert comes(lambda: b.said("failed") > 1)
                assert ("books apart" in b.problem, a.problem) == (True, "")
                assert b.choose().rank[0] in PODS


def test_a_prompt_that_is_too_long_for_the_server_is_left_out(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("max_payload: 4KB")
    with nats("--config", str(config)) as server:
        a, b = Replica(server.url, "a"), Replica(server.url, "b")
        with replicas(a, b):
            assert comes(lambda: a.num_others == b.num_others == 1)
            a.choose(6400)
            assert comes(lambda: a.said("not_sent") == 1)
            a.choose(640)
            assert comes(lambda: b.index.num_promised() == 1)
            assert a.problem == ""


def test_a_subject_that_is_forbidden_is_counted(tmp_path: Path) -> None:
    config, password = tmp_path / "nats.conf", tmp_path / "password"
    password.write_text("p")
    user = '{ user: "u", password: "p", permissions: { publish: "nothing" } }'
    config.write_text(f"authorization {{ users = [ {user} ] }}")
    with nats("--config", str(config)) as server:
        a = Replica(server.url, "a", user="u", password_file=str(password))
        with replicas(a):
            assert comes(lambda: a.said("refused") > 0)
            assert a.choose().rank[0] in PODS
