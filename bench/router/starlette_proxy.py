"""The least that starlette with httpx can do: pass requests on to one engine, and answers back.

Its two arguments are the engine's port and its own. It chooses nothing, has no limits, and
handles no failure.
"""

import sys

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

_ENGINE, _PORT = map(int, sys.argv[1:])
_CLIENT = httpx.AsyncClient(
    base_url=f"http://127.0.0.1:{_ENGINE}", limits=httpx.Limits(max_connections=None), timeout=60
)


async def _healthz(_: Request) -> Response:
    return Response()


async def _pass_on(request: Request) -> Response:
    asked = _CLIENT.build_request("POST", request.url.path, content=await request.body())
    answer = await _CLIENT.send(asked, stream=True)
    return StreamingResponse(
        answer.aiter_raw(),
        answer.status_code,
        {name: value for name, value in answer.headers.items() if name != "transfer-encoding"},
        background=BackgroundTask(answer.aclose),
    )


if __name__ == "__main__":
    routes = [Route("/healthz", _healthz), Route("/{path:path}", _pass_on, methods=["POST"])]
    uvicorn.run(
        Starlette(routes=routes),
        port=_PORT,
        http="httptools",
        lifespan="off",
        log_level="error",
        timeout_keep_alive=600,
    )
