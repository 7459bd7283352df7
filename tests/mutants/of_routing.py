"""Bugs of routing: what a rank is charged for, what is booked there, and who is told what."""

from typing import Final

from tests.mutants.mutant import Edit, Mutant

COSTS: Final = "python/kvbraid/policy/costs.py"
BOOKINGS: Final = "python/kvbraid/policy/bookings.py"
ENGINE_LOAD: Final = "python/kvbraid/policy/engine_load.py"
ROUTER: Final = "python/kvbraid/policy/router.py"
STANDING: Final = "python/kvbraid/policy/standing.py"
BREAKERS: Final = "python/kvbraid/gateway/breakers.py"
ENDS: Final = "python/kvbraid/gateway/ends.py"
QUEUE: Final = "python/kvbraid/gateway/queue.py"
USAGE: Final = "python/kvbraid/gateway/usage.py"
PROMISED: Final = "crates/core/src/fleet/promised/mod.rs"
UNIT: Final = "tests/unit/policy"

OF_ROUTING: Final = (
    Mutant(
        "promise-not-fulfilled",
        "promises: what the events of a rank have confirmed goes on counting as on its way",
        (Edit(PROMISED, "for id in fulfilled {", "for id in fulfilled.into_iter().take(0) {"),),
        ("tests/differential/test_promises.py::test_what_is_promised_is_the_model_s",),
    ),
    Mutant(
        "booked-twice",
        "bookings: a request that is asked about again keeps its first booking, too",
        (Edit(ROUTER, "if self._drop(name, now):", "if False:"),),
        (f"{UNIT}/test_router.py::test_a_request_asked_about_three_times_is_booked_once",),
    ),
    Mutant(
        "wait-stands-still",
        "bookings: a rank's wait does not shrink while it works",
        (Edit(BOOKINGS, "done, most = now - self.since,", "done, most = 0.0,"),),
        (f"{UNIT}/test_bookings.py::test_a_wait_is_what_was_booked_less_what_has_passed",),
    ),
    Mutant(
        "urgent-waits",
        "bookings: an urgent request waits for all that came before it",
        (Edit(BOOKINGS, "self.urgent |= booking.priority != self.front.priority", "pass"),),
        (f"{UNIT}/test_bookings.py::test_the_more_urgent_does_not_wait_for_the_others",),
    ),
    Mutant(
        "displacement-of-resumable",
        "costs: displacement is charged for what cannot be resumed from, though it is present",
        (
            Edit(
                COSTS,
                "displaced = displaces * (missing - seconds.fixed)",
                "displaced = displaces * (prefill - seconds.fixed)",
            ),
        ),
        (f"{UNIT}/test_costs.py::test_costs_are_the_sums_of_their_terms",),
    ),
    Mutant(
        "ours-counted-twice",
        "load of engines: what this router has sent counts as sent by others, too",
        (
            Edit(
                ENGINE_LOAD,
                "others = seen if before is None else _Others(*map(min, seen, before.seen))",
                "others = _Others(load.running + load.waiting, load.waiting)",
            ),
        ),
        (f"{UNIT}/test_engine_load.py::test_our_own_requests_are_not_counted_twice",),
    ),
    Mutant(
        "unready-chosen",
        "who may be chosen: a pod whose health check fails gets requests like any other",
        (Edit(STANDING, "if not standing.is_ready}", "if None is standing.is_ready}"),),
        (f"{UNIT}/test_router.py::test_a_rank_that_must_get_nothing_gets_nothing",),
    ),
    Mutant(
        "first-come",
        "queue: the request that came first is sent first, however urgent another one is",
        (Edit(QUEUE, "place = _Place(priority, next", "place = _Place(0, next"),),
        (
            "tests/unit/gateway/test_queue.py"
            "::test_the_most_urgent_is_sent_first_and_nobody_waits_beside_room",
        ),
    ),
    Mutant(
        "failures-not-in-a-row",
        "pods that fail: an answer between two failures changes nothing",
        (Edit(BREAKERS, "self._failed.pop(pod, None)\n\n", "pass\n\n"),),
        ("tests/unit/gateway/test_breakers.py::test_a_pod_rests_after_so_many_failures_in_a_row",),
    ),
    Mutant(
        "passed-over-is-well",
        "pods that fail: a pod that another data plane passed over goes on being named to it",
        (Edit(ENDS, "elif rank is not None and end.is_passed_over:", "elif False:"),),
        (
            "tests/service/test_ends.py"
            "::test_a_pod_that_is_passed_over_in_a_row_is_left_alone_and_one_that_serves_is_not",
        ),
    ),
    Mutant(
        "first-usage",
        "usage: of a stream that tells it several times, the first one counts",
        (Edit(USAGE, "return int(found[-1])", "return int(found[0])"),),
        ("tests/unit/gateway/test_usage.py::test_the_last_one_of_a_stream_counts",),
    ),
)
