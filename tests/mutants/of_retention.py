"""Bugs of retention by value: which policy it follows, what hints are worth, where steps end."""

from typing import Final

from tests.mutants.mutant import Edit, Mutant

CHOICE: Final = "tests/unit/cache/test_choice_of_policy.py"
PACE: Final = (
    f"{CHOICE}::test_simulated_caches_of_a_large_pool_play_and_count_no_more_than_is_paid_for"
)
FAMILIES: Final = f"{CHOICE}::test_families_are_told_apart_after_what_all_prompts_have_in_common"
TURNED: Final = (
    f"{CHOICE}::test_values_are_left_soon_after_the_traffic_turned_and_not_entered_again"
)
ENGINES: Final = f"{CHOICE}::test_a_few_requests_do_not_end_what_the_engine_does"
CHANCE: Final = f"{CHOICE}::test_policies_that_save_the_same_but_for_chance_are_not_left"
HEARD: Final = f"{CHOICE}::test_simulated_caches_hear_what_is_said_of_ends"
LENGTHS: Final = "tests/unit/cache/test_learned_lengths.py"
TRIED: Final = (
    f"{LENGTHS}::test_lengths_that_are_not_worth_a_step_are_tried_again_by_one_request_in_64"
)
LITTLE: Final = f"{LENGTHS}::test_lengths_that_come_back_but_save_little_are_not_worth_a_step"
HINTS: Final = "tests/unit/cache/test_hints.py"

ADAPTATION: Final = "crates/core/src/adaptive/choice.rs"
ALLOCATE: Final = "crates/core/src/cache/step/allocate.rs"
EVIDENCE: Final = "crates/core/src/adaptive/evidence.rs"
EVICT: Final = "crates/core/src/cache/retention/by_value/evict.rs"
RETURNS: Final = "crates/core/src/cache/retention/by_value/hints.rs"
OVERLAPS: Final = "crates/core/src/cache/retention/by_value/overlaps.rs"
SAMPLE: Final = "crates/core/src/adaptive/sample.rs"
SIMULATED: Final = "crates/core/src/adaptive/simulated_cache.rs"
SCHEDULE: Final = "crates/core/src/adaptive/replay_schedule.rs"

