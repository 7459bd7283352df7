"""Pods of Kubernetes, from an API server over HTTP that is good, slow, gone, or lies."""

import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias, get_args

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.ids import PodId
from kvbraid.service import endpoint_slices, kubernetes
from kvbraid.service.config import FleetConfig, Limits
from kvbraid.service.endpoint_slices import BadSliceError, Change, WhyNot, read_slice
from kvbraid.service.fleet_file import read_fleet_file
from kvbraid.service.kubernetes import FollowedSlices, following_slices
from kvbraid.service.registry import Service

from tests.docs.markdown import codes, tables
from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.kube_api import FakeApi, a_slice, endpoint
from tests.service.serving import until

Answers: TypeAlias = Callable[[BaseHTTPRequestHandler], bool]

TABLE = """
[[kubernetes]]
service = "engines"
port = "http"
events_port = "events"
model = "m"
hold_s = 60.0
"""


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi().running() as running:
        yield running


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "RETRY_S", 0.01)
    monkeypatch.setattr(kubernetes, "RETRY_MAX_S", 0.05)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "kvbraid.kubernetes")
    return caplog


def read(tmp_path: Path, api: FakeApi, text: str = TABLE, url: str = "") -> FleetConfig:
    for name, value in (("token", api.token), ("namespace", "inference")):
        (tmp_path / name).write_text(value + "\n")
    path = tmp_path / "fleet.toml"
    path.write_text(f'{text}api = "{url or api.url}"\nfolder = "{tmp_path}"\n')
    return read_fleet_file(path)


