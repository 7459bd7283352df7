"""How engines are asked questions over aiohttp: time and the length of answers are limited."""

from typing import Final

import aiohttp

_IDLE_S: Final = 3.0  # Engines close a connection after 5, and a question could come then.


def new_session(patience_s: float) -> aiohttp.ClientSession:
    """Return a session in which a question has so many seconds; whoever asks for it closes it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
        timeout=aiohttp.ClientTimeout(total=patience_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept-Encoding", "User-Agent"),
        auto_decompress=False,
    )


async def read_body(response: aiohttp.ClientResponse, most_bytes: int) -> bytes | None:
    """Return the body of an answer; None if it is longer, and then its connection is closed."""
    body = bytearray()
    while chunk := await response.content.readany():
        body += chunk
        if len(body) > most_bytes:
            response.close()
            return None
    return bytes(body)
