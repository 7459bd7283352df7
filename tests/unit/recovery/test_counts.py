"""The counts of a prompt against a list with the origin of every single token."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kvbraid.errors import InvalidValueError
from kvbraid.recovery.ledger.counts import Counts, PromptCounts


def test_resumption_after_the_report_changes_nothing() -> None:
    counts = PromptCounts(64)
    counts.started(0)
    reported = counts.report()
    counts.computed(64)
    counts.started(63, 1)
    assert counts.now() == reported == Counts(0, 0, 64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PromptCounts(0), "num_prompt_tokens is 0; expected an integer of at least 1"),
        (
            lambda: PromptCounts(1).started(-1),
            "num_local_tokens is -1; expected an integer of at least 0",
        ),
        (lambda: PromptCounts(1).started(0, -1), "num_loaded_tokens is -1"),
        (lambda: PromptCounts(1).computed(-1), "num_tokens is -1"),
        (lambda: PromptCounts(1).recovered(-1, 0), "resume is -1"),
        (lambda: PromptCounts(1).recovered(0, -1), "num_recomputed_tokens is -1"),
    ],
)
def test_negative_counts_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        call()


TOKENS = st.integers(0, 14)


class Prompt(RuleBasedStateMachine):
    """The model is one letter per prompt token, a dot where the request does not have it."""

    @initialize(num_tokens=st.integers(1, 12))
    def begin(self, num_tokens: int) -> None:
        self.counts = PromptCounts(num_tokens)
        self.origins = ["."] * num_tokens
        self.reported: Counts | None = None
        self.recomputed = 0

    def fill(self, end: int, origin: str) -> None:
        for token in range(min(end, len(self.origins))):
            if self.origins[token] == ".":
                self.origins[token] = origin

    def lose(self, start: int) -> None:
        for token in range(start, len(self.origins)):
            self.origins[token] = "."

    @rule(num_local=TOKENS, num_loaded=TOKENS)
    def start(self, num_local: int, num_loaded: int) -> None:
        self.counts.started(num_local, num_loaded)
        self.lose(num_local)
        self.fill(num_local, "cached")
        self.fill(num_local + num_loaded, "external")

    @rule(num_tokens=TOKENS)
    def compute(self, num_tokens: int) -> None:
        self.counts.computed(num_tokens)
        self.fill(num_tokens, "computed")

    @rule(resume=TOKENS, num_tokens=TOKENS)
    def recover(self, resume: int, num_tokens: int) -> None:
        self.counts.recovered(resume, num_tokens)
        self.lose(resume)
        self.recomputed += num_tokens

    @rule()
    def report(self) -> None:
        counts = self.counts.report()
        assert (counts is None) == (self.reported is not None)
        self.reported = self.reported or counts

    @invariant()
    def every_token_is_counted_once(self) -> None:
        if not hasattr(self, "counts"):
            return
        self.counts.check_integrity()
        *origins, _ = self.origins
        cached, external = origins.count("cached"), origins.count("external")
        expected = Counts(cached, external, len(self.origins) - cached - external)
        assert self.counts.now() == (self.reported or expected)
        assert self.counts.recomputed == self.recomputed


TestPrompt = Prompt.TestCase
