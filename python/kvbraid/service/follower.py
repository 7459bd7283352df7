"""What the subscriber's thread owns: feeds by pod, their links and replays, and what time asks.

Not thread-safe: `subscriber.py` runs it in one thread and passes other threads' wishes on.
"""

import time
from collections import Counter
from dataclasses import dataclass

from kvbraid.errors import InvalidValueError, KvbraidError, UnknownError
from kvbraid.events.sequence import SequenceTracker
from kvbraid.ids import PodId
from kvbraid.service.endpoints import rank_endpoint, subscriber_binds
from kvbraid.service.feed import FeedConfig, RankFeed, Sink
from kvbraid.service.link import BoundLink, ConnectedLink, Link
from kvbraid.service.reactor import Reactor
from kvbraid.service.replay import Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for what, in seconds, and how much to hold back meanwhile, per rank."""

    silence_s: float
    replay_timeout_s: float
    retry_max_s: float
    hold_limit_bytes: int


class Follower:
    """Every pod that is followed.

    Attributes:
        feeds: By pod, one per rank. Replaced, never changed in place: others may read it.
        links: Likewise.
    """

    def __init__(self, sink: Sink, reactor: Reactor, patience: Patience) -> None:
        self.feeds: dict[PodId, tuple[RankFeed, ...]] = {}
        self.links: tuple[Link, ...] = ()
        self._sink = sink
        self._reactor = reactor
        self._patience = patience
        self._bound: dict[str, BoundLink] = {}  # By the address as written.
        self._replays: dict[RankFeed, Replay] = {}

    def add(self, pod: PodId, config: FeedConfig) -> None:
        """Follow a pod: all of its ranks, or on an error none.

        Raises:
            InvalidValueError: A malformed endpoint, or the pod is followed already.
            ServiceError: An address cannot be bound.
        """
        if pod in self.feeds:
            raise InvalidValueError(f"pod {pod!r} is followed already; remove it first")
        if config.dp_size < 1:
            raise InvalidValueError(f"dp_size is {config.dp_size}; expected at least 1")
        self.feeds = {**self.feeds, pod: ()}
        try:
            for rank in range(config.dp_size):
                self._add_rank(pod, rank, config)
        except KvbraidError:
            self.remove(pod)
            raise

    def remove(self, pod: PodId) -> None:
        """Stop following a pod.

        Raises:
            UnknownError: The pod is not followed.
        """
        if pod not in self.feeds:
            raise UnknownError(f"pod {pod!r} is not followed; followed: {sorted(self.feeds)}")
        for feed in self.feeds[pod]:
            self._stop_replay(feed)
            for link in self.links:
                if feed in link.feeds() and not link.discard(feed):
                    self._close(link)
        self.feeds = {name: ranks for name, ranks in self.feeds.items() if name != pod}

    def attend(self, now: float) -> None:
        """Do what is due: give up late replays, reopen links, ask silent pods."""
        late_since = now - self._patience.replay_timeout_s
        for replay in [r for r in self._replays.values() if r.heard_at <= late_since]:
            replay.fail()
        for link in self.links:
            link.attend(now)
            for feed in link.feeds():
                if now - feed.heard_at >= self._patience.silence_s:
                    feed.heard_at = now
                    feed.fall_silent()

    def bound(self) -> tuple[str, ...]:
        """Return the addresses that are bound, as written; from any thread."""
        return tuple(self._bound)

    def strays(self) -> Counter[str]:
        """Count messages that concern no followed pod, by reason."""
        return sum((link.strays for link in self.links), Counter())

    def close(self) -> None:
        """Close every socket."""
        for replay in self._replays.values():
            replay.close()
        for link in self.links:
            link.close()

    def _add_rank(self, pod: PodId, rank: int, config: FeedConfig) -> None:
        feed = RankFeed(
            self._sink,
            pod,
            rank,
            tracker=SequenceTracker(hold_limit_bytes=self._patience.hold_limit_bytes),
            start_replay=self._start_replay,
            stop_replay=self._stop_replay,
        )
        feed.announce()
        feed.model = config.model
        feed.heard_at = time.monotonic()
        feed.endpoint = rank_endpoint(config.endpoint, rank)
        if config.replay_endpoint is not None:
            feed.replay_endpoint = rank_endpoint(config.replay_endpoint, rank)
        is_bound = subscriber_binds(feed.endpoint) if config.bind is None else config.bind
        if is_bound:
            self._share(feed)
        else:
            self._open(ConnectedLink(self._reactor, feed, retry_max_s=self._patience.retry_max_s))
        self.feeds = {**self.feeds, pod: (*self.feeds[pod], feed)}

    def _share(self, feed: RankFeed) -> None:
        """Put a feed on the link that is bound to its address, bound now if it was not."""
        written = feed.endpoint
        link = self._bound.get(written)
        if link is None:
            link = BoundLink(self._reactor, written, retry_max_s=self._patience.retry_max_s)
            self._open(link)
            self._bound[written] = link
        feed.endpoint = link.endpoint
        link.add(feed)

    def _open(self, link: Link) -> None:
        link.open()
        self.links = (*self.links, link)

    def _close(self, link: Link) -> None:
        link.close()
        self.links = tuple(other for other in self.links if other is not link)
        self._bound = {key: bound for key, bound in self._bound.items() if bound is not link}

    def _start_replay(self, feed: RankFeed, start: int) -> bool:
        self._stop_replay(feed)
        if feed.replay_endpoint is None:
            return False
        self._replays[feed] = Replay(self._reactor, feed, start, time.monotonic())
        return True

    def _stop_replay(self, feed: RankFeed) -> None:
        replay = self._replays.pop(feed, None)
        if replay is not None:
            replay.close()
