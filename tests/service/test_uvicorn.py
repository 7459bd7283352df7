"""What our connections take from uvicorn's own classes, which promise none of it.

The names are read from our code, so one more is checked from its first day.
"""

import ast
import asyncio
import inspect
import re
import tomllib
from pathlib import Path

import pytest
import uvicorn
from kvbraid.service.http import connection, protocol, server
from kvbraid.service.http.app import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from tests.service.wire import Transport

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
NO_PROMISE = {
    "self": """_unset_keepalive_if_required connections cycle expect_100_continue flow headers loop
        parser pipeline scope server_state transport url""",
    "super()": """__init__ connection_lost connection_made data_received on_body
        on_headers_complete on_message_begin on_message_complete on_response_complete shutdown""",
    "self.cycle": """disconnected keep_alive message_event response_complete scope transport
        waiting_for_100_continue""",
    "self.flow": "read_paused write_paused",
    "self.server_state": "total_requests",
}


def used(owner: str) -> set[str]:
    """The attributes of `owner` that the two classes of a connection use, but for their own."""
    found: set[str] = set()
    own = {*vars(connection.Connection), *vars(protocol.ScoreProtocol)} - {"data_received"}
    for each in (connection.Connection, protocol.ScoreProtocol):
        for node in ast.walk(ast.parse(inspect.getsource(each))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == owner:
                found.add(node.attr)
    if owner.startswith("super"):
        return found - {"begin_request", "leave"}  # Of the one class for the other.
    return {
        name for name in found - own if name[0] != "_" or name == "_unset_keepalive_if_required"
    }


@pytest.mark.parametrize("owner", NO_PROMISE)
def test_what_we_use_of_uvicorn_is_listed(owner: str) -> None:
    assert used(owner) <= set(NO_PROMISE[owner].split())


async def answering() -> HttpToolsProtocol:
    """A plain connection of uvicorn that has answered a request."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, interface="asgi3", ws="none", lifespan="off", log_config=None)
    config.load()
    plain = HttpToolsProtocol(config, ServerState(), {})
    plain.connection_made(Transport(asyncio.get_running_loop()))
    plain.data_received(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
    await asyncio.wait(list(plain.tasks))
    return plain


@pytest.mark.parametrize("owner", NO_PROMISE)
def test_uvicorn_has_what_we_use(owner: str) -> None:
    plain: object = asyncio.run(answering())
    for name in owner.split(".")[1:]:
        plain = getattr(plain, name)
    names = NO_PROMISE[owner].split()
    assert [name for name in names if not hasattr(plain, name)] == []
    assert STATUS_LINE[200].startswith(b"HTTP/1.1 200 OK")


def test_the_server_overrides_what_uvicorn_calls() -> None:
    theirs = vars(uvicorn.Server)
    ours = [name for name in vars(server._Server) if name[0] != "_"]
    assert ours == ["startup", "on_tick", "shutdown", "capture_signals"]
    assert [name for name in (*ours, "handle_exit") if name not in theirs] == []


def test_one_minor_version_of_uvicorn_is_required() -> None:
    (line,) = [
        each
        for each in tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"][
            "serve"
        ]
        if each.startswith("uvicorn")
    ]
    found = re.fullmatch(r"uvicorn>=0\.(\d+),<0\.(\d+)", line)
    assert found is not None
    assert int(found[2]) == int(found[1]) + 1
