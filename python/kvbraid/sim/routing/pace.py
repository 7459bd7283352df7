"""How long a simulated pod takes: prefills by `kvbraid.policy.Seconds`, answers by this formula.

    answer of k tokens  =  k * (step_s + running * tokens * read_s)

`running` are the requests that decode at its beginning, this one included, and all count as long
as this one, `tokens`. A roofline gives the coefficients: prefill is bound by compute, decoding by
memory: each step reads all weights that a token passes through, and what each request has cached.
"""

from dataclasses import dataclass
from typing import Final

from kvbraid.policy import Seconds
from kvbraid.sim.traces.models import SimulatedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What one accelerator reaches, not what its data sheet says: FLOP and bytes a second.

    `fixed_s` is what any step takes.
    """

    flops: float
    bandwidth: float
    fixed_s: float = 0.012


H100: Final = Hardware(flops=0.45 * 989.5e12, bandwidth=0.8 * 3.35e12)
"""45 % of the peak in bf16 and 80 % of the bandwidth: what simulators are fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The coefficients of one model on one kind of pod, in seconds.

    The defaults are those of `Seconds`: a 32B model on two H100, with 256 KiB a cached token.
    """

    prefill: Seconds = Seconds()  # noqa: RUF009 - frozen
    step_s: float = 0.024
    read_s: float = 5e-8

    @classmethod
    def of_model(cls, model: SimulatedModel, hardware: Hardware = H100) -> "Pace":
        """Return the roofline of a model on as many accelerators as it has ranks.

        A weight in bf16 has two bytes and takes two FLOP a token, so one figure serves for both.
        The experts that only other requests of a batch pass through are left out, and so are the
        windows and states, which do not grow with the prompt.
        """
        bandwidth = hardware.bandwidth * model.num_ranks
        full = [group.block_size for group in model.topology.groups if group.kind.is_full]
        token_bytes = model.num_ranks * sum(model.block_bytes / size for size in full)
        seconds = Seconds.of_model(
            model.cost, flops=hardware.flops * model.num_ranks, fixed=hardware.fixed_s
        )
        return cls(
            prefill=seconds,
            step_s=hardware.fixed_s + model.cost.per_token / bandwidth,
            read_s=token_bytes / bandwidth,
        )

    def answer(self, num_outputs: int, num_tokens: int, running: int) -> float:
        """Return the seconds of an answer after its first token."""
        return num_outputs * (self.step_s + running * num_tokens * self.read_s)
