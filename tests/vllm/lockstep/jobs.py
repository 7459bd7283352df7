"""What the made-up scheduler knows of its requests and of the steps on their way.

Numbers are tokens. Nothing here runs an operation.
"""

from dataclasses import dataclass, field

from tests.vllm.lockstep.side import NewRequest


@dataclass(slots=True, eq=False)
class Job:
    """One request, as the scheduler sees it."""

    request: NewRequest
    max_output: int
    tokens: list[int]
    computed: int = 0  # Optimistic: counts steps that are still in flight, drafts included.
    in_flight: int = 0
    placeholders: int = 0  # Outputs that steps in flight will bring.
    drafts: int = 0  # To be verified by the next step.
    stale: int = 0  # Of `in_flight`: scheduled before a preemption.
    drops_stale: bool = False
    junction: int = 0
    local: int = 0  # Of the tokens of a load: what was there before.
    skips_lookup: bool = False  # As a client asks who wants the prompt's log-probabilities.
    is_running: bool = False
    is_gone: bool = False
    pending_token: int | None = None  # Sampled; the next batch of decodes appends it.
    is_scheduled: bool = False  # In the step that is being put together.

    @property
    def key(self) -> int:
        return self.request.key

    @property
    def num_prompt(self) -> int:
        return len(self.request.tokens)

    @property
    def is_surely_complete(self) -> bool:
        """Whether steps in flight bring the last token even if all their drafts are rejected."""
        sure = self.computed + 2 - self.placeholders
        return self.placeholders > 0 and sure >= self.num_prompt + self.max_output


@dataclass(slots=True)
class Part:
    """One request's part of a step, and what its output is about."""

    job: Job
    num_tokens: int
    num_drafts: int = 0
    samples: bool = False


@dataclass(slots=True)
class Step:
    """One step: its parts, and the labels of blocks that may be freed when it is done."""

    parts: list[Part] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
