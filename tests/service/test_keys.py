"""Keys: what each allows, how a wrong one is refused, and that a revoked one ends at once."""

import asyncio
import hashlib
import json
import re
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import httpx
import pytest
from click.testing import CliRunner
from httpx import Response
from kvbraid.cli import cli
from kvbraid.gateway.directions import RIGHT
from kvbraid.service.config import ServerOptions
from kvbraid.service.console import ConsoleOptions
from kvbraid.service.fleet_file import examine
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import Application
from kvbraid.service.http.pages import FILES
from kvbraid.service.http.routes import ROUTES, Route
from kvbraid.service.keys import RIGHTS, KeyEntry, Right, digest, new_key
from kvbraid.service.registry import Service

from tests.service.in_process import TestClient
from tests.service.score_app import refusal
from tests.service.serving import serving, until

KEYS: Final[dict[Right, str]] = {right: f"key-of-{right}" for right in RIGHTS}
RIGHT_OF: Final[dict[tuple[str, str], Right | None]] = {
    ("POST", "/v1/score"): "explain",
    ("POST", "/v1/explain"): "explain",
    ("POST", "/v1/shard"): "route",
    ("POST", "/v1/strips"): "explain",
    ("GET", "/v1/strips"): "explain",
    ("POST", "/v1/tokens"): "explain",
    ("POST", "/v1/routed"): "route",
    ("POST", "/v1/pick"): "route",
    ("POST", "/v1/picked"): "route",
    ("GET", "/v1/ladder"): "read",
    ("GET", "/v1/ladder/history"): "read",
    ("GET", "/v1/requests"): "read",
    ("GET", "/v1/events"): "read",
    ("GET", "/v1/pods"): "read",
    ("PUT", "/v1/pods/{id}"): "change",
    ("DELETE", "/v1/pods/{id}"): "change",
    ("GET", "/v1/pods/{id}/snapshot"): "snapshot",
    ("GET", "/v1/policy"): "read",
    ("GET", "/v1/config"): "read",
    ("GET", "/v1/models"): "read",
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
    ("GET", "/metrics"): "read",
    ("GET", "/openapi.json"): None,
    ("GET", "/fleet.json"): "read",
    ("GET", "/requests.json"): "read",
    ("GET", "/explain.json"): "explain",
    ("GET", "/ladder.json"): "read",
    ("GET", "/policy.json"): "read",
    ("GET", "/config.json"): "read",
    **{("GET", path): None for path in FILES},
}


def entry(name: str, *rights: Right) -> KeyEntry:
    hashed = hashlib.sha256(f"key-of-{name}".encode()).hexdigest()
    return KeyEntry(name=name, sha256=hashed, rights=list(rights))


ENTRIES: Final = [entry(right, right) for right in RIGHTS]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_every_route_has_its_right() -> None:
    assert {(route.method, route.path): route.right for route in ROUTES} == RIGHT_OF
    assert (get_args(Right), "route") == (RIGHTS, RIGHT)


@pytest.fixture
def access() -> Access:
    return Access(keys=ENTRIES, token="master", clock=lambda: 7.0)


@pytest.fixture
def guarded(service: Service, access: Access) -> Iterator[TestClient]:
    service.picking.recent.options = ConsoleOptions(streams=0)  # None would ever end.
    with TestClient(Application(service, access=access)) as client:
        yield client


def ask(client: TestClient, route: Route, key: str | None) -> Response:
    headers = {} if key is None else bearer(key)
    path = route.path.format(id="a")
    answer: Response = client.request(route.method, path, content=b"{", headers=headers)
    return answer


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path}")
def test_a_key_opens_the_routes_of_its_right_and_no_other(
    guarded: TestClient, route: Route
) -> None:
    for wrong in (None, "wrong", "key-of-", ""):
        answer = ask(guarded, route, wrong)
        if route.right is None:
            assert answer.status_code == 200
        else:
            assert refusal(answer)[:2] == (401, "unauthorized")
    assert ask(guarded, route, "master").status_code not in (401, 403)
    for right, key in KEYS.items():
        answer = ask(guarded, route, key)
        if route.right in (None, right):
            assert answer.status_code not in (401, 403)
        else:
            told = f"key {right} has no right {route.right}, which this needs; it has {right}"
            assert refusal(answer) == (403, "right_missing", told)


def test_the_last_use_of_each_key_is_shown(guarded: TestClient, access: Access) -> None:
    ask(guarded, ROUTES[0], KEYS["change"])  # Also if it has no right there.
    shown = guarded.get("/v1/config", headers=bearer(KEYS["read"])).json()["keys"]
    used = {"read": 7.0, "change": 7.0}
    assert shown == [
        {"name": right, "rights": [right], "last_used": used.get(right)} for right in RIGHTS
    ] + [{"name": "token", "rights": list(RIGHTS), "last_used": None}]
    text = guarded.get("/metrics", headers=bearer(KEYS["read"])).text
    assert 'kvbraid_key_last_used_seconds{key="change"} 7.0' in text
    assert 'kvbraid_key_last_used_seconds{key="token"} 0.0' in text
    access.change(ServerOptions(), [entry("other", "read"), ENTRIES[3]])
    assert [row.last_used for row in access.rows()] == [None, 7.0]


