"""An application in the test's own process: starlette's client keeps one loop for its life."""

import warnings

from kvbraid.service.http.app import Application, Receive, Scope, Send

with warnings.catch_warnings():  # It would rather see httpx's successor, which we do not use.
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient as StarletteClient


class TestClient(StarletteClient):
    """A client of an application, which knows nothing of the lifespan that starlette begins."""

    __test__ = False

    def __init__(
        self,
        app: Application,
        *,
        base_url: str = "http://testserver",
        raise_server_exceptions: bool = True,
    ) -> None:
        async def served(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                await app(scope, receive, send)
                return
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})

        super().__init__(
            served, base_url=base_url, raise_server_exceptions=raise_server_exceptions
        )
