"""A gateway's router: each request goes where it costs least, and every report is passed on.

The engines are simulated here: a prefill takes as long as the router expects, and nothing is told
of it. What was sent is enough to send the next request of a session to the same pod.
"""

from random import SystemRandom

from kvbraid import FleetIndex, GroupSpec, PodId, Request, SpecKind, Topology
from kvbraid.policy import Router, Seconds, Standing

PODS = (PodId("a"), PodId("b"), PodId("c"))


def make_router() -> Router:
    """Return a router of three pods. A real gateway has a Subscriber that feeds the index."""
    index = FleetIndex()
    attention = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)
    window = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=1024)
    for pod in PODS:
        index.register(pod, model="m", topology=Topology(groups=(attention, window)))
    return Router(index, seconds={"m": Seconds(per_token=1 / 16_000)}, chance=SystemRandom())


if __name__ == "__main__":
    router, now = make_router(), 0.0
    router.set_standing((PODS[2], 0), Standing(drains=True))  # It is about to be shut down.
    prompts = {
        session: list(range(session * 9_000, session * 9_000 + 6_000)) for session in (1, 2)
    }
    for turn in range(3):
        for session, prompt in prompts.items():
            name = f"session {session}, turn {turn}"
            request = Request(model="m", token_ids=prompt)
            decision = router.pick(name, request, now=now, session=str(session))
            pod, _ = decision.rank
            print(f"{name}: {len(prompt)} tokens, {decision.resumable} cached, to pod {pod}")
            router.first_token(name, now=now + decision.cost)
            router.end(name, now=now + decision.cost + 1)
            prompt.extend(range(turn * 500, turn * 500 + 300))  # The answer, and what comes next.
            now += 0.5
    print("booked at the end:", router.num_booked())
