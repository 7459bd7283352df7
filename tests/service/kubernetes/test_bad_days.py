"""Days on which the API server is gone, forgets, or says that nobody is there."""

import logging
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from kvbraid.ids import PodId
from kvbraid.service.kubernetes import following
from kvbraid.service.kubernetes.objects import NoAnswerError

from tests.service.kubernetes.following import Hours, Running, read, running
from tests.service.kubernetes.kube_api import FakeApi, a_slice, endpoint
from tests.service.serving import until


def test_410_in_a_loop_is_asked_less_and_less_and_changes_nothing(
    tmp_path: Path, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "RETRY_S", 0.5)
    monkeypatch.setattr(following, "RETRY_MAX_S", 30.0)
    api.objects = [a_slice("a", endpoint(1))]
    api.gone = 100_000
    it = Running(read(tmp_path, api))
    hour = Hours(it, 3600)
    it.table.run(hour)
    assert it.pods() == ["1"]
    assert it.counts["expired"] == it.counts["listed"] == api.watches == len(hour.pauses)
    assert 120 <= len(hour.pauses) <= 250  # At most 30 s each, and at least half of it.
    assert all(pause <= 0.5 * 2**n for n, pause in enumerate(hour.pauses))
    api.gone = 0
    with it.followed():
        api.tell("ADDED", a_slice("b", endpoint(2)))
        it.become("1", "2")


def test_an_api_server_that_is_gone_for_an_hour_changes_nothing(
    tmp_path: Path, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "RETRY_S", 0.5)
    monkeypatch.setattr(following, "RETRY_MAX_S", 30.0)
    api.objects = [a_slice("a", endpoint(1), endpoint(2), endpoint(3, ready=False))]
    it = Running(read(tmp_path, api))
    api.close()
    with pytest.raises(NoAnswerError):
        it.table.ask()
    api.answers = hangs_up
    hour = Hours(it, 3600)
    it.table.run(hour)
    assert it.pods() == ["1", "2"]
    assert it.counts["failed"] == len(hour.pauses)
    assert 120 <= len(hour.pauses) <= 250
    api.answers = lambda _: False
    monkeypatch.setattr(following, "RETRY_MAX_S", 0.05)
    api.gone = 1  # Nobody remembers the version any more.
    api.objects = [a_slice("a", endpoint(2), endpoint(3))]
    with it.followed():
        it.become("2", "3")


def hangs_up(_: BaseHTTPRequestHandler) -> bool:
    raise ConnectionError


def test_the_last_pods_are_kept_while_nobody_answers(tmp_path: Path, api: FakeApi) -> None:
    api.objects = [a_slice("a", endpoint(1))]
    with running(tmp_path, api) as it:
        it.become("1")
        api.answers = hangs_up
        api.close()
        it.count("failed", 5)
        assert it.pods() == ["1"]
        api.answers = lambda _: False
        api.tell("ADDED", a_slice("b", endpoint(2)))
        it.become("1", "2")


def test_a_token_is_read_again_when_it_has_rotated(tmp_path: Path, api: FakeApi) -> None:
    api.objects = [a_slice("a", endpoint(1))]
    with running(tmp_path, api) as it:
        it.become("1")
        api.token = "second"
        api.close()
        it.count("refused", 2)
        assert it.pods() == ["1"]
        (tmp_path / "token").write_text("second")
        api.objects = [a_slice("a", endpoint(2))]
        it.become("2")
    assert 401 in api.statuses


def test_an_empty_list_is_held_down(
    tmp_path: Path, api: FakeApi, warnings: pytest.LogCaptureFixture
) -> None:
    api.objects = [a_slice("a", endpoint(1), endpoint(2))]
    with running(tmp_path, api) as it:
        it.become("1", "2")
        api.objects = []
        api.tell("ERROR", {"code": 410})
        it.count("held")
        assert until(lambda: api.watches, lambda n: n == 2) == 2
        assert it.pods() == ["1", "2"]
        api.tell("ADDED", a_slice("a", endpoint(1)))
        it.become("1")
        api.tell("DELETED", a_slice("a", endpoint(1)))
        it.count("held", 2)
        it.now += 59
        api.bookmark(8)
        api.tell("ADDED", a_slice("b", endpoint(3)))
        it.become("3")
        api.tell("DELETED", a_slice("b", endpoint(3)))
        it.count("held", 3)
        it.now += 61
        api.bookmark(9)
        it.become()
    assert (
        "engines: 0 endpoints left of 2 ready pods; all of them stay for 60 s" in warnings.messages
    )


