"""An API server that lies, is slow, or sends what nobody can read."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from kvbraid.service.kubernetes import api_server, following

from tests.service.kubernetes.following import running
from tests.service.kubernetes.kube_api import FakeApi, a_slice, endpoint

Answers: TypeAlias = Callable[[BaseHTTPRequestHandler], bool]

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
    api.objects = [bad, a_slice("a", endpoint(1))]
    with running(tmp_path, api) as it:
        it.become("1")
        assert it.counts["bad_object"] == 1
        assert "engines: object bad stays as it was: " in warnings.text
        api.tell("ADDED", a_slice("bad", endpoint(2)))
        it.become("1", "2")
        api.tell("MODIFIED", bad)
        api.tell("ADDED", a_slice("b", endpoint(3)))
        it.become("1", "2", "3")
        api.tell("ERROR", {"code": 410})  # Also in a list.
        it.count("bad_object", 3)
        it.become("1", "2")


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
        threading.Event().wait(0.01)


def silent(_: BaseHTTPRequestHandler) -> bool:
    threading.Event().wait(1)
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
    monkeypatch.setattr(api_server, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(api_server, "LIST_S", 0.3)
    monkeypatch.setattr(api_server, "_PATIENCE_S", 0.3)
    api.answers = answers
    with running(tmp_path, api) as it:
        it.count(why, 2)
        assert it.counts["listed"] == 0
        api.answers = lambda _: False
        api.objects = [a_slice("a", endpoint(1))]
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
    api.objects = [a_slice("a", endpoint(1))]
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
    monkeypatch.setattr(following, "WATCH_S", 0.1)
    monkeypatch.setattr(api_server, "_GRACE_S", 0.1)
    with running(tmp_path, api) as it:
        it.count("slow", 2)
        assert it.counts["listed"] == 1