class Running:
    """A service that follows a fake API server."""

    def __init__(self, config: FleetConfig, limits: Limits | None = None) -> None:
        self.service = Service(FakeIndex(), FakeFeed(), limits=limits)
        self.slices = FollowedSlices(config.watched[0], self.service)
        self.counts = self.service.watched

    def pods(self) -> list[str]:
        """Those that get requests, and those that drain with a minus."""
        return sorted(
            ("-" if config.serving.drain else "") + pod.removeprefix("inference/engine-")
            for pod, config in self.service.pods.items()
        )

    def become(self, *wanted: str) -> None:
        assert until(self.pods, lambda pods: pods == sorted(wanted)) == sorted(wanted)

    def count(self, outcome: str, least: int = 1) -> None:
        assert until(lambda: self.counts[outcome], lambda n: n >= least) >= least

    @contextmanager
    def followed(self) -> Iterator["Running"]:
        is_over = threading.Event()
        apply = self.slices._apply

        def checked() -> None:
            apply()
            self.slices.check_integrity()

        self.slices._apply = checked  # type: ignore[method-assign]
        thread = threading.Thread(target=self.slices.run, args=(is_over,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            is_over.set()


@contextmanager
def running(
    tmp_path: Path, api: FakeApi, text: str = TABLE, limits: Limits | None = None
) -> Iterator[Running]:
    with Running(read(tmp_path, api, text), limits).followed() as it:
        yield it


def test_endpoints_come_drain_and_go(tmp_path: Path, api: FakeApi) -> None:
    api.slices = [a_slice("a", endpoint(1), endpoint(2), endpoint(3, ready=False))]
    with running(tmp_path, api) as it:
        it.become("1", "2")  # One that was never ready is no pod yet.
        pod = it.service.pods[PodId("inference/engine-1")]
        assert (pod.serving.url, pod.endpoint) == ("http://10.0.0.1:8000", "tcp://10.0.0.1:5557")
        api.tell("MODIFIED", a_slice("a", endpoint(1, terminating=True), endpoint(2), endpoint(3)))
        it.become("-1", "2", "3")
        api.tell("ADDED", a_slice("b", endpoint(4)))
        it.become("-1", "2", "3", "4")
        api.tell("MODIFIED", a_slice("a", endpoint(2, ready=False)))
        it.become("-2", "4")
        api.tell("MODIFIED", a_slice("a", endpoint(2)))
        it.become("2", "4")
        api.tell("DELETED", a_slice("a", endpoint(2)))
        it.become("4")
    assert it.counts["listed"] == 1
    assert api.asked[0]["labelSelector"] == "kubernetes.io/service-name=engines"
    assert {"allowWatchBookmarks", "timeoutSeconds"} <= api.asked[1].keys()


def test_a_pod_that_drains_keeps_what_is_known_of_it(
    tmp_path: Path, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.slices = [a_slice("a", endpoint(1))]
    with running(tmp_path, api) as it:
        it.become("1")
        api.tell("MODIFIED", a_slice("a", endpoint(1, terminating=True)))
        it.become("-1")
    told = [each for each in caplog.messages if each.startswith("pod inference/engine-1: ")]
    assert [each.split(": ")[1] for each in told] == ["registered", "changed"]


def test_a_list_may_have_pages_and_labels(tmp_path: Path, api: FakeApi) -> None:
    api.page = 2
    api.slices = [a_slice(f"s{n}", endpoint(n)) for n in range(5)]
    text = TABLE.replace('service = "engines"', 'selector = "app=vllm,tier in (a,b)"')
    with running(tmp_path, api, text) as it:
        it.become("0", "1", "2", "3", "4")
    assert [each.get("continue") for each in api.asked[:3]] == [None, "2", "4"]
    assert api.asked[0]["labelSelector"] == "app=vllm,tier in (a,b)"


def test_a_watch_that_is_cut_goes_on_where_it_was(tmp_path: Path, api: FakeApi) -> None:
    api.slices = [a_slice("a", endpoint(1))]
    with running(tmp_path, api) as it:
        it.become("1")
        api.bookmark(70)
        api.say(b'{"type": "MODIFIED", "object": {"meta')  # And in the middle it closes.
        api.close()
        it.count("failed")
        api.tell("MODIFIED", a_slice("a", endpoint(2), version=71))
        it.become("2")
    watches = [each["resourceVersion"] for each in api.asked if "watch" in each]
    assert watches[:2] == ["1", "70"]
    assert it.counts["listed"] == 1


def test_a_version_that_is_too_old_makes_a_new_list_which_is_compared(
    tmp_path: Path, api: FakeApi
) -> None:
    api.slices = [a_slice("a", endpoint(1), endpoint(2))]
    with running(tmp_path, api) as it:
        it.become("1", "2")
        api.slices = [a_slice("c", endpoint(2), endpoint(3))]
        api.tell("ERROR", {"kind": "Status", "code": 410, "message": "too old"})
        it.become("2", "3")
        assert (it.counts["expired"], it.counts["listed"]) == (1, 2)


def test_410_in_a_loop_is_asked_less_and_less_and_changes_nothing(
    tmp_path: Path, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "RETRY_MAX_S", 60.0)
    api.slices = [a_slice("a", endpoint(1))]
    api.gone = 1000
    with running(tmp_path, api) as it:
        it.count("expired", 4)
        time.sleep(0.5)
        assert it.pods() == ["1"]
    assert 4 <= api.watches <= 9  # 0.01 s, and each pause twice as long.


def hangs_up(_: BaseHTTPRequestHandler) -> bool:
    raise ConnectionError


def test_the_last_pods_are_kept_while_nobody_answers(tmp_path: Path, api: FakeApi) -> None:
    api.slices = [a_slice("a", endpoint(1))]
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
    api.slices = [a_slice("a", endpoint(1))]
    with running(tmp_path, api) as it:
        it.become("1")
        api.token = "second"
        api.close()
        it.count("refused", 2)
        assert it.pods() == ["1"]
        (tmp_path / "token").write_text("second")
        api.slices = [a_slice("a", endpoint(2))]
        it.become("2")
    assert 401 in api.statuses


def test_an_empty_list_is_held_down(
    tmp_path: Path, api: FakeApi, warnings: pytest.LogCaptureFixture
) -> None:
    api.slices = [a_slice("a", endpoint(1), endpoint(2))]
    with running(tmp_path, api, TABLE.replace("60.0", "1.0")) as it:
        it.become("1", "2")
        api.slices = []
        api.tell("ERROR", {"code": 410})
        it.count("held")
        assert until(lambda: api.watches, lambda n: n == 2) == 2
        assert it.pods() == ["1", "2"]
        api.tell("ADDED", a_slice("a", endpoint(1)))
        it.become("1")
        api.tell("DELETED", a_slice("a", endpoint(1)))
        it.count("held", 2)
        assert it.pods() == ["1"]
        time.sleep(1.0)
        api.bookmark(9)
        it.become()
    assert "engines: no endpoint is left; pods stay for 1 s" in warnings.messages


def test_pods_that_have_drained_go_although_nobody_is_left(tmp_path: Path, api: FakeApi) -> None:
    api.slices = [a_slice("a", endpoint(1))]
    with running(tmp_path, api) as it:
        it.become("1")
        api.tell("MODIFIED", a_slice("a", endpoint(1, terminating=True)))
        it.become("-1")
        api.tell("MODIFIED", a_slice("a"))
        it.become()
    assert it.counts["held"] == 0


def test_a_pod_in_two_slices_counts_once(tmp_path: Path, api: FakeApi) -> None:
    six = a_slice("six", endpoint(1)) | {"addressType": "IPv6"}
    six["endpoints"][0]["addresses"] = ["fd00::1"]
    last = six | {"metadata": {"name": "last"}}
    api.slices = [six, a_slice("four", endpoint(1)), a_slice("other", endpoint(1)), last]
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


def test_endpoints_above_the_limit_are_refused_by_name(
    tmp_path: Path, api: FakeApi, warnings: pytest.LogCaptureFixture
) -> None:
    api.slices = [
        a_slice(f"s{first}", *(endpoint(first + n) for n in range(100)))
        for first in range(0, 5000, 100)
    ]
    with running(tmp_path, api, limits=Limits(pods=20)) as it:
        it.count("too_many_pods", 4980)
        assert len(it.service.pods) == 20
        assert it.counts["too_many_pods"] == 4980
        assert "limits.pods = 20, so 4,980 endpoints: inference/engine-1015, " in warnings.text
        api.tell("DELETED", a_slice("s0"))
        gone = PodId("inference/engine-0")
        assert until(lambda: gone in it.service.pods, lambda is_there: not is_there) is False
        assert (
            until(lambda: len(it.service.pods), lambda n: n == 20) == 20
        )  # Others have its place.
        assert it.counts["too_many_pods"] == 4980


def test_there_is_a_limit_of_endpoints_that_are_remembered(
    tmp_path: Path, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "MOST_ENDPOINTS", 3)
    api.slices = [a_slice("a", endpoint(1), endpoint(2)), a_slice("b", endpoint(3), endpoint(4))]
    with running(tmp_path, api) as it:
        it.become("1", "2")
        it.count("bad_object")
        for number in range(50):
            api.tell("ADDED", a_slice(f"empty{number}"))
        api.tell("MODIFIED", a_slice("b", endpoint(3)))
        it.become("1", "2", "3")
        assert it.slices._slices.keys() == {"a", "b"}


KEYS = ("metadata", "name", "addressType", "endpoints", "addresses", "targetRef", "kind", "ports")
BAD: list[Any] = [
    {"metadata": {"name": "bad"}},
    {"metadata": {"name": "bad"}, "addressType": "IPv4", "endpoints": 7},
    a_slice("bad", {"addresses": ["example.org"]}),
    a_slice("bad", {"addresses": ["10.0.0.9"], "targetRef": {"kind": "Pod", "name": "a\nb"}}),
]


@pytest.mark.parametrize("bad", BAD)
def test_an_object_that_cannot_be_read_is_named_and_stays_as_it_was(
    tmp_path: Path, api: FakeApi, warnings: pytest.LogCaptureFixture, bad: object
) -> None:
    api.slices = [bad, a_slice("a", endpoint(1))]
    with running(tmp_path, api) as it:
        it.become("1")
        assert it.counts["bad_object"] == 1
        assert "engines: slice bad stays as it was: " in warnings.text
        api.tell("ADDED", a_slice("bad", endpoint(2)))
        it.become("1", "2")
        api.tell("MODIFIED", bad)
        api.tell("ADDED", a_slice("b", endpoint(3)))
        it.become("1", "2", "3")
        api.tell("ERROR", {"code": 410})  # Also in a list.
        it.count("bad_object", 3)
        it.become("1", "2")


def test_a_port_that_has_no_such_name_is_told(
    tmp_path: Path, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    unnamed = a_slice("b", endpoint(2)) | {"ports": [{"name": "https", "port": 1}]}
    api.slices = [a_slice("a", endpoint(1)), unnamed]
    with running(tmp_path, api) as it:
        it.become("1")
    assert "inference/engine-2 stays as it is: no port has the name 'http'; name it" in caplog.text


def test_pods_that_others_have_registered_stay_theirs(tmp_path: Path, api: FakeApi) -> None:
    config = read(tmp_path, api)
    api.slices = [a_slice("a", endpoint(1), endpoint(2))]
    it = Running(config)
    pod = PodId("inference/engine-1")
    theirs = config.watched[0].pod_at("10.9.9.9", {"http": 1, "events": 2})
    it.service.put(pod, theirs)
    with it.followed():
        it.become("1", "2")
        api.tell("MODIFIED", a_slice("a", endpoint(2)))
        api.tell("ADDED", a_slice("b", endpoint(3)))
        it.become("1", "2", "3")
        assert it.service.pods[pod] is theirs
        assert it.counts["not_registered"] == 1  # Not once for each change.


def test_many_bad_objects_are_counted_and_few_are_told(
    tmp_path: Path, api: FakeApi, warnings: pytest.LogCaptureFixture
) -> None:
    api.slices = [{"metadata": {"name": f"bad{number}"}} for number in range(100)]
    with running(tmp_path, api) as it:
        it.count("bad_object", 100)
    assert len([each for each in warnings.messages if "stays as it was" in each]) == 8


def endless(call: BaseHTTPRequestHandler) -> bool:
    call.send_response(200)
    call.end_headers()
    while True:
        call.wfile.write(b" " * 65536)


def drips(call: BaseHTTPRequestHandler) -> bool:
    call.send_response(200)
    call.end_headers()
    while True:
        call.wfile.write(b" ")
        time.sleep(0.01)


def silent(_: BaseHTTPRequestHandler) -> bool:
    time.sleep(1)
    return True


def says(body: bytes, status: int = 200) -> Answers:
    def answers(call: BaseHTTPRequestHandler) -> bool:
        FakeApi().send(call, body, status)
        return True

    return answers


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (endless, "too_long"),
        (drips, "slow"),
        (silent, "slow"),
        (says(b"nonsense"), "unreadable"),
        (says(b"[" * 100_000), "unreadable"),
        (says(b'{"metadata": {"continue": "x"}}'), "slow"),  # Pages without an end.
        (says(b"{}", 403), "refused"),
        (says(b"{}", 302), "refused"),
    ],
)
def test_an_answer_is_limited_and_may_be_anything(
    tmp_path: Path, api: FakeApi, monkeypatch: pytest.MonkeyPatch, answers: Answers, why: str
) -> None:
    monkeypatch.setattr(endpoint_slices, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(endpoint_slices, "LIST_S", 0.3)
    monkeypatch.setattr(endpoint_slices, "_PATIENCE_S", 0.3)
    api.answers = answers
    with running(tmp_path, api) as it:
        it.count(why, 2)
        assert it.counts["listed"] == 0
        api.answers = lambda _: False
        api.slices = [a_slice("a", endpoint(1))]
        it.become("1")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"x" * (5 << 20), "too_long"),
        (b"nonsense\n", "unreadable"),
        (b'{"type": "ADDED", "object": 7}\n', "unreadable"),
        (b'{"type": "ERROR", "object": {"code": 500}}\n', "refused"),
        (
            json.dumps(
                {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9" * 70000}}}
            ).encode()
            + b"\n",
            "unreadable",
        ),
    ],
)
def test_a_watch_that_lies_is_followed_by_a_new_list(
    tmp_path: Path, api: FakeApi, said: bytes, why: str
) -> None:
    api.slices = [a_slice("a", endpoint(1))]
    with running(tmp_path, api) as it:
        it.become("1")
        api.say(said)
        if why == "unreadable" and b"BOOKMARK" in said:
            api.close()
        it.count(why)
        it.count("listed", 2)
        assert it.pods() == ["1"]


def test_a_watch_that_is_silent_ends(
    tmp_path: Path, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "WATCH_S", 0.1)
    monkeypatch.setattr(endpoint_slices, "_GRACE_S", 0.1)
    with running(tmp_path, api) as it:
        it.count("slow", 2)
        assert it.counts["listed"] == 1


def test_files_that_are_missing_are_waited_for(tmp_path: Path, api: FakeApi) -> None:
    api.slices = [a_slice("a", endpoint(1))]
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
    api.slices = [a_slice("a", endpoint(1))]

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


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('selector = "a=b"', "give a service, or a selector"),
        ('url = "http://h:1"', "url = 'http://h:1'; give port"),
        ('api = "http://kubernetes.default.svc"', "give https://HOST:PORT; http, where anybody"),
        ('namespace = "A/B"', "kubernetes[0].namespace"),
        ('replay_port = "-"', "kubernetes[0].replay_port"),
        ('model_config = "nothing.json"', "model_config: "),
        ("dp_size = 1024\nreplay_port = 65000", "ends at port 66023"),
    ],
)
def test_a_table_that_nobody_can_follow_is_refused(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(TABLE + line)
    with pytest.raises(InvalidValueError, match="kubernetes") as refused:
        read_fleet_file(path)
    assert told in str(refused.value)


def test_the_page_explains_each_outcome() -> None:
    (table,) = tables("configuration.md", "Pods of Kubernetes")
    ours = {"listed", "watched", "bad_object", "not_registered", "held", "too_many_pods"}
    assert {code for row in table for code in codes(row[0])} == ours | {*get_args(WhyNot)}


def test_services_are_followed_while_a_server_runs(tmp_path: Path, api: FakeApi) -> None:
    api.slices = [a_slice("a", endpoint(1))]
    service = Service(FakeIndex(), FakeFeed())
    with following_slices(read(tmp_path, api), service):
        found = until(lambda: list(service.pods), bool)
    assert found == ["inference/engine-1"]


CHANGES = st.tuples(
    st.sampled_from("abc"),
    st.lists(st.builds(endpoint, st.integers(0, 3), ready=st.booleans()), max_size=3),
)


@given(st.lists(CHANGES, max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_pods_are_what_the_slices_say_after_each_change(
    tmp_path: Path, changes: list[tuple[str, list[dict[str, Any]]]]
) -> None:
    text = TABLE.replace("60.0", "0") + 'namespace = "inference"\n'
    it = Running(read(tmp_path, FakeApi(), text, "https://h"))
    slices: dict[str, list[dict[str, Any]]] = {}
    known: set[int] = set()
    for number, (name, endpoints) in enumerate(changes):
        raw = json.dumps(a_slice(name, *endpoints)).encode()
        it.slices._take(Change(str(number), slice=read_slice(raw, ("http", "events"))))
        it.slices.check_integrity()
        slices[name] = endpoints
        said: dict[int, list[bool]] = {}
        for each in (each for held in slices.values() for each in held):
            of = int(each["targetRef"]["name"].removeprefix("engine-"))
            said.setdefault(of, []).append(each["conditions"]["ready"])
        ready = {of for of, are in said.items() if all(are)}
        known = (known & said.keys()) | ready
        assert it.pods() == sorted(f"{'' if of in ready else '-'}{of}" for of in known)


@given(
    st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_a_slice_or_one_error(raw: bytes) -> None:
    try:
        assert isinstance(read_slice(raw).name, str)
    except BadSliceError as error:
        assert "\n" not in str(error)  # noqa: PT017 - Either is right.


def test_what_is_no_slice_is_one_error() -> None:
    for raw in (b"", b"7", b"{}", b"\xff", json.dumps(a_slice("a", {"addresses": [1]})).encode()):
        with pytest.raises(BadSliceError):
            read_slice(raw)
    assert read_slice(json.dumps(a_slice("a")).encode()).endpoints == ()
