"""Which pods are registered, and the only place that changes it.

A pod is in the registry, in the index and, if it has events, in the subscriber, or in none of the
three: `put` and `delete` change all of them under one lock. They may block, so the HTTP
application calls them on a thread.
"""

import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from kvbraid.errors import KvbraidError, counted, shortened
from kvbraid.events.sequence import Settled
from kvbraid.ids import PodId, PodState
from kvbraid.policy import EngineLoad
from kvbraid.service.answers import EngineLoadRow, FeedRow, IndexRow, PodChange, PodRow, PodsAnswer
from kvbraid.service.config import Followed, Limits, PodConfig, ServerOptions, Serving
from kvbraid.service.errors import RefusalError, as_refusal
from kvbraid.service.in_force import InForce
from kvbraid.service.journal import Journal, Rank
from kvbraid.service.picking import Picking
from kvbraid.service.ports import Feed, Index
from kvbraid.service.readiness import Readiness
from kvbraid.service.remedy import remedy_for
from kvbraid.service.replicas import EventLogState, SharedState
from kvbraid.service.sharding import Shard, shard_of
from kvbraid.service.shards.answering import Questions
from kvbraid.service.shards.front import Front, other_shard
from kvbraid.service.snapshots import Snapshots

_NO_EVENTS: Final = "no events: it has no endpoint"
_NOT_FOUND: Final = "no events: its engine has not said yet where it publishes"


