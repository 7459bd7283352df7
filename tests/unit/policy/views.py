"""Views with the numbers that a test names, and the same for all others."""

from collections.abc import Sequence
from random import Random

from kvbraid.fleet import Request
from kvbraid.ids import PodId
from kvbraid.policy import FleetView, Seconds
from msgspec.structs import replace

SECONDS = Seconds(fixed=0.01, per_token=1e-4, per_pair=0.0)


def view(
    *,
    tokens: int = 1000,
    num: int = 2,
    resumable: Sequence[int] = (),
    present: Sequence[int] = (),
    wait: Sequence[float] = (),
    running: Sequence[int] = (),
    waiting: Sequence[int] = (),
    waiting_tokens: Sequence[int] = (),
    busy: float = 0.0,
    rate: float = 0.0,
    seconds: Seconds = SECONDS,
) -> FleetView:
    """Return a view of so many candidates; a column that is left out has only zeros."""
    zeros = [0] * num
    resumable = resumable or zeros
    return FleetView(
        request=Request(model="m", token_ids=range(tokens)),
        tokens=tokens,
        ranks=[(PodId(f"p{number}"), 0) for number in range(num)],
        resumable=resumable,
        present=present or resumable,
        loaded=zeros,
        wait=wait or zeros,
        others=zeros,
        running=running or zeros,
        running_tokens=running or zeros,
        waiting=waiting or zeros,
        waiting_tokens=waiting_tokens or zeros,
        usage=[0.0] * num,
        busy=busy,
        rate=rate,
        seconds=seconds,
        chance=Random(1),
    )


def of_prompt(seen: FleetView, token_ids: Sequence[int]) -> FleetView:
    """Return the same view for another prompt of the same length."""
    return replace(seen, request=Request(model="m", token_ids=token_ids))
