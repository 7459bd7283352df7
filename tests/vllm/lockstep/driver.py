"""A made-up engine: a random scheduler that keeps the real one's contract with its cache.

It holds what the engine's scheduler holds (queues, counts of computed, in-flight and placeholder
tokens, steps whose outputs are still to come) and no blocks. It follows what the left side of
the pair answers, so a run is a pure function of its configuration, its seed and that side.
"""

from collections import deque
from random import Random

from kvbraid.cache.chunk import Position

from tests.vllm.lockstep.chunks import rules_of
from tests.vllm.lockstep.compare import Pair
from tests.vllm.lockstep.configs import Config
from tests.vllm.lockstep.jobs import Job, Part, Step
from tests.vllm.lockstep.requests import Requests
from tests.vllm.lockstep.side import Ask, Hit


class Driver:
    """Runs one configuration for a number of operations."""

    def __init__(self, config: Config, pair: Pair, *, seed: str) -> None:
        self._config = config
        self._pair = pair
        self._random = Random(f"{config.number} {seed}")
        self._max_output = min(24, config.max_model_len // 4)
        self._requests = Requests(
            self._random,
            max_tokens=config.max_model_len - self._max_output - 1 - config.num_draft_tokens,
            unit=config.alignment,
        )
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._loading: list[Job] = []
        self._steps: deque[Step] = deque()
        self._num_labels = 0
        self._is_draining = False
        self._num_idle_steps = 0

    def run(self, num_operations: int) -> None:
        """Schedule steps until the log has at least that many operations."""
        while len(self._pair.log) < num_operations:
            self._submit()
            step = self._schedule()
            self._take(step)
            self._advance(step)
            self._steps.append(step)
            while len(self._steps) > (self._config.steps_in_flight if step.parts else 0):
                self._process(self._steps.popleft())
            if self._config.drains_events_late:
                self._pair.run("take_events")
            self._disturb()
            self._unlock(step)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _submit(self) -> None:
        while not self._is_draining and len(self._waiting) < 3 and self._chance(0.6):
            request = self._requests.make()
            self._pair.run("add", request)
            max_output = self._random.choice((1, 2, 5, self._random.randint(1, self._max_output)))
            job = Job(request, max_output, list(request.tokens))
            job.skips_lookup = self._chance(0.03)
            self._waiting.append(job)

    # ---- putting a step together -----------------------------------------------------------

    def _schedule(self) -> Step:
        self._pair.run("start_step")
        step = Step()
        budget = self._decode_batch(step, self._config.token_budget)
        budget = self._allocate_batch(step, budget)
        budget, has_preempted = self._schedule_running(step, budget)
        if not has_preempted:
            self._finish_loads()
            self._schedule_waiting(step, budget)
        return step

    def _decode_batch(self, step: Step, budget: int) -> int:
        """Give their next slot to the requests that wait for a token only, in one call."""
        jobs = [job for job in self._running if job.pending_token is not None]
        if self._chance(0.2):
            for job in jobs:
                self._append_pending(job)
        jobs = [job for job in jobs if job.pending_token is not None][:budget]
        if not jobs:
            return budget
        tokens = [job.pending_token or 0 for job in jobs]
        for job, token in zip(jobs, tokens, strict=True):
            job.tokens.append(token)
            job.pending_token = None
        fitting = self._pair.run("decode", [job.key for job in jobs], tokens)
        for job in jobs[: len(fitting)]:
            self._put(step, job, 1)
        return budget - len(fitting)

    def _append_pending(self, job: Job) -> None:
        if job.pending_token is not None:
            job.tokens.append(job.pending_token)
            self._pair.run("extend", job.key, (job.pending_token,))
            job.pending_token = None

    def _allocate_batch(self, step: Step, budget: int) -> int:
        """Ask for several running requests at once; who does not fit is asked for again alone."""
        wanted: list[tuple[Job, Ask]] = []
        left = budget
        for job in self._running if self._chance(0.4) else ():
            num_new = self._wanted(job, left) if left else 0
            if num_new:
                wanted.append((job, self._ask(job, num_new)))
                left -= num_new
        if len(wanted) < 2:
            return budget
        fitting = self._pair.run("allocate", [ask for _, ask in wanted], 0)
        for job, ask in wanted[: len(fitting)]:
            self._put(step, job, ask.num_new_tokens)
            budget -= ask.num_new_tokens
        return budget

    def _schedule_running(self, step: Step, budget: int) -> tuple[int, bool]:
        """Give slots to running requests in order; the last ones make room where there is none."""
        has_preempted = False
        index = 0
        while index < len(self._running) and budget > 0:
            job = self._running[index]
            index += 1
            num_new = self._wanted(job, budget)
            if not num_new:
                continue
            ask = self._ask(job, num_new)
            while not self._pair.run("allocate", [ask], 0):
                victim = self._running[-1]
                if self._config.defers_frees and victim.in_flight:
                    return budget, has_preempted
                has_preempted = True
                budget += self._preempt(victim, step)
                if victim is job:
                    return budget, has_preempted
            self._put(step, job, num_new)
            budget -= num_new
        return budget, has_preempted

    def _wanted(self, job: Job, budget: int) -> int:
        """Return how many tokens a running request computes in this step."""
        if job.is_scheduled or job.is_surely_complete:
            return 0
        num_new = len(job.tokens) + job.drafts + job.placeholders - job.computed
        num_new = self._chunk(num_new, budget)
        num_new = min(num_new, self._config.max_model_len - job.computed - 1)
        return self._settle(job, job.computed, num_new)

    def _chunk(self, num_new: int, budget: int) -> int:
        threshold = self._config.long_prefill_tokens
        if threshold and len(self._running) + len(self._waiting) + len(self._loading) > 1:
            num_new = min(num_new, threshold)
        return min(num_new, budget)

    def _settle(self, job: Job, start: int, num_new: int) -> int:
        """End the chunk where states need it, and leave a drafter the tokens it looks ahead."""
        if num_new <= 0:
            return 0
        position = Position(
            start=start,
            num_tokens=len(job.tokens),
            num_prompt_tokens=job.num_prompt,
            junction=job.junction,
            budget=num_new,
        )
        num_new = rules_of(self._config).plan(position)
        remaining = len(job.tokens) - start - num_new
        if 0 < remaining < self._config.prefill_lookahead:
            num_new -= self._config.prefill_lookahead - remaining
        return max(num_new, 0)

    def _ask(self, job: Job, num_new: int) -> Ask:
        return Ask(
            key=job.key,
            num_new_tokens=num_new,
            num_computed_tokens=job.computed,
            num_lookahead_tokens=self._config.num_lookahead_tokens,
            num_in_flight_tokens=job.in_flight,
        )

    def _put(self, step: Step, job: Job, num_new: int) -> None:
        verified = num_new + job.computed - len(job.tokens) - job.placeholders
        step.parts.append(Part(job, num_new, max(0, min(verified, job.drafts))))
        job.drafts = 0
        job.is_scheduled = True

    def _preempt(self, job: Job, step: Step, *, drops_stale: bool = False) -> int:
        """Take everything from a running request; return the budget that this step gets back."""
        self._running.remove(job)
        restored = sum(part.num_tokens for part in step.parts if part.job is job)
        step.parts = [part for part in step.parts if part.job is not job]
        self._append_pending(job)
        self._pair.run("preempt", job.key)
        job.is_running = job.is_scheduled = False
        job.drops_stale = drops_stale or (job.drops_stale and job.stale > 0)
        job.stale = job.in_flight
        job.computed = job.drafts = job.placeholders = 0
        self._waiting.appendleft(job)
        return restored

    # ---- admission -------------------------------------------------------------------------

    def _schedule_waiting(self, step: Step, budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self._config.max_running:
            num_new = self._admit(self._waiting[0], step, budget)
            if num_new is None:
                return
            budget -= num_new

    def _admit(self, job: Job, step: Step, budget: int) -> int | None:
        """Start a request with its hit; None where it has to wait."""
        is_start = job.computed == 0
        is_looked_up = is_start and not job.skips_lookup
        hit = self._pair.run("match", job.key) if is_looked_up else Hit(0, 0)
        if is_looked_up:
            job.junction = hit.junction
        num_external, is_load = self._external(job, hit) if is_start else (0, False)
        if num_external:
            hit = hit._replace(num_tokens=hit.num_tokens - hit.num_tokens % self._config.alignment)
        start = job.computed + hit.num_tokens + num_external
        num_new = 0
        if not is_load:
            num_new = self._settle(job, start, self._chunk(len(job.tokens) - start, budget))
            if not num_new:
                return None
        ask = Ask(
            key=job.key,
            num_new_tokens=num_new,
            num_computed_tokens=job.computed,
            num_hit_tokens=hit.num_tokens,
            junction=hit.junction if is_looked_up else None,
            num_external_tokens=num_external,
            num_lookahead_tokens=0 if is_load else self._config.num_lookahead_tokens,
            num_in_flight_tokens=job.in_flight,
            delay_commit=is_load,
            loading_groups=self._loading_groups() if is_load else (),
            full_sequence_must_fit=self._config.full_sequence_must_fit,
            is_waiting=bool(self._running),
        )
        if not self._pair.run("allocate", [ask], self._random.randint(0, 3) if is_load else 0):
            return None
        self._waiting.popleft()
        job.computed, job.local = start, hit.num_tokens
        if is_load:
            self._loading.append(job)
            return 0
        job.is_running = True
        self._running.append(job)
        self._put(step, job, num_new)
        return num_new

    def _external(self, job: Job, hit: Hit) -> tuple[int, bool]:
        """Return how many tokens a connector brings, and whether the request waits for them.

        They come after the whole blocks of the hit, and a hit that ends inside a block is kept
        unless they reach further. States are loaded with room to spare: the engine counts a block
        too few for them, and then dies.
        """
        config, random = self._config, self._random
        unit = config.alignment
        num_slots = len(job.tokens) + config.num_lookahead_tokens
        room = sum(-(-num_slots // group.block_size) for group in config.groups)
        room += (2 + config.num_draft_tokens) * len(config.groups)
        is_tight = config.state_block_size is not None and self._pair.num_free_blocks < room
        if not config.loads or is_tight or self._chance(0.5):
            return 0, False
        is_load = self._chance(0.5)
        inside = hit.num_tokens % unit
        longest = len(job.tokens) - (hit.num_tokens - inside) - (not is_load)
        wanted = random.randint(0, max(longest, 0))
        if self._chance(0.6):
            wanted -= wanted % unit
        if wanted <= inside:
            return 0, False
        return wanted, is_load

    def _loading_groups(self) -> tuple[int, ...]:
        """Return the groups that a connector fills: mostly all of them."""
        groups = range(len(self._config.groups))
        return tuple(group for group in groups if not self._chance(0.2))

    def _finish_loads(self) -> None:
        for job in [job for job in self._loading if self._chance(0.4)]:
            self._loading.remove(job)
            self._waiting.appendleft(job)
            if self._chance(0.15):
                self._fail_load(job)
                continue
            self._pair.run("commit", job.key, job.computed)
            if job.computed == len(job.tokens):
                self._roll_back(job, 1)

    def _fail_load(self, job: Job) -> None:
        """Some blocks did not arrive: keep what lies before them, which takes a single group."""
        unit = self._config.alignment
        valid = self._random.randint(0, job.computed // unit) * unit
        # Until now nothing was found after the local hit, so all of that may be zeroed.
        self._pair.run("zero_again", job.key, max(valid, job.local))
        if len(self._config.groups) > 1 or valid == 0:
            job.computed = 0
            self._pair.run("preempt", job.key)
            return
        self._roll_back(job, job.computed - valid)
        self._pair.run("commit", job.key, valid)
        if job.computed == len(job.tokens):
            self._roll_back(job, 1)

    def _roll_back(self, job: Job, num_tokens: int) -> None:
        if num_tokens:
            job.computed -= num_tokens
            self._pair.run("roll_back", job.key, job.computed)

    # ---- after scheduling ------------------------------------------------------------------

    def _take(self, step: Step) -> None:
        """Drain copies and blocks to zero; the copies' ends are held until it is safe."""
        label = self._label()
        copies, _ = self._pair.run("take_work", label, self._config.frees_copies)
        if not copies or not self._config.frees_copies:
            return
        if self._config.defers_frees:
            step.labels.append(label)
        else:
            self._pair.run("free_blocks", label)

    def _label(self) -> int:
        self._num_labels += 1
        return self._num_labels

    def _advance(self, step: Step) -> None:
        """Count the step as computed; with steps in flight, its outputs as placeholders."""
        for part in step.parts:
            job = part.job
            job.is_scheduled = False
            job.computed += part.num_tokens
            job.in_flight += part.num_tokens
            part.samples = job.computed >= len(job.tokens) + job.placeholders
            if part.samples and self._config.steps_in_flight:
                job.placeholders += 1 + part.num_drafts
                job.drafts = self._config.num_draft_tokens

    # ---- outputs ---------------------------------------------------------------------------

    def _process(self, step: Step) -> None:
        for label in step.labels:
            self._pair.run("free_blocks", label)
        for part in step.parts:
            self._receive(part)

    def _receive(self, part: Part) -> None:
        job = part.job
        job.in_flight -= part.num_tokens
        is_stale = job.stale > 0
        if is_stale:
            job.stale -= part.num_tokens
        if job.is_gone or (is_stale and job.drops_stale) or not part.samples:
            return
        num_accepted = self._random.randint(0, part.num_drafts)
        if not is_stale:
            self._reject(job, part.num_drafts - num_accepted)
        tokens = self._requests.sample(1 + num_accepted)
        tokens = tokens[: job.num_prompt + job.max_output - len(job.tokens)]
        is_last = len(job.tokens) + len(tokens) >= job.num_prompt + job.max_output
        self._append(job, tokens, is_stale=is_stale, is_last=is_last)
        if is_last:
            self._finish(job)

    def _reject(self, job: Job, num_rejected: int) -> None:
        if job.placeholders:
            job.placeholders -= num_rejected
        if job.computed:
            self._roll_back(job, num_rejected)

    def _append(self, job: Job, tokens: tuple[int, ...], *, is_stale: bool, is_last: bool) -> None:
        if self._config.decodes_in_batches and job.is_running and not is_last:
            (job.pending_token,) = tokens
            return
        job.tokens += tokens
        self._pair.run("extend", job.key, tokens)
        if not self._config.steps_in_flight:
            job.drafts = self._random.randint(0, self._config.num_draft_tokens)
            return
        if not is_stale:
            job.placeholders -= len(tokens)
        if job.is_running:
            self._pair.run("commit", job.key, job.computed - job.placeholders)

    def _finish(self, job: Job) -> None:
        """Free a request's blocks, or have them freed when no step in flight can write them."""
        job.is_gone = True
        if job.is_running:
            self._running.remove(job)
        else:  # Preempted with its last token in flight; it may be loading by now.
            (self._loading if job in self._loading else self._waiting).remove(job)
        job.is_running = False
        self._requests.remember(tuple(job.tokens), job.request.extra)
        if self._config.loads:
            self._pair.run("free_skipped", job.key, max(0, job.computed - job.in_flight))
        if self._config.defers_frees and job.in_flight and self._steps:
            label = self._label()
            self._pair.run("pop_blocks", job.key, label)
            self._steps[-1].labels.append(label)
        else:
            self._pair.run("release", [job.key])

    # ---- between steps ---------------------------------------------------------------------

    def _disturb(self) -> None:
        """Now and then: abort, lose blocks, run dry, reset."""
        if self._chance(0.03) and (self._running or self._waiting):
            self._finish(self._random.choice([*self._running, *self._waiting]))
        if self._chance(0.03) and self._running:
            self._lose_blocks(self._random.choice(self._running))
        if self._chance(0.01):
            self._is_draining = True
        if self._chance(0.004):
            self._restart()
        elif self._chance(0.004):
            self._pair.run("reset")

    def _lose_blocks(self, job: Job) -> None:
        """Forget a tail of blocks; the request usually ends with an error."""
        tables = self._pair.last_tables[job.key]
        group = self._random.randrange(len(tables))
        first = self._random.randint(0, max(0, len(tables[group]) - 1))
        positions = [(job.key, group, index) for index in range(first, len(tables[group]))]
        self._pair.run("forget", positions)
        if self._chance(0.7):
            self._finish(job)

    def _restart(self) -> None:
        """Preempt everything and forget everything, as after a change of weights."""
        if self._config.defers_frees:
            return
        for job in self._running[::-1]:
            self._preempt(job, Step(), drops_stale=True)
        self._pair.run("reset")

    def _unlock(self, step: Step) -> None:
        """Start again after running dry; drop a request that can never be served."""
        if step.parts or self._steps or self._loading:
            self._num_idle_steps = 0
            return
        self._num_idle_steps += 1
        if self._running or self._waiting:
            if self._num_idle_steps > 3:
                self._finish((self._running or self._waiting)[0])
        elif self._is_draining:
            self._is_draining = False
            if self._chance(0.5):
                self._pair.run("reset")
