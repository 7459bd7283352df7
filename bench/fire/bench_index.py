"""Does any input hold the index for longer than its size allows?

One pod publishes the inputs of `inputs.py`, for a size n and for 2n. There is no rival. `ours` is
a CPU time at 2n. For batches it is the time of the most expensive batch; for answers it is the
time of the most expensive answer, less the time of a score of the same prompt if pods hold all its
blocks. Other figures stand beside it, each from runs of its own: the whole CPU time at n and at
2n, and a wait. For the wait, a second thread scores a second pod of another model while the input
runs at 2n; the figure is the longest wall time of such a score. A batch far larger than 1 MB may
take long: in its row `ours` is that wait.
"""

import contextlib
import functools
import statistics
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from kvbraid.events.sequence import SequenceTracker
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.spec import Topology

from bench.fire.inputs import (
    MEGABYTE,
    ONE_TOKEN,
    SIXTEEN,
    Fire,
    Shape,
    backwards,
    backwards_apart,
    batch,
    channels,
    clears_of_blocks,
    clears_of_names,
    evicted_tries,
    explained,
    floating_trie,
    growing_windows,
    late_parents,
    late_root,
    lookahead,
    many_blocks,
    media_items,
    one_tag,
    routed_long,
    routed_waits,
    shifted_states,
    silent_chunk,
    silent_pages,
    sparse_halves,
    sparse_in_turn,
    sparse_overlap,
    stored,
)
from bench.harness.measure import Row, Sample, Side, Target

MODEL: Final = "model"
PUBLISHER: Final = PodId("pod0")
BYSTANDER: Final = PodId("bystander")
BATCH_MS: Final = 100
ANSWER_MS: Final = 20
FEED_MS: Final = 250
NUM_SAMPLES: Final = 3
NUM_ANSWERS: Final = 3  # The first may place undecided hashes; the later ones find them placed.
PAUSE_S: Final = 0.001
BYSTANDER_PROMPT: Final = array("I", range(64))

Act: TypeAlias = Callable[[], float]
"""Does the timed work once; returns its milliseconds."""

Prepare: TypeAlias = Callable[[int], tuple[FleetIndex, Act]]
"""Makes, for a size, a fresh index and the work that is timed on it."""


def cpu_ms(call: Callable[[], object]) -> float:
    """Return the CPU time that this thread spends in one call."""
    begin = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - begin) / 1e6


def index_of(fire: Fire) -> FleetIndex:
    """Return an index with the input's pods, their first batches, and the bystander pod."""
    index = FleetIndex()
    topology = Topology(groups=fire.groups) if fire.groups else None
    for pod in range(fire.num_pods):
        index.register(PodId(f"pod{pod}"), model=MODEL, topology=topology, engine=fire.engine)
        for payload in fire.before:
            index.apply(PodId(f"pod{pod}"), payload)
    index.register(BYSTANDER, model="other", topology=Topology(groups=SIXTEEN))
    index.apply(BYSTANDER, batch([stored([1, 2], None, range(32), 16)]))
    return index


def apply_ms(index: FleetIndex, fire: Fire) -> float:
    """Apply the timed batches; return the time of the batch that took longest."""
    return max(cpu_ms(functools.partial(index.apply, PUBLISHER, p)) for p in fire.batches)


def score_ms(index: FleetIndex, fire: Fire) -> float:
    """Return the time of the score that took longest."""
    request = request_of(fire)
    return max(cpu_ms(lambda: index.score(request)) for _ in range(NUM_ANSWERS))


def explain_ms(index: FleetIndex, fire: Fire) -> float:
    """Return the time of one explanation."""
    request = request_of(fire)
    return cpu_ms(lambda: index.explain(request))


def request_of(fire: Fire) -> Request:
    """Return the request that is asked about the input's pods."""
    assert fire.prompt is not None, "an input that is only applied"
    return Request(model=MODEL, token_ids=fire.prompt, extra_keys=fire.media or None)


