"""Calls in flight: who was sent where, until Ray, a replica or the clock says that it has ended.

    Ray sends it            `on_request_completed` ends it
    somebody else sends it  it ends when its prefill should have ended, unless its replica says
                            that it has as many in flight as were sent there

Under direct streaming nobody tells of an end. Invariant: each call has at most one booking in the
router, under a name of its own; Ray gives the calls within one request one id.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from kvbraid.ids import PodId
from kvbraid.integrations.replicas.metadata import ReplicaLoad
from kvbraid.policy import Decision, Router


@dataclass(slots=True)
class InFlightCall:
    """A call that is booked; `by_ray` says that Ray will tell of its end."""

    call_id: str
    prefilled_at: float
    by_ray: bool = False


class Calls:
    """The calls in flight of one process, by the names of their bookings."""

    def __init__(self, router: Router, grace_s: float) -> None:
        self._router = router
        self._grace_s = grace_s
        self._calls: dict[str, InFlightCall] = {}
        self._names: defaultdict[str, list[str]] = defaultdict(list)  # By the id of Ray.
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._calls)

    def new_name(self, call_id: str) -> str:
        """Return a name that no other call has."""
        return f"{call_id}.{next(self._numbers)}"

    def book(self, name: str, call_id: str, decision: Decision, now: float) -> None:
        """Note a decision; asked about again, a call has only its last one."""
        view, place = decision.view, decision.place
        seconds = view.wait[place] + view.seconds.prefill(view.tokens, decision.resumable)
        known = self._calls.get(name)
        if known is not None:
            known.prefilled_at = now + seconds
            return
        self._calls[name] = InFlightCall(call_id, now + seconds)
        self._names[call_id].append(name)

    def sent(self, name: str) -> None:
        """Note that Ray sends the call, and will tell of its end."""
        known = self._calls.get(name)
        if known is not None:
            known.by_ray = True

    def completed(self, call_id: str, pod: PodId, now: float) -> bool:
        """End a call of this id at this replica; say whether there was one.

        A replica that has rejected a call completes it, too; it may be booked elsewhere by then.
        """
        names = self._names.get(call_id, ())
        name = next((name for name in names if self._pod(name) == pod), None)
        if name is None:
            return False
        self._end(name, self._router.end, now)
        return True

    def gone(self, pod: PodId, now: float) -> None:
        """Release the calls of a replica that is gone."""
        for name in list(self._calls):
            if self._pod(name) == pod:
                self._end(name, self._router.fail, now)

    def sweep(self, load: Callable[[PodId], ReplicaLoad | None], now: float) -> None:
        """End what nobody will tell of; `load` is what each replica has reported."""
        unreported: defaultdict[PodId, list[str]] = defaultdict(list)
        for name, call in list(self._calls.items()):
            booking = self._router.booking(name)
            if booking is None:  # Released by time, or by a limit.
                self._forget(name)
            elif not call.by_ray:
                unreported[booking.rank[0]].append(name)
        for pod, names in unreported.items():
            said = load(pod)
            most = len(names) - (said.running + said.waiting if said is not None else 0)
            due = [n for n in names if now >= self._calls[n].prefilled_at + self._grace_s]
            for name in due[: max(most, 0)]:
                self._end(name, self._router.end, now)

    def _pod(self, name: str) -> PodId | None:
        booking = self._router.booking(name)
        return None if booking is None else booking.rank[0]

    def _end(self, name: str, end: Callable[..., bool], now: float) -> None:
        end(name, now=now)
        self._forget(name)

    def _forget(self, name: str) -> None:
        call_id = self._calls.pop(name).call_id
        self._names[call_id].remove(name)
        if not self._names[call_id]:
            del self._names[call_id]

    def check_integrity(self) -> None:
        """Assert that names and calls agree. For tests."""
        named = [name for names in self._names.values() for name in names]
        assert sorted(named) == sorted(self._calls)
        assert all(self._names.values())
