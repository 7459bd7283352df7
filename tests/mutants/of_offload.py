"""Bugs of offload: what is copied too early, believed too early, or never taken back."""

from typing import Final

from tests.mutants.mutant import Edit, Mutant

ROOM: Final = "python/kvbraid/transfer/offload"
UNIT: Final = "tests/unit/transfer/offload"

OF_OFFLOAD: Final = (
    Mutant(
        "stored-before-written",
        "stores: a block is copied before the step has run that writes it",
        (
            Edit(
                f"{ROOM}/storing.py",
                "if store.slot or store.step > self._last_ended:",
                "if store.slot:",
            ),
        ),
        (f"{UNIT}/test_storing.py::test_what_became_findable_is_stored_when_its_step_has_run",),
    ),
    Mutant(
        "one-rank-is-enough",
        "ranks: a block counts as stored once a first rank has stored its part",
        (
            Edit(
                f"{ROOM}/tracking.py",
                "            if not known.unanswered:\n",
                "            if len(known.unanswered) < 2:\n",
            ),
        ),
        (f"{UNIT}/test_storing.py::test_a_block_counts_once_every_rank_has_stored_its_part",),
    ),
    Mutant(
        "free-when-answered",
        "ranks: what a job uses is free once it was answered, though a call still hangs",
        (
            Edit(
                f"{ROOM}/tracking.py",
                "        if result.is_over:\n            known.unfinished.remove(rank)",
                "        known.unfinished.remove(rank)",
            ),
        ),
        (
            f"{UNIT}/test_storing.py::"
            "test_a_store_that_hangs_keeps_its_blocks_and_slots_until_it_is_over",
            "tests/ghost/real/test_real_parts.py::"
            "test_what_comes_back_from_files_and_host_memory_is_what_was_stored",
        ),
    ),
    Mutant(
        "written-garbage-stays",
        "retraction: a record that was being written when its block turned out bad is not dropped",
        (
            Edit(
                f"{ROOM}/writing.py",
                "self._to_drop.extend(write.name for write in writes if write.is_bad)",
                "self._dropping.difference_update(w.name for w in writes if w.is_bad)",
            ),
        ),
        (f"{UNIT}/test_retracting.py::test_a_write_under_way_is_followed_by_a_drop",),
    ),
    Mutant(
        "garbage-not-forgotten",
        "retraction: `forget_blocks` does nothing",
        (
            Edit(
                f"{ROOM}/manager.py",
                "        blocks = {*block_ids}\n",
                "        blocks, block_ids = set[BlockId](), ()\n",
            ),
        ),
        (
            f"{UNIT}/test_retracting.py"
            "::test_what_was_copied_from_a_block_is_retracted_from_every_tier",
            "tests/unit/transfer/test_tiered_loads.py"
            "::test_nothing_is_loaded_of_what_was_computed_from_garbage",
        ),
    ),
    Mutant(
        "tiers-not-reset",
        "reset: after a change of weights, tiers keep what they have",
        (
            Edit(
                f"{ROOM}/manager.py",
                "        self._lookups.close()\n        self._loads.reset()\n",
                "        return\n        self._loads.reset()\n",
            ),
        ),
        (f"{UNIT}/test_resetting.py::test_all_that_tiers_had_is_forgotten_told_and_dropped",),
    ),
    Mutant(
        "records-keep-their-names",
        "reset: what new weights compute is written where engines with the old ones find it",
        (Edit(f"{ROOM}/manager.py", "        tiers.rename_records()\n", ""),),
        (
            f"{UNIT}/test_resetting.py::"
            "test_a_later_engine_finds_nothing_of_what_was_computed_with_other_weights",
            f"{UNIT}/test_resetting.py::test_records_of_others_are_not_taken_in_any_more",
        ),
    ),
    Mutant(
        "stored-before-removed",
        "events: a slot's new block is announced before the removal of the one that was in it",
        (
            Edit(
                f"{ROOM}/announcing.py",
                "            self._events.extend(removals)\n        for block in blocks:\n",
                "        for block in blocks:\n",
            ),
            Edit(
                f"{ROOM}/announcing.py",
                "            self._run.append(block)\n",
                "            self._run.append(block)\n        self._end_run()\n"
                "        self._events.extend(removals)\n",
            ),
        ),
        (f"{UNIT}/test_storing.py::test_a_full_host_loses_what_was_used_longest_ago",),
    ),
)
