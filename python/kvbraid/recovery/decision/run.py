"""What recovery knows of a request: one run, from its start to its end or its next start."""

from collections.abc import Sequence
from typing import NamedTuple

from kvbraid.ids import BlockId


class GivenBack(NamedTuple):
    """A block of the hit or the load that the run has read and given back: a window or a state has
    passed it. Or one that the run has computed and another has found.

    `copied`: the run has read it for a copy, and has written the copy: a hit inside a block."""

    group: int
    position: int
    block_id: BlockId
    copied: bool = False


class Run(NamedTuple):
    """One run of a request when a report arrives; in tokens. It is made by keywords.

    ```text
    0          num_local      start              num_processed       num_computed     num_tokens
    |-- hit ------|-- loaded ---|-- computed ------|-- in flight --------|                |
    ```
    A run starts when a request gets its first blocks, and again after a preemption. A recovery
    that goes back to `resume` tokens in place cuts the load (or the hit) there: the run computes
    from `resume` on, and what failed after it is no longer loaded.

    Attributes:
        request: The request's number in the cache.
        num_tokens: The tokens that are known: the prompt, and what was handed out after it.
        num_prompt_tokens: How many of them are the prompt.
        num_known_tokens: How many were known when the run started.
        num_local_tokens: The hit: tokens that were found in the cache.
        num_loaded_tokens: Tokens after the hit that a load fills or has filled.
        num_processed_tokens: The tokens whose steps have ended, the hit and the load included:
            the computed ones less those scheduled in all steps in flight, drafts included.
        num_computed_tokens: The tokens of all steps, those in flight included.
        delays_commit: The run's blocks are not findable yet: they are committed when the load is
            known to be good.
        given_back: Blocks of the load, and if the engine notes them of the hit, that are no longer
            in the tables; and, if it notes them, blocks that the run has computed and others have
            found. One that was handed out again since goes by the number of what it held
            (`former` in `assess`).
        ended_tables: For a run that has ended and that a report may still mean: its block tables;
            what was handed out again since goes by the number of what it held, or is the null
            block if no report can mean it. None for any other run.
    """

    request: int
    num_tokens: int
    num_prompt_tokens: int
    num_known_tokens: int
    num_local_tokens: int
    num_loaded_tokens: int
    num_processed_tokens: int
    num_computed_tokens: int
    delays_commit: bool = False
    given_back: Sequence[GivenBack] = ()
    ended_tables: Sequence[Sequence[BlockId]] | None = None

    @property
    def start(self) -> int:
        """The first token that the run computes itself: the last token is never loaded alone."""
        return min(self.num_local_tokens + self.num_loaded_tokens, self.num_tokens - 1)

    @property
    def has_ended(self) -> bool:
        """Whether the request has given its blocks back."""
        return self.ended_tables is not None