OF_RETENTION: Final = (
    Mutant(
        "price-of-one",
        "policy choice: what all simulated caches replay is paid for as if one replayed it",
        (
            Edit(
                SCHEDULE,
                "ratio * pace.num_caches * request.hashes.len()",
                "ratio * request.hashes.len()",
            ),
        ),
        (PACE,),
    ),
    Mutant(
        "beginning-counts",
        "policy choice: what simulated caches save at the beginning of a later window counts",
        (Edit(SCHEDULE, "counts = self.is_first || !is_beginning;", "counts = true;"),),
        (PACE,),
    ),
    Mutant(
        "first-waits",
        "policy choice: the beginning of the first recorded window does not count",
        (Edit(SCHEDULE, "counts = self.is_first || !is_beginning;", "counts = !is_beginning;"),),
        (PACE,),
    ),
    Mutant(
        "window-without-end",
        "policy choice: a recorded window that is long enough goes on being recorded",
        (Edit(SCHEDULE, "self.is_recording = self.num_recorded < FILLS * pace.fill;", ""),),
        (PACE,),
    ),
    Mutant(
        "first-block-family",
        "policy choice: the first block of a request is its family, however many have it",
        (Edit(SAMPLE, "self.num_requests / COMMON + 1", "self.num_requests"),),
        (FAMILIES,),
    ),
    Mutant(
        "all-remembered",
        "policy choice: evidence is never forgotten",
        (Edit(EVIDENCE, "keeps: 1.0 - 1.0 / memory", "keeps: 1.0 + 0.0 / memory"),),
        (TURNED,),
    ),
    Mutant(
        "chance-leads",
        "policy choice: a lead counts although chance would make it of equals",
        (
            Edit(
                EVIDENCE, "chance.max(LEAST_LEAD * self.all)", "chance.min(LEAST_LEAD * self.all)"
            ),
        ),
        (CHANCE,),
    ),
    Mutant(
        "no-veto",
        "policy choice: a policy is entered that the very last requests speak against",
        (
            Edit(
                ADAPTATION,
                "better.filter(|&best| self.short_term.lead(best, self.policy) >= 0.0)",
                "better",
            ),
        ),
        (TURNED,),
    ),
    Mutant(
        "bet-goes-on",
        "policy choice: values are not given up because of the very last requests",
        (
            Edit(
                ADAPTATION,
                "self.short_term.better(self.policy).filter(|_| is_bet)",
                "self.short_term.better(self.policy).filter(|_| is_bet && self.num_requests == 0)",
            ),
        ),
        (TURNED,),
    ),
    Mutant(
        "any-bet",
        "policy choice: the very last requests alone end any policy, not only values",
        (
            Edit(
                ADAPTATION,
                "self.short_term.better(self.policy).filter(|_| is_bet)",
                "self.short_term.better(self.policy).filter(|_| is_bet || self.since > 0)",
            ),
        ),
        (ENGINES,),
    ),
    Mutant(
        "deaf-simulated-caches",
        "policy choice: simulated caches do not hear the hints that the cache hears",
        (Edit(SIMULATED, "            hint: recorded.hint,\n", ""),),
        (HEARD,),
    ),
    Mutant(
        "stale-values",
        "policy choice: after a change, checkpoints after the first 8 192 keep their values",
        (
            Edit(
                EVICT,
                "if end == all { NO_NODE } else { end }",
                "if end == all { NO_NODE } else { 0 }",
            ),
        ),
        (
            "tests/unit/cache/test_change_of_policy.py"
            "::test_after_a_few_calls_the_order_is_as_if_all_had_been_valued_at_once",
        ),
    ),
    Mutant(
        "hints-ignored",
        "hints: the likelihood of an end is not what was said of it",
        (Edit(RETURNS, "learned * self.returns.lift(ending, node.hint)", "learned"),),
        (f"{HINTS}::test_a_first_hint_counts_as_the_probability_that_it_names",),
    ),
    Mutant(
        "evicted-never-return",
        "hints: an end comes back only if something of it is reused",
        (
            Edit(
                ALLOCATE,
                "checkpoints.note_return(request);",
                """if need.num_hit_tokens > 0 {
                checkpoints.note_return(request);
            }""",
            ),
        ),
        (f"{HINTS}::test_hints_that_tell_nothing_soon_count_for_nothing",),
    ),
    Mutant(
        "shortest-end-first",
        "hints: of the ends that a request has, the shortest comes back, not the longest",
        (Edit(RETURNS, "note_start(prefixes.rev())", "note_start(prefixes)"),),
        (f"{HINTS}::test_who_goes_on_from_several_ends_goes_on_from_the_longest",),
    ),
    Mutant(
        "endings-alike",
        "hints: first turns and later ones are one kind of end",
        (Edit(RETURNS, "2 * hint as u8 + ending as u8", "2 * hint as u8 + (ending as u8 & 0)"),),
        (f"{HINTS}::test_hints_of_first_turns_and_of_later_ones_are_calibrated_apart",),
    ),
    Mutant(
        "all-tried-again",
        "extra steps: when lengths are not worth it, all of them are tried again",
        (
            Edit(
                OVERLAPS,
                "let tried = most_common.filter(",
                "let tried = most_common.map(|_| &self.expected[..]).filter(",
            ),
        ),
        (TRIED,),
    ),
    Mutant(
        "worth-however-little",
        "extra steps: a length is worth a step however little each resume there saves",
        (
            Edit(
                OVERLAPS,
                "self.num_saved += u64::from(num_saved);",
                "self.num_saved += 1_000 * u64::from(num_saved);",
            ),
        ),
        (LITTLE,),
    ),
    Mutant(
        "always-tried-again",
        "extra steps: when lengths are not worth it, every request tries one, not one in 64",
        (
            Edit(
                OVERLAPS,
                "most_common.filter(|_| request.is_multiple_of(TRIES))",
                "most_common.filter(|_| request < u64::MAX)",
            ),
        ),
        (TRIED,),
    ),
)
