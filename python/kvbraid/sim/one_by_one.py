"""One request at a time, from its first step to its last, with its output known in advance."""

from collections.abc import Callable, Sequence

from kvbraid.cache import CacheManager, Events
from kvbraid.errors import TooLargeError
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys
from kvbraid.scheduler import Scheduler, SchedulerOptions, StepResult


class OneByOne:
    """Runs requests over a cache; `publish` is called with the events of a step that has any."""

    def __init__(
        self,
        cache: CacheManager,
        *,
        max_step_tokens: int,
        publish: Callable[[Events], object] = lambda _: None,
    ) -> None:
        options = SchedulerOptions(max_step_tokens=max_step_tokens, max_running=1)
        self._scheduler = Scheduler(cache, options, publish=publish)

    def run(
        self,
        prompt: Sequence[int],
        outputs: Sequence[int] = (),
        extra: ExtraKeys = NO_EXTRA_KEYS,
        *,
        lora_id: int | None = None,
    ) -> int:
        """Run one request to its end and return the tokens that it reused.

        Raises TooLargeError when the pool is short of blocks, InvalidValueError for an empty
        prompt; what the request did until then is published.
        """
        count = len(outputs)
        self._scheduler.add(prompt, max_new_tokens=count, extra=extra, lora_id=lora_id)
        return self._finish(outputs)

    def finish(self, request: int, prompt: Sequence[int], outputs: Sequence[int] = ()) -> int:
        """Run a request that the cache already knows, in the same way as `run`."""
        self._scheduler.add(prompt, max_new_tokens=len(outputs), number=request)
        return self._finish(outputs)

    def _finish(self, outputs: Sequence[int]) -> int:
        rest, hit = list(reversed(outputs)), 0
        while self._scheduler.num_requests:
            step = self._scheduler.schedule()
            assert step is not None, "nothing is loaded, so there is something to do"
            tokens = {part.request: [rest.pop()] for part in step.scheduled if part.samples}
            for output in self._scheduler.update(step, StepResult(tokens=tokens)):
                if output.error:
                    raise TooLargeError(
                        f"request {output.request} does not fit into the free blocks: enlarge the "
                        "pool"
                    )
                hit = output.prompt.cached if output.prompt else hit
        return hit
