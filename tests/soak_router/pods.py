"""Pods of which a soak knows everything: HTTP, a real cache, and its real events over ZeroMQ.

A pod has the same ports for its whole life, however often its engine dies. A killed engine takes
its cache and its replay buffer along; the next one counts messages from 0.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Final, TypeAlias

from kvbraid.service.feeds.publisher import Publisher
from kvbraid.sim.fleet.engine import EngineAnswer, EngineRequest, SimulatedEngine
from kvbraid.sim.fleet.presets import Preset

from tests.service.route_pods import Asked, Engine
from tests.soak_router.relay import Port, Relay

MOST_TOKENS: Final = 8192
"""Longer prompts are refused, as an engine refuses what its context does not hold."""


class SoakPod:
    """One pod. `generation` counts its engines, `cuts` how often its events were cut off."""

    def __init__(self, name: str, preset: Preset, seed: str) -> None:
        self.name = name
        self.preset = preset
        self.mood = "well"
        self.generation = 0
        self.cuts = 0
        self.is_alive = False
        self.events, self.replays = Relay(), Relay()
        self._port = Port()
        self.http = Engine(self._behave)
        self.http.port = self._port.number
        self._listener: asyncio.Server | None = None
        self._random = Random(seed)
        self._last = EngineAnswer(0, -1, 0, 0)

    # ---- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start an engine with an empty cache, and listen."""
        if self.is_alive:
            return
        topic = f"kv@{self.name}@{self.preset.model}"
        local = "tcp://127.0.0.1:0"
        self._publisher = Publisher(local, replay_endpoint=local, topic=topic, bind=True)
        self._engine = SimulatedEngine(self.preset, self._publisher)
        self._last = EngineAnswer(0, -1, 0, 0)
        self.generation += 1
        self.is_alive = True
        self.events.target = _port_of(self._publisher.endpoint)
        self.replays.target = _port_of(self._publisher.replay_endpoint or "")
        await self.events.open()
        await self.replays.open()
        await self.listen()

    async def kill(self) -> None:
        """Close every socket at once; what the engine held is gone."""
        if not self.is_alive:
            return
        self.is_alive = False
        await self.stop_listening()
        for writer in self.http.writers:
            writer.transport.abort()
        await self.events.close()
        await self.replays.close()
        await asyncio.to_thread(self._publisher.close)

    async def end(self) -> None:
        """Kill it, and give up its ports."""
        await self.kill()
        for port in (self._port, self.events.port, self.replays.port):
            port.release()

    async def listen(self) -> None:
        """Accept requests."""
        if self._listener is None:
            self._listener = await self._port.listen(self.http._serve)

    async def stop_listening(self) -> None:
        """Refuse new connections; requests on those that there are go on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def cut_events(self, away_s: float) -> None:
        """Cut the event socket, and refuse to connect it again for a while."""
        self.cuts += 1
        await self.events.close()
        await asyncio.sleep(away_s)
        if self.is_alive:
            await self.events.open()

    async def heal(self) -> None:
        """Undo whatever was done to it, except that a cache is lost."""
        self.mood = "well"
        await self.start()
        await self.listen()
        await self.events.open()
        # A list of everything that was ever asked would look like a leak, though of this process.
        self.http.asked.clear()
        self.http.writers[:] = [w for w in self.http.writers if not w.transport.is_closing()]

    # ---- cache ------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        """The number of the last message; -1 before the first."""
        return self._last.last_seq

    @property
    def removed_blocks(self) -> int:
        """How many blocks this engine has dropped."""
        return self._last.removed_blocks

    def run(self, prompt: list[int], outputs: list[int]) -> EngineAnswer:
        """Run a request to its end; its events are published."""
        self._last = self._engine.serve(EngineRequest(prompt, outputs))
        return self._last

    # ---- HTTP -------------------------------------------------------------------------------

    async def _behave(self, asked: Asked) -> None:
        with suppress(OSError):
            await BEHAVIOURS[self.mood](self, asked)

    async def _serve(self, asked: Asked, pause_s: float = 0.0, dies_at: int = -1) -> None:
        if not self.is_alive:
            asked.die()
            return
        try:
            body = json.loads(asked.body)
            prompt, outputs = body["prompt"], list(range(body.get("max_tokens", 4)))
            if not 0 < len(prompt) <= MOST_TOKENS:
                raise ValueError(len(prompt))
            answer = self.run(prompt, outputs)
        except (ValueError, KeyError, TypeError):
            await asked.answer(b'{"error": {"message": "the engine refuses it"}}', "400 Bad")
            return
        told = {
            "id": asked.header("x-request-id"),
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(outputs),
                "prompt_tokens_details": {"cached_tokens": answer.hit},
            },
        }
        if body.get("stream"):
            await self._stream(asked, told, len(outputs), pause_s, dies_at)
        else:
            await asyncio.sleep(pause_s)
            await asked.answer(json.dumps(told).encode())

    async def _stream(
        self, asked: Asked, told: object, num_events: int, pause_s: float, dies_at: int
    ) -> None:
        await asked.begin()
        for number in range(num_events):
            await asked.event(json.dumps({"text": "x" * self._random.choice((1, 10, 4000))}))
            if number == dies_at:
                asked.die()
                return
            await asyncio.sleep(pause_s)
        await asked.event(json.dumps(told))
        await asked.event("[DONE]")
        await asked.end()

    async def _serve_slowly(self, asked: Asked) -> None:
        await self._serve(asked, self._random.uniform(0.02, 0.3))

    async def _die_early(self, asked: Asked) -> None:
        asked.die()

    async def _die_in_the_middle(self, asked: Asked) -> None:
        await self._serve(asked, 0.01, dies_at=self._random.randrange(3))

    async def _be_unavailable(self, asked: Asked) -> None:
        await asked.answer(b'{"error": {"message": "the engine starts"}}', "503 Unavailable")

    async def _write_garbage(self, asked: Asked) -> None:
        await asked.write(self._random.randbytes(200))
        asked.die()

    async def _say_nothing(self, asked: Asked) -> None:
        await asked.gone.wait()


Behaviour: TypeAlias = Callable[[SoakPod, Asked], Awaitable[None]]

BEHAVIOURS: Final[Mapping[str, Behaviour]] = {
    "well": SoakPod._serve,
    "slow": SoakPod._serve_slowly,
    "dies_early": SoakPod._die_early,
    "dies_in_the_middle": SoakPod._die_in_the_middle,
    "unavailable": SoakPod._be_unavailable,
    "writes_garbage": SoakPod._write_garbage,
    "silent": SoakPod._say_nothing,
}
"""What a pod does with a request, by its mood."""


def _port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])
