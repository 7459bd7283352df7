"""The loop of an engine that calls the cache itself; docs/engine.md explains it call by call."""

from bisect import insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvbraid.cache import CacheConfig, CacheManager, Events, Match, Need, Work
from kvbraid.spec import GroupSpec, SpecKind, Topology


class Request(NamedTuple):
    """Its number in the cache, its tokens so far, and how many it will have in the end."""

    number: int
    tokens: list[int]
    num_in_the_end: int


class Part(NamedTuple):
    """What a step computes of a request: tokens from `start` on, the last of them drafts."""

    request: Request
    start: int
    num_tokens: int
    num_drafts: int
    tables: Sequence[Sequence[int]]


Device = Callable[[Work, Sequence[Part]], Sequence[Sequence[int]]]
"""Zeroes, copies, then computes. Returns what it samples for each part: the drafts that it accepts
and one token more, or nothing if the part ends inside a prompt. RuntimeError: the step failed."""


class Engine:
    """Serves requests in the order in which they come."""

    def __init__(self, cache: CacheManager, device: Device, num_drafts: int = 0) -> None:
        self.cache, self.device, self.num_drafts = cache, device, num_drafts
        self.max_step_tokens, self.max_running = 64, 8
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def add(self, prompt: Sequence[int], num_new_tokens: int) -> Request:
        """Queue a request."""
        num_in_the_end = len(prompt) + num_new_tokens
        if not self.cache.can_ever_fit(num_in_the_end):
            raise ValueError(f"{num_in_the_end} tokens do not fit into the empty pool")
        self.waiting.append(Request(self.cache.add(prompt), list(prompt), num_in_the_end))
        return self.waiting[-1]

    def step(self) -> tuple[list[Request], Events]:
        """Run one step. Return the requests that it ends, and what is to be published."""
        self.cache.start_step()
        self.parts: list[Part] = []
        self.budget, num_waiting = self.max_step_tokens, len(self.waiting)
        for request in list(self.running):
            while request in self.running and not self._schedule(request):
                self._give_back(self.running[-1:])
        if len(self.waiting) == num_waiting:  # Who runs has room enough: others may start.
            while self.waiting and self.budget and len(self.running) < self.max_running:
                match = self.cache.match(self.waiting[0].number)
                if not self._schedule(self.waiting[0], match):
                    break
                self.running.append(self.waiting.pop(0))
        work = self.cache.take_work()
        try:
            results = self.device(work, self.parts)
        except RuntimeError:
            self._give_back([part.request for part in self.parts], step_failed=True)
            results = [()] * len(self.parts)
        rows = zip(self.parts, results, strict=True)
        ended = [part.request for part, tokens in rows if tokens and self._take(part, tokens)]
        return ended, self.cache.take_events()

    def _schedule(self, request: Request, match: Match | None = None) -> bool:
        """Give a request blocks for its part of the step; return whether it may run."""
        number, known, budget, drafts = request.number, len(request.tokens), self.budget, 0
        start = self.cache.num_computed_tokens(number) + (match.num_tokens if match else 0)
        most = self.max_step_tokens
        count = self.cache.plan_chunk(number, budget, match=match, max_chunk_tokens=most)
        if not count:
            return match is None  # Who runs already waits for the next step, with its blocks.
        if start + 1 == known and match is None:
            drafts = min(self.num_drafts, request.num_in_the_end - known - 1, budget - 1)
        count, waits = count + drafts, match is not None and bool(self.running)
        need = Need(request=number, num_new_tokens=count, match=match, is_waiting=waits)
        if not self.cache.allocate([need]).num_fit:
            return False
        self.parts.append(Part(request, start, count, drafts, self.cache.blocks(number)))
        self.budget -= count
        return True

    def _give_back(self, requests: Sequence[Request], *, step_failed: bool = False) -> None:
        self.cache.preempt([request.number for request in requests], step_failed=step_failed)
        for request in requests:
            self.running.remove(request)
            insort(self.waiting, request)

    def _take(self, part: Part, tokens: Sequence[int]) -> bool:
        """Take over what was sampled; return whether the request has ended."""
        number, num_rejected = part.request.number, part.num_drafts + 1 - len(tokens)
        if num_rejected:
            self.cache.roll_back(number, part.start + part.num_tokens - num_rejected)
        part.request.tokens.extend(tokens)
        self.cache.extend(number, tokens)
        if len(part.request.tokens) < part.request.num_in_the_end:
            return False
        self.running.remove(part.request)
        self.cache.release([number])
        return True


if __name__ == "__main__":
    full = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)
    cache = CacheManager(CacheConfig(topology=Topology(groups=(full,)), num_blocks=40))
    engine = Engine(cache, lambda _, parts: [[7] * (p.start + p.num_tokens >= 70) for p in parts])
    requests = [engine.add(range(70), 5) for _ in range(3)]
    while engine.waiting or engine.running:
        engine.step()
    print([request.tokens[70:] for request in requests], cache.take_statistics().started)
