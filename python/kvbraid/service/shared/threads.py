"""An event loop on a thread of its own, for what no decision may wait for."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

END_S: Final = 3.0
"""In which the thread must have ended; if it has not, nobody waits for it any more."""

_LOGGER: Final = logging.getLogger("kvbraid.shared")


def _note_error(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Note what a task of the client has raised; that the connection is lost is seen anyway."""
    del loop
    _LOGGER.debug("%s: %s", context.get("message"), context.get("exception"))


@contextlib.contextmanager
def on_thread(
    name: str, begin: Callable[[], Coroutine[Any, Any, None]], failed: Callable[[], None]
) -> Iterator[None]:
    """Run what `begin` returns until the block ends; `begin` itself has been called before it.

    If it raises, that is logged, and `failed` is called.
    """
    ending: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    is_ready = threading.Event()

    async def live() -> None:
        over = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(_note_error)
        ending.append((asyncio.get_running_loop(), over))
        work = begin()
        is_ready.set()
        running = asyncio.ensure_future(work)
        await asyncio.wait(
            {running, asyncio.ensure_future(over.wait())}, return_when=asyncio.FIRST_COMPLETED
        )
        if running.done():
            running.result()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    def run() -> None:
        try:
            asyncio.run(live())
        except Exception:
            failed()
            _LOGGER.exception("%s has ended", name)
        finally:
            is_ready.set()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    is_ready.wait()
    try:
        yield
    finally:
        for loop, over in ending:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(over.set)
        thread.join(END_S)