def test_a_list_that_shrinks_to_a_few_is_held_down(
    tmp_path: Path, api: FakeApi, warnings: pytest.LogCaptureFixture
) -> None:
    ten = [str(number) for number in range(10)]
    api.objects = [a_slice(f"s{number}", endpoint(number)) for number in range(10)]
    with running(tmp_path, api) as it:
        it.become(*ten)
        api.objects = [a_slice(f"s{number}", endpoint(number)) for number in range(4)]
        api.tell("ERROR", {"code": 410})
        it.count("held")
        api.tell("MODIFIED", a_slice("s0", endpoint(0, terminating=True)))
        it.become("-0", *ten[1:])  # What else is said counts at once.
        it.now += 61
        api.bookmark(9)
        it.become("-0", "1", "2", "3")
        api.objects = [a_slice("s1", endpoint(1)), a_slice("s2", endpoint(2))]
        api.tell("ERROR", {"code": 410})  # Most are left.
        it.become("1", "2")
        api.objects = [a_slice("s8", endpoint(8)), a_slice("s9", endpoint(9))]
        api.tell("ERROR", {"code": 410})  # As many are there, if other ones.
        it.become("8", "9")
    assert it.counts["held"] == 1
    assert (
        "engines: 4 endpoints left of 10 ready pods; all of them stay for 60 s"
        in warnings.messages
    )


def test_a_clock_that_jumps_removes_nobody_who_is_back(
    tmp_path: Path, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.objects = [a_slice("a", endpoint(1), endpoint(2))]
    with running(tmp_path, api) as it:
        it.become("1", "2")
        api.objects = []
        api.tell("ERROR", {"code": 410})
        it.count("held")
        it.now += 3600  # It was stopped for an hour: nobody was heard meanwhile.
        api.tell("ADDED", a_slice("a", endpoint(1), endpoint(2)))
        api.tell("ADDED", a_slice("b", endpoint(3)))
        it.become("1", "2", "3")
    assert [each for each in caplog.messages if ": removed" in each] == []


def test_a_pod_in_two_slices_counts_once(tmp_path: Path, api: FakeApi) -> None:
    six = a_slice("six", endpoint(1)) | {"addressType": "IPv6"}
    six["endpoints"][0]["addresses"] = ["fd00::1"]
    last = six | {"metadata": {"name": "last"}}
    api.objects = [six, a_slice("four", endpoint(1)), a_slice("other", endpoint(1)), last]
    with running(tmp_path, api) as it:
        it.become("1")
        pod = it.service.pods[PodId("inference/engine-1")]
        assert pod.serving.url == "http://10.0.0.1:8000"
        api.tell("MODIFIED", a_slice("other", endpoint(1, terminating=True)))
        it.become("-1")
        api.tell("DELETED", a_slice("other"))
        it.become("1")
        api.tell("DELETED", a_slice("four"))
        url = "http://[fd00::1]:8000"
        found = until(lambda: next(iter(it.service.pods.values())).serving.url, lambda u: u == url)
        assert found == url


def test_files_that_are_missing_are_waited_for(tmp_path: Path, api: FakeApi) -> None:
    api.objects = [a_slice("a", endpoint(1))]
    config = read(tmp_path, api)
    (tmp_path / "token").unlink()
    with Running(config).followed() as it:
        it.count("failed", 2)
        (tmp_path / "token").write_text("first")
        it.become("1")


def test_the_server_has_a_certificate_of_the_authority_in_the_folder(
    tmp_path: Path, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.issue_cert("127.0.0.1").configure_cert(context)
    api.objects = [a_slice("a", endpoint(1))]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            api._answer(self)

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # A client that does not trust it.

    with Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            config = read(tmp_path, api, url=f"https://127.0.0.1:{server.server_port}")
            other.cert_pem.write_to_path(tmp_path / "ca.crt")
            with Running(config).followed() as it:
                it.count("failed", 2)
                assert api.asked == []
                ours.cert_pem.write_to_path(tmp_path / "ca.crt")
                it.become("1")
                api.close()
        finally:
            server.shutdown()
            thread.join()