def plain_ms(fire: Fire) -> float:
    """Return the time of a score of the prompt if pods with one full group hold all its blocks."""
    assert fire.prompt is not None, "an input that is only applied"
    groups = fire.groups[:1] or ONE_TOKEN
    size = groups[0].block_size
    held = stored(range(1, len(fire.prompt) // size + 1), None, fire.prompt, size)
    index = index_of(
        Fire(before=[batch([held])], prompt=fire.prompt, groups=groups, num_pods=fire.num_pods)
    )
    request = Request(model=MODEL, token_ids=fire.prompt)
    return statistics.median(cpu_ms(lambda: index.score(request)) for _ in range(NUM_ANSWERS))


def applied(shape: Shape) -> Prepare:
    """Time the batches of an input."""

    def prepare(n: int) -> tuple[FleetIndex, Act]:
        fire = shape(n)
        index = index_of(fire)
        return index, lambda: apply_ms(index, fire)

    return prepare


def answered(shape: Shape, answer_ms: Callable[[FleetIndex, Fire], float]) -> Prepare:
    """Time the answers for the prompt of an input, after all of its batches."""

    def prepare(n: int) -> tuple[FleetIndex, Act]:
        fire = shape(n)
        index = index_of(fire)
        for payload in fire.batches:
            index.apply(PUBLISHER, payload)
        return index, lambda: answer_ms(index, fire)

    return prepare


def awaited(shape: Shape) -> Prepare:
    """Time the batches of an input while a routed request waits for its pages."""

    def prepare(n: int) -> tuple[FleetIndex, Act]:
        fire = shape(n)
        index = index_of(fire)
        index.routed(PUBLISHER, request_of(fire), [])
        return index, lambda: apply_ms(index, fire)

    return prepare


def routed(shape: Shape) -> Prepare:
    """Time the call that tells of a request."""

    def prepare(n: int) -> tuple[FleetIndex, Act]:
        fire = shape(n)
        index, request = index_of(fire), request_of(fire)
        return index, lambda: cpu_ms(lambda: index.routed(PUBLISHER, request, []))

    return prepare


def given_up(n: int) -> tuple[FleetIndex, Act]:
    """Time the end of a replay that never answered, with n gaps between held batches."""
    tracker = SequenceTracker()
    tracker.connected()
    for number in range(n):
        tracker.message(2 * number + 1, batch([]))
    return index_of(Fire()), lambda: cpu_ms(tracker.replay_failed)


def alone(prepare: Prepare, n: int) -> Side:
    """Return the time of one run on a fresh index."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        def sample() -> float:
            _, act = prepare(n)
            return act()

        yield sample

    return side


def beyond_the_prompt(prepare: Prepare, shape: Shape, n: int) -> Side:
    """Return the time of one run, less the cost of the prompt."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        plain = plain_ms(shape(n))
        yield lambda: max(0.0, prepare(n)[1]() - plain)

    return side


def prompt_alone(shape: Shape, n: int) -> Side:
    """Return the cost of the prompt."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        fire = shape(n)
        yield lambda: plain_ms(fire)

    return side


def scores_meanwhile(prepare: Prepare, n: int) -> Side:
    """Return the longest wall time of a score of the bystander during one run."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        def sample() -> float:
            index, act = prepare(n)
            with bystander_scored(index) as waits:
                act()
            return max(waits)

        yield sample

    return side


@contextlib.contextmanager
def bystander_scored(index: FleetIndex) -> Iterator[list[float]]:
    """Score the second pod in a thread of its own; yield a list that fills with the milliseconds.

    A score is due a pause after the previous one, and its time counts from when it is due: this
    includes the time that it waits for the interpreter.
    """
    waits: list[float] = []
    started, ended = threading.Event(), threading.Event()
    request = Request(model="other", token_ids=BYSTANDER_PROMPT)

    def score() -> None:
        due = time.perf_counter()
        while True:
            index.score(request)
            done = time.perf_counter()
            waits.append((done - due) * 1_000)
            started.set()
            if ended.is_set():
                return
            due = done + PAUSE_S
            time.sleep(PAUSE_S)

    thread = threading.Thread(target=score)
    thread.start()
    started.wait()
    yield waits
    ended.set()
    thread.join()


def batch_row(
    name: str,
    question: str,
    shape: Shape,
    n: int,
    prepared: Callable[[Shape], Prepare] = applied,
) -> Row:
    """Return the row of an input whose batches are timed; no batch is above 1 MB."""
    made = functools.cache(shape)
    prepare = prepared(made)

    def check() -> None:
        assert max(map(len, made(2 * n).batches)) <= MEGABYTE, name

    return Row(
        name=name,
        question=question,
        unit="ms CPU, dearest batch",
        ours=alone(prepare, 2 * n),
        target=Target(ours=BATCH_MS),
        samples=NUM_SAMPLES,
        check=check,
        beside=beside(prepare, n),
    )


def answer_row(
    name: str,
    question: str,
    shape: Shape,
    n: int,
    answer_ms: Callable[[FleetIndex, Fire], float] = score_ms,
) -> Row:
    """Return the row of an input whose answers are timed."""
    made = functools.cache(shape)
    prepare = answered(made, answer_ms)
    return Row(
        name=name,
        question=question,
        unit="ms CPU beyond the prompt",
        ours=beyond_the_prompt(prepare, made, 2 * n),
        target=Target(ours=ANSWER_MS),
        samples=NUM_SAMPLES,
        beside={**beside(prepare, n), "prompt_ms": prompt_alone(made, 2 * n)},
    )


def beside(prepare: Prepare, n: int) -> dict[str, Side]:
    """Return the CPU time at both sizes, and how long a score waits meanwhile."""
    return {
        "at_n": alone(prepare, n),
        "at_2n": alone(prepare, 2 * n),
        "score_wait_ms": scores_meanwhile(prepare, 2 * n),
    }


def others_row(name: str, question: str, prepare: Prepare, n: int) -> Row:
    """Return a row of work that may take long but must not delay others: `ours` is that delay."""
    return Row(
        name=name,
        question=question,
        unit="ms, a score's wait",
        ours=scores_meanwhile(prepare, 2 * n),
        target=Target(ours=BATCH_MS),
        samples=NUM_SAMPLES,
        beside=beside(prepare, n),
    )


ROWS = (
    batch_row("fire_sparse_halves", "a sparse store, then its halves", sparse_halves, 40_000),
    batch_row("fire_backwards", "a prompt told from its end, in one batch", backwards, 6_000),
    batch_row("fire_backwards_apart", "the same, each block a batch", backwards_apart, 8_000),
    batch_row("fire_late_parents", "children before their parents", late_parents, 5_500),
    batch_row("fire_late_root", "the same below a root that is told last", late_root, 5_500),
    batch_row(
        "fire_evicted_tries", "limbo of one first token, over its limit", evicted_tries, 128_000
    ),
    batch_row("fire_sparse_in_turn", "two sparse root stores in turn", sparse_in_turn, 5_500),
    batch_row("fire_sparse_overlap", "sparse stores that overlap", sparse_overlap, 5_000),
    batch_row(
        "fire_clears_of_names", "clears, 8 192 names known, nothing held", clears_of_names, 27_000
    ),
    batch_row(
        "fire_clears_of_blocks", "150 000 blocks and clears in one batch", clears_of_blocks, 40
    ),
    batch_row("fire_one_tag", "hashes that one multiplier sends to one tag", one_tag, 48_000),
    batch_row("fire_windows", "windows of a growing prompt: their batches", growing_windows, 16),
    batch_row("fire_states", "states, then shifted by one: their batches", shifted_states, 6_000),
    batch_row("fire_silent_pages", "pages after one, each with its window", silent_pages, 5_400),
    batch_row("fire_silent_chunk", "pages that are a chunk each", silent_chunk, 30_000),
    batch_row(
        "fire_routed_waits", "batches while a request waits", routed_waits, 1 << 16, awaited
    ),
    answer_row(
        "fire_sparse_score", "a sparse store and its halves: a score", sparse_halves, 2_500
    ),
    answer_row("fire_windows_score", "windows of a growing prompt: a score", growing_windows, 16),
    answer_row("fire_states_score", "states, then shifted by one: a score", shifted_states, 6_000),
    answer_row(
        "fire_trie_score", "a floating trie, one token 65 536 times", floating_trie, 80_000
    ),
    answer_row("fire_owners_score", "hashes alone of n owners, 64 tokens", channels, 32_000),
    answer_row("fire_lookahead_score", "n tokens of lookahead, 1 Mi tokens", lookahead, 2_500),
    answer_row(
        "fire_media_score", "n media items, 64 Ki tokens, lookahead 1", media_items, 10_000
    ),
    answer_row("fire_explain", "explain of n tokens on 8 pods", explained, 131_072, explain_ms),
    others_row(
        "fire_large_batch",
        "n honest blocks in one batch",
        applied(functools.cache(many_blocks)),
        1 << 19,
    ),
    others_row(
        "fire_routed_long",
        "a routed request of n tokens",
        routed(functools.cache(routed_long)),
        1 << 19,
    ),
    Row(
        name="fire_silent_replay",
        question="n holes while a replay is silent: giving it up",
        unit="ms CPU",
        ours=alone(given_up, 20_000),
        target=Target(ours=FEED_MS),
        samples=NUM_SAMPLES,
        beside=beside(given_up, 10_000),
    ),
)
