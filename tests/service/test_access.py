"""Even without a token, a page in a browser of this machine cannot change the fleet."""

import pytest
from kvbraid.service.config import ServerOptions
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import Application
from kvbraid.service.registry import Service

from tests.service.in_process import TestClient
from tests.service.score_app import POD, refusal

LOCAL = ServerOptions()
NAMED = ServerOptions(allow_hosts=("KV.internal",))
TOKEN = ServerOptions(token="t")
OPEN = ServerOptions(host="0.0.0.0", allow_registration=True)
BOTH = ServerOptions(allow_registration=True)


@pytest.mark.parametrize(
    ("options", "host", "origin", "allowed"),
    [
        (LOCAL, "localhost", None, True),
        (LOCAL, "LocalHost:8090", None, True),
        (LOCAL, "127.0.0.1:8090", None, True),
        (LOCAL, "127.9.9.9", None, True),
        (LOCAL, "[::1]:8090", None, True),
        (LOCAL, "::1", None, False),
        (LOCAL, "evil.example:8090", None, False),
        (LOCAL, "localhost.evil.example", None, False),
        (LOCAL, "127.0.0.1.evil.example", None, False),
        (LOCAL, "evil@127.0.0.1", None, False),
        (LOCAL, "10.0.0.1", None, False),
        (LOCAL, "[::2]", None, False),
        (LOCAL, "", None, False),
        (LOCAL, "localhost:", None, False),
        (LOCAL, "kv.internal", None, False),
        (LOCAL, "localhost", "http://localhost:3000", True),
        (LOCAL, "localhost", "https://127.0.0.1", True),
        (LOCAL, "localhost", "http://evil.example", False),
        (LOCAL, "localhost", "null", False),
        (LOCAL, "localhost", "", False),
        (NAMED, "kv.internal:80", "http://kv.internal", True),
        (NAMED, "kv.internal.evil", None, False),
        (BOTH, "evil.example", None, False),
        (OPEN, "evil.example", "http://evil.example", True),
    ],
)
def test_a_change_on_loopback_calls_the_server_by_a_name_of_this_machine(
    service: Service, options: ServerOptions, host: str, origin: str | None, allowed: bool
) -> None:
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    with TestClient(Application(service, access=Access.of(options))) as client:
        put = client.put("/v1/pods/a", json=POD, headers=headers)
        delete = client.delete("/v1/pods/a", headers=headers)
        read = client.get("/v1/pods", headers=headers)
    for response, success in ((put, 201), (delete, 200)):
        if allowed:
            assert response.status_code == success
        else:
            assert refusal(response)[:2] == (403, "foreign_host")
    assert read.status_code == 200


def test_a_token_is_enough_whatever_the_server_is_called(service: Service) -> None:
    headers = {"host": "kv.example", "origin": "http://x", "authorization": "Bearer t"}
    with TestClient(Application(service, access=Access.of(TOKEN))) as client:
        assert client.put("/v1/pods/a", json=POD, headers=headers).status_code == 201


def test_a_change_without_a_token_is_refused_before_its_body_is_read(service: Service) -> None:
    with TestClient(Application(service, access=Access.of(TOKEN))) as client:
        answer = client.put("/v1/pods/a", content=b" " * 5000)  # Above the limit of a body.
        assert refusal(answer)[:2] == (401, "unauthorized")
