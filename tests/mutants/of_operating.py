"""Bugs of operation: restarts, keys, reloads, Kubernetes, and what an operator is shown."""

from typing import Final

from tests.mutants.mutant import Edit, Mutant

SERVICE: Final = "python/kvbraid/service"
SNAPSHOTS: Final = f"{SERVICE}/snapshots.py"
KUBERNETES: Final = f"{SERVICE}/kubernetes"
TESTS: Final = "tests/service"
FOLLOWING: Final = f"{TESTS}/kubernetes/test_following.py"

OF_OPERATING: Final = (
    Mutant(
        "progress-not-compared",
        "snapshots: a file that does not say how far its ranks were settled is loaded",
        (Edit(SNAPSHOTS, "if len(progress) != num_ranks:", "if len(progress) > num_ranks:"),),
        (
            f"{TESTS}/test_snapshots.py"
            "::test_a_file_that_does_not_say_how_far_it_is_settled_is_refused",
        ),
    ),
    Mutant(
        "secret-for-all",
        "snapshots: everybody on the machine can read the secret",
        (Edit(SNAPSHOTS, "mode=0o600", "mode=0o644"),),
        (f"{TESTS}/test_snapshots.py::test_the_secret_is_drawn_once_and_only_its_owner_reads_it",),
    ),
    Mutant(
        "half-a-reload",
        "reload: if a pod is refused late, those before it stay changed",
        (Edit(f"{SERVICE}/registry.py", "self._restore(before)", "pass"),),
        (
            f"{TESTS}/test_reloading.py"
            "::test_if_a_pod_is_refused_late_the_others_become_what_they_were",
        ),
    ),
    Mutant(
        "any-key",
        "keys: a key opens the routes of every right",
        (
            Edit(
                f"{SERVICE}/http/access.py",
                "if right not in found.rights:",
                "if right not in RIGHTS:",
            ),
        ),
        (f"{TESTS}/test_keys.py::test_a_key_opens_the_routes_of_its_right_and_no_other",),
    ),
    Mutant(
        "revoked-later",
        "keys: a key that is revoked while a body arrives opens its route once more",
        (Edit(f"{SERVICE}/http/app.py", "if rules is not self.rules:  #", "if False:  #"),),
        (f"{TESTS}/test_keys.py::test_a_key_that_is_revoked_while_a_body_arrives_is_refused",),
    ),
    Mutant(
        "shrinking-believed",
        "Kubernetes: a list that shrinks to a few is believed at once, unless it is empty",
        (
            Edit(
                f"{KUBERNETES}/following.py",
                "if 2 * num_found >= num_ready:",
                "if 2 * num_found >= min(num_ready, 1):",
            ),
        ),
        (f"{TESTS}/kubernetes/test_bad_days.py::test_a_list_that_shrinks_to_a_few_is_held_down",),
    ),
    Mutant(
        "too-old-again",
        "Kubernetes: after 410 the same version is asked for again, and nothing is listed",
        (
            Edit(
                f"{KUBERNETES}/following.py",
                'not in {"failed", "slow"}:',
                'not in {"failed", "slow", "expired"}:',
            ),
        ),
        (f"{FOLLOWING}::test_a_version_that_is_too_old_makes_a_new_list_which_is_compared",),
    ),
    Mutant(
        "terminating-gets-more",
        "Kubernetes: an endpoint that terminates gets new requests",
        (
            Edit(
                f"{KUBERNETES}/endpoint_slices.py",
                " and conditions.terminating is not True",
                "",
            ),
        ),
        (f"{FOLLOWING}::test_endpoints_come_drain_and_go",),
    ),
    Mutant(
        "one-group-is-enough",
        "strips: a boundary that any group accepts is drawn as common to all",
        (Edit(f"{SERVICE}/strips.py", "reduce(set.intersection,", "reduce(set.union,"),),
        (f"{TESTS}/test_strips.py::test_common_boundaries_are_those_that_every_group_accepts",),
    ),
    Mutant(
        "left-out-unsaid",
        "journal: lines above the limit are left out, and nobody is told how many",
        (
            Edit(
                f"{SERVICE}/journal.py",
                "window.left_out += not may_write",
                "window.left_out += 0",
            ),
        ),
        (
            "tests/unit/service/test_journal.py"
            "::test_lines_above_the_limit_are_counted_and_the_count_is_told_after_the_period",
        ),
    ),
    Mutant(
        "clock-goes-back",
        "ladder: a clock that goes back makes intervals that are out of order",
        (
            Edit(
                f"{SERVICE}/ladder_history.py",
                "begin <= self._intervals[-1].begin",
                "begin == self._intervals[-1].begin",
            ),
        ),
        (
            "tests/unit/service/test_ladder_history.py"
            "::test_an_hour_is_kept_in_order_whatever_the_clock_does",
        ),
    ),
)
