"""The least that uvicorn with aiohttp can do: pass requests on to one engine, and answers back.

Its two arguments are the engine's port and its own. It reads no body, chooses nothing, has no
limits, and handles no failure.
"""

import sys
from typing import Any

import aiohttp
import uvicorn

_ENGINE, _PORT = map(int, sys.argv[1:])


class Plain:
    """The application."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        """Pass one request on; /healthz says that the server runs."""
        if scope["path"] == "/healthz":
            headers = [(b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body"})
            return
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        message = {"more_body": True}
        body = b""
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
        url = f"http://127.0.0.1:{_ENGINE}{scope['path']}"
        response = await self._session.request(scope["method"], url, data=body)
        headers = [each for each in response.raw_headers if each[0] != b"transfer-encoding"]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        is_last = False
        while not is_last:
            chunk = await response.content.readany()
            is_last = response.content.at_eof()
            await send({"type": "http.response.body", "body": chunk, "more_body": not is_last})


if __name__ == "__main__":
    uvicorn.run(
        Plain(),
        port=_PORT,
        http="httptools",
        lifespan="off",
        log_level="error",
        timeout_keep_alive=600,
    )