@pytest.mark.parametrize(
    ("options", "keys", "is_open"),
    [
        (ServerOptions(), [], True),
        (ServerOptions(token="t"), [], True),
        (ServerOptions(host="0.0.0.0"), [], True),
        (ServerOptions(), ENTRIES, False),
        (ServerOptions(open_rights=("read",)), ENTRIES, True),
        (ServerOptions(open_rights=("explain",)), ENTRIES, False),
        (ServerOptions(open_rights=(), token="t"), [], False),
        (ServerOptions(open_rights=()), [], False),
    ],
)
def test_reading_needs_a_key_once_there_are_keys_unless_it_is_left_open(
    service: Service, options: ServerOptions, keys: list[KeyEntry], is_open: bool
) -> None:
    with TestClient(Application(service, access=Access.of(options, keys))) as client:
        assert client.get("/v1/pods").status_code == (200 if is_open else 401)
        assert client.get("/healthz").status_code == 200


def test_with_keys_changes_need_one_also_on_this_machine_and_if_registration_is_allowed(
    service: Service,
) -> None:
    access = Access.of(ServerOptions(allow_registration=True), ENTRIES)
    with TestClient(Application(service, access=access), base_url="http://localhost") as client:
        assert client.delete("/v1/pods/a").status_code == 401
        assert client.delete("/v1/pods/a", headers=bearer(KEYS["change"])).status_code == 404
        there = {**bearer(KEYS["change"]), "host": "evil.example", "origin": "http://evil.example"}
        assert client.delete("/v1/pods/a", headers=there).status_code == 404


def test_a_key_that_is_revoked_while_a_body_arrives_is_refused(service: Service) -> None:
    access = Access(keys=ENTRIES)
    app = Application(service, access=access)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        access.change(ServerOptions(), ENTRIES[:1])
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:  # noqa: ANN401 - of ASGI
        sent.append(message)

    scope = {
        "type": "http", "method": "PUT", "path": "/v1/pods/a", "query_string": b"",
        "headers": [(b"authorization", b"Bearer key-of-change")],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 401


POD: Final = """
[[pods]]
id = "a"
model = "m"
endpoint = "tcp://127.0.0.1:1"
"""


def table(name: str, *rights: str) -> str:
    hashed = hashlib.sha256(f"key-of-{name}".encode()).hexdigest()
    return f'[[keys]]\nname = "{name}"\nsha256 = "{hashed}"\nrights = {list(rights)}\n'


def status(client: httpx.Client, method: str, path: str, name: str) -> int:
    body = {"model": "m", "token_ids": [1]} if method == "POST" else None
    headers = bearer(f"key-of-{name}")
    return client.request(method, path, json=body, headers=headers).status_code


def test_a_running_server_forgets_a_key_and_learns_another_on_open_connections(
    tmp_path: Path,
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(table("old", "read", "explain") + POD)
    with serving("--config", str(path)) as (process, url), httpx.Client(base_url=url) as client:
        assert status(client, "POST", "/v1/score", "old") == 200  # On the shortcut.
        assert status(client, "POST", "/v1/score", "new") == 401
        assert status(client, "PUT", "/v1/pods/a", "old") == 403
        path.write_text(table("new", "explain") + POD)
        process.send_signal(signal.SIGHUP)
        until(lambda: status(client, "POST", "/v1/score", "new"), lambda code: code == 200)
        assert status(client, "POST", "/v1/score", "old") == 401
        assert status(client, "GET", "/v1/pods", "new") == 403
        listed = ["pods", "--url", url, "--token", "key-of-new"]
        with pytest.raises(Exception, match="right_missing: key new has no right read"):
            CliRunner().invoke(cli, listed, catch_exceptions=False)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (table("a", "read") * 2, "keys[1].name = 'a' is a duplicate, or that of server.token"),
        (table("token", "read"), "keys[0].name = 'token' is a duplicate, or that of server.token"),
        (
            table("a", "read") + table("a", "read").replace('"a"', '"b"'),
            "keys[1] (b): its sha256 is that of another key; make one with kvbraid new-key",
        ),
        (table("a", "reed"), "keys[0].rights[0]: Invalid enum value 'reed'"),
        (table("a"), "keys[0].rights: Expected `array` of length >= 1"),
        (table("a b", "read"), "keys[0].name: Expected `str` matching regex"),
        ("[[keys]]\nname='a'\nsha256='a'\nrights=['read']", "keys[0].sha256: Expected `str`"),
        ("[server]\nopen_rights = ['change']", "server.open_rights[0]: Invalid enum value"),
        (
            "".join(table(f"a{n}", "read") for n in range(65)),
            "keys: Expected `array` of length <= 64",
        ),
    ],
)
def test_a_wrong_table_of_a_key_is_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    faults = examine(path)[1]
    assert [fault[: len(told)] for fault in faults[:1]] == [told]


def test_a_new_key_is_made_with_the_table_that_allows_it(tmp_path: Path) -> None:
    made = CliRunner().invoke(cli, ["new-key", "ci", "--right", "read", "--right", "route"])
    shown = re.fullmatch(r"the key, which is shown only now: (kvbraid_[\w-]{43})\n", made.stderr)
    assert shown is not None
    key, hashed = shown[1], digest(shown[1].encode()).hex()
    path = tmp_path / "fleet.toml"
    path.write_text(made.stdout)
    read = tomllib.loads(made.stdout)["keys"]
    assert read == [{"name": "ci", "sha256": hashed, "rights": ["read", "route"]}]
    config, _ = examine(path)
    assert config is not None
    access = Access.of(config.server, config.keys)
    access.check("route", f"Bearer {key}".encode(), b"", None)
    as_json = CliRunner().invoke(cli, ["new-key", "ci", "--right", "read", "--json"])
    told = json.loads(as_json.stdout)
    assert told["sha256"] == digest(told["key"].encode()).hex()
    assert new_key() != new_key()


def test_a_key_cannot_have_any_name() -> None:
    made = CliRunner().invoke(cli, ["new-key", "a b", "--right", "read"])
    assert str(made.exception).startswith("a key of name: Expected `str` matching regex")