class Service:
    """The index, the subscriber that feeds it, and the pods registered with both.

    `picking` chooses among these pods, from the same index. The service's start, from which
    `readiness` counts, is when that was made.

    Attributes:
        in_force: The configuration that counts, for those who show it.
        asked: How pods answered that were asked where they publish.
        watched: What was heard of the API servers of Kubernetes.
        snapshots: The files of pods, if there are any; set before the first pod is registered.
        shared: What is shared with other replicas; None: nothing.
        shard: Which pods are indexed here; None: all of them. Set before the first is registered.
        front: What is there in place of an index, if shards are asked; else None.
        questions: Answers those of fronts.
        log: The log of events that is read or written, if there is one.
    """

    def __init__(  # noqa: PLR0913 - what it is put together from
        self,
        index: Index,
        feed: Feed,
        *,
        limits: Limits | None = None,
        readiness: Readiness | None = None,
        journal: Journal | None = None,
        picking: Picking | None = None,
        in_force: InForce | None = None,
    ) -> None:
        self.index = index
        self.feed = feed
        self.in_force = in_force or InForce()
        self.picking = picking or Picking(index)
        self.snapshots: Snapshots | None = None
        self.shared: SharedState | None = None
        self.shard: Shard | None = None
        self.front = index if isinstance(index, Front) else None
        self.questions = Questions(index)
        self.log: EventLogState | None = None
        self.limits = limits or Limits()
        self._readiness = readiness or Readiness(
            ServerOptions().ready_after_s, clock=time.monotonic
        )
        self.journal = journal or Journal()
        self._lock = threading.Lock()
        self._pods: dict[PodId, PodConfig] = {}
        self._found: dict[PodId, Followed] = {}  # Of pods that were asked where they publish.
        self._unknown: dict[PodId, str] = {}  # Why nothing is known of such a pod.
        self.asked: Counter[str] = Counter(found=0)
        self.watched: Counter[str] = Counter(listed=0, watched=0)
        self._models: frozenset[str] = frozenset()
        self._adapters: Mapping[str, str] = {}
        self._num_ranks = 0

    @property
    def models(self) -> frozenset[str]:
        """Models with at least one registered pod."""
        return self._models

    @property
    def adapters(self) -> Mapping[str, str]:
        """The model of each LoRA adapter that pods list, unless a model has its name."""
        return self._adapters

    @property
    def pods(self) -> Mapping[PodId, PodConfig]:
        """The registered pods; never changed in place."""
        return self._pods

    @property
    def followed(self) -> list[PodId]:
        """The pods whose events come in."""
        return [pod for pod, config in self._pods.items() if self._followed(pod, config)]

    @property
    def num_ranks(self) -> int:
        """The number of rows of an answer that covers every pod."""
        return self._num_ranks

    def has(self, pod: PodId) -> bool:
        """Whether a pod is one of this shard, if this is a shard."""
        return self.shard is None or self.shard.has(pod)

    def put(self, pod: PodId, config: PodConfig) -> PodChange:
        """Register a pod, or replace it if the configuration differs.

        A replaced pod is forgotten and rebuilt by replay: what was indexed under the old
        configuration may mean something else under the new one. Every reason to refuse the new
        configuration is checked before that: a refusal changes nothing. If the pod only takes
        requests otherwise (`Serving`), it is changed, and nothing is forgotten.

        Raises:
            RefusalError: `too_many_pods`; `invalid_endpoint` for an address that cannot be bound;
                `other_shard`.
            KvbraidError: The index or the subscriber refused in spite of these checks, because
                something has changed: a new pod is then not registered, an old one is rebuilt.
        """
        if self.shard is not None and not self.shard.has(pod):
            number, of = shard_of(pod, self.shard.of), self.shard.of
            told = f"shard {number}/{of} indexes pod {shortened(pod)}; this is shard {self.shard}"
            raise other_shard(told)
        with self._lock:
            return self._put(pod, config)

    def delete(self, pod: PodId) -> PodChange:
        """Stop following a pod and forget it.

        Raises:
            RefusalError: `unknown_pod`.
        """
        with self._lock:
            if pod not in self._pods:
                raise RefusalError("unknown_pod", f"pod {shortened(pod)} is not registered")
            self._delete(pod)
            return PodChange(pod=pod, status="removed")

    def change(self, wanted: Mapping[PodId, PodConfig], gone: Collection[PodId]) -> None:
        """Remove and put several pods, or none of them; `gone` may be gone already.

        Pods of other shards are left out.

        Every reason to refuse one of them is checked before any is touched. Should one be refused
        in spite of that, those before it become again what they were, and are rebuilt.

        Raises:
            KvbraidError: As in `put`, with the pod.
        """
        wanted = {pod: config for pod, config in wanted.items() if self.has(pod)}
        with self._lock:
            before, leaving = self._pods, [pod for pod in gone if pod in self._pods]
            after = {pod: c for pod, c in before.items() if pod not in leaving} | dict(wanted)
            self._check_room(sum(config.dp_size for config in after.values()))
            pod = PodId("")
            try:
                for pod, config in wanted.items():
                    self._check_feed(pod, config)
                for pod in leaving:
                    self._delete(pod)
                for pod, config in wanted.items():
                    self._put(pod, config)
            except KvbraidError as error:
                self._restore(before)
                refusal = as_refusal(error)
                told = f"pod {pod}: {refusal}"
                raise RefusalError(refusal.code, told, remedy=refusal.remedy) from error

    def follow(self, pod: PodId, config: PodConfig, found: Followed) -> None:
        """Follow a pod whose engine has said where it publishes.

        Nothing happens if the pod is not registered like this any more. If it is followed
        elsewhere, it has started again, so it is forgotten and rebuilt by replay.

        Raises:
            KvbraidError: The subscriber refused; the pod is as one without events.
        """
        with self._lock:
            if self._pods.get(pod) is not config:
                return
            if self._found.get(pod) != found:
                self._move(pod, config, found)
            self._unknown.pop(pod, None)
            self.asked["found"] += 1

    def not_found(self, pod: PodId, config: PodConfig, why: str, text: str) -> None:
        """Note that a pod was asked where it publishes, and has not said so."""
        with self._lock:
            if self._pods.get(pod) is not config:
                return
            self.asked[why] += 1
            if self._unknown.get(pod) == why:
                return
            self._unknown[pod] = why
            self.journal.note("events_unknown", Rank(pod), text)
            if pod not in self._found:
                self._show_silence(pod, config, f"no events: {text}")

    def rows(self) -> list[PodRow]:
        """Return one row per registered rank: the index's knowledge and the feed's progress."""
        self.picking.release()
        feeds = {(row.pod, row.dp_rank): row for row in self._feed_rows()}
        pods, rows, loads = self._pods, [], self.picking.engine_loads()
        for info in self.index.pods():
            row = msgspec.convert(info, IndexRow, from_attributes=True)
            config = pods.get(PodId(row.pod))
            if config is not None:
                feed = feeds.get((row.pod, row.dp_rank))
                # An exact rank has made up for what its feed lost.
                is_late = feed is not None and row.state is not PodState.EXACT
                config = self._shown(row.pod, config)
                rows.append(
                    PodRow(
                        **msgspec.structs.asdict(row),
                        last_seq=feed.last_seq if feed else None,
                        endpoint=config.endpoint,
                        replay_endpoint=config.replay_endpoint,
                        bind=config.bind,
                        remedy=remedy_for(feed.state, config) if feed and is_late else "",
                        url=config.serving.url,
                        drain=config.serving.drain,
                        max_running=config.serving.max_running,
                        running=self.picking.running(PodId(row.pod), row.dp_rank),
                        waiting=self.picking.waiting(PodId(row.pod), row.dp_rank),
                        engine_load=_told(loads.get((PodId(row.pod), row.dp_rank))),
                        applied_s=feed.applied_at if feed else None,
                        lag_s=feed.lag_s if feed else None,
                        state_s=self.journal.state_since(Rank(row.pod, row.dp_rank)),
                        problem=self.journal.problem(Rank(row.pod, row.dp_rank)),
                        num_gpu_blocks=config.engine.num_gpu_blocks,
                        block_bytes=config.block_bytes,
                    )
                )
        return rows

    def pods_answer(self) -> PodsAnswer:
        """Return the rows with the time that theirs are compared with; a front asks its shards."""
        memory_bytes = self.index.memory_bytes()
        own = PodsAnswer(pods=self.rows(), now_s=time.monotonic(), memory_bytes=memory_bytes)
        return own if self.front is None else self.front.with_counts(own)

    def missing(self) -> str:
        """Name the pods without which the service is not ready yet; empty if there are none."""
        rows = self._feed_rows()
        rows += [
            FeedRow(pod, 0, None, PodState.STALE, is_rebuilt=False)
            for pod, config in self._pods.items()
            if config.asks and pod not in self._found
        ]
        return self._readiness.missing(rows)

    def _feed_rows(self) -> list[FeedRow]:
        return [msgspec.convert(row, FeedRow, from_attributes=True) for row in self.feed.status()]

    def _put(self, pod: PodId, config: PodConfig) -> PodChange:
        old = self._pods.get(pod)
        if old == config:
            return PodChange(pod=pod, status="unchanged")
        if old is not None and _keeps_index(old, config):
            return self._change(pod, config)
        self._check_room(self._num_ranks + config.dp_size - (old.dp_size if old else 0))
        self._check_feed(pod, config)
        if old is None:
            self._add(pod, config)
        else:
            self._replace(pod, old, config)
        event = "registered" if old is None else "replaced"
        self.journal.note(event, Rank(pod), _described(config))
        return PodChange(pod=pod, status="created" if old is None else "replaced")

    def _delete(self, pod: PodId) -> None:
        self._remove(pod)
        self.journal.note("removed", Rank(pod), "it is followed no longer")

    def _check_room(self, num_ranks: int) -> None:
        if num_ranks > self.limits.pods:
            message = f"{num_ranks} pod ranks would be registered; limit {self.limits.pods}"
            raise RefusalError("too_many_pods", message)

    def _check_feed(self, pod: PodId, config: PodConfig) -> None:
        old = self._pods.get(pod)
        if config.followed is not None and old != config:
            self.feed.check(config.followed, self._followed(pod, old))

    def _restore(self, before: Mapping[PodId, PodConfig]) -> None:
        """Make the pods again what they were, as far as that is possible."""
        for pod in self._pods.keys() - before.keys():
            self._delete(pod)
        for pod, config in before.items():
            try:
                self._put(pod, config)
            except KvbraidError as error:
                told = f"it was, and cannot be followed again: {as_refusal(error).told()}"
                self.journal.note("removed", Rank(pod), told)

    def _change(self, pod: PodId, config: PodConfig) -> PodChange:
        self.picking.stand(pod, config.serving)
        self._set_pods({**self._pods, pod: config})
        self.journal.note("changed", Rank(pod), _served(config.serving))
        return PodChange(pod=pod, status="changed")

    def _add(self, pod: PodId, config: PodConfig) -> None:
        self.picking.stand(pod, config.serving)  # Before anybody can pick it.
        try:
            self._follow(pod, config)
        except KvbraidError:
            self.picking.forget(pod)
            raise
        self._set_pods({**self._pods, pod: config})

    def _follow(self, pod: PodId, config: PodConfig) -> None:
        self.index.register(
            pod,
            model=config.model,
            dp_size=config.dp_size,
            topology=config.topology,
            engine=config.engine,
            loras=config.loras,
        )
        if config.followed is None:
            self._show_silence(pod, config, _NOT_FOUND if config.asks else _NO_EVENTS)
            return
        try:
            self.feed.add(pod, config.followed, self._loaded(pod, config))
        except KvbraidError:
            self.index.remove(pod)
            raise

    def _move(self, pod: PodId, config: PodConfig, found: Followed) -> None:
        old = self._found.get(pod)
        self.feed.check(found, old)
        if old is not None:
            self._unfollow(pod)
            del self._found[pod]
            self._follow(pod, config)
        self.feed.add(pod, found, self._loaded(pod, config))
        self._found[pod] = found
        self.journal.note("events_found", Rank(pod), f"it publishes at {found.endpoint}")

    def _loaded(self, pod: PodId, config: PodConfig) -> Sequence[Settled]:
        """Load what an earlier server saved of a pod that is registered now, if anything."""
        return self.snapshots.load(pod, config.dp_size) if self.snapshots else ()

    def _followed(self, pod: PodId, config: PodConfig | None) -> Followed | None:
        """Return what a feed follows of a pod: what is configured, or was found."""
        return config.followed or self._found.get(pod) if config is not None else None

    def _shown(self, pod: PodId, config: PodConfig) -> PodConfig:
        """Return what is configured, with what was found."""
        if not config.asks:
            return config
        found = self._found.get(pod)
        at, replays_at = (found.endpoint, found.replay_endpoint) if found else (None, None)
        return replace(config, endpoint=at, replay_endpoint=replays_at)

    def _show_silence(self, pod: PodId, config: PodConfig, why: str) -> None:
        for rank in range(config.dp_size):
            self.index.set_state(pod, PodState.STALE, dp_rank=rank, reason=why)

    def _replace(self, pod: PodId, old: PodConfig, new: PodConfig) -> None:
        self._remove(pod)
        try:
            self._add(pod, new)
        except KvbraidError:
            self._add(pod, old)
            raise

    def _remove(self, pod: PodId) -> None:
        self._unfollow(pod)
        self._found.pop(pod, None)
        self._unknown.pop(pod, None)
        self.picking.forget(pod)
        if self.snapshots is not None:
            self.snapshots.forget(pod)
        self._set_pods({name: config for name, config in self._pods.items() if name != pod})

    def _unfollow(self, pod: PodId) -> None:
        if self._followed(pod, self._pods[pod]) is not None:
            self.feed.remove(pod)
        self.index.remove(pod)

    def _set_pods(self, pods: dict[PodId, PodConfig]) -> None:
        self._pods = pods
        self._models = frozenset(config.model for config in pods.values())
        self._adapters = {
            name: config.model
            for config in pods.values()
            for name in config.loras
            if name not in self._models
        }
        self._num_ranks = sum(config.dp_size for config in pods.values())


def _told(load: EngineLoad | None) -> EngineLoadRow | None:
    if load is None:
        return None
    return EngineLoadRow(running=load.running, waiting=load.waiting, usage=load.usage)


def _keeps_index(old: PodConfig, new: PodConfig) -> bool:
    """Whether nothing that was indexed of a pod depends on how it differs."""
    is_asked_elsewhere = old.asks and old.serving.url != new.serving.url
    alike = replace(old, serving=new.serving, block_bytes=new.block_bytes)
    return alike == new and not is_asked_elsewhere


def _served(serving: Serving) -> str:
    told = [f"url {serving.url}"] if serving.url else []
    told += [f"at most {serving.max_running} requests a rank"] if serving.max_running else []
    told += ["it gets no new requests" if serving.drain else "it gets requests"]
    return ", ".join(told)


def _described(config: PodConfig) -> str:
    ranks = counted(config.dp_size, "rank")
    source = f"from {config.endpoint} on" if config.endpoint else "without events"
    if config.asks:
        source = "that says itself where it publishes"
    return f"model {config.model}, {ranks} {source}"
