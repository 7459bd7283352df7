"""The bugs that the tests must catch: what each breaks, its text, and the tests that kill it.

The nine of the first table are those that a study planted in vLLM's own manager, by the names it
gave them; four of them survived vLLM's tests. The others are ours. `run.py` plants them one at a
time; `test_table.py` checks that texts and tests can still be found.
"""

from typing import Final

from tests.mutants.mutant import Edit, Mutant
from tests.mutants.of_mover import OF_MOVER
from tests.mutants.of_offload import OF_OFFLOAD
from tests.mutants.of_operating import OF_OPERATING
from tests.mutants.of_records import OF_RECORDS
from tests.mutants.of_retention import OF_RETENTION
from tests.mutants.of_routing import OF_ROUTING
from tests.mutants.of_tiers import OF_TIERS

RULE: Final = "tests/differential/test_resume.py::test_native_answers_equal_brute_force"
SEARCH: Final = (
    "tests/differential/test_dialect.py::test_the_dialect_answers_as_the_engine_searches"
)
COPIES: Final = (
    "tests/differential/test_cache_copies.py::test_the_oldest_copy_that_is_left_is_found"
)
CACHE: Final = "tests/differential/test_cache_manager.py::TestCacheManager"
PARTIAL: Final = "tests/differential/test_cache_manager.py::TestPartialHits"
UNWRITTEN: Final = (
    "tests/unit/cache/test_hits_inside_blocks.py"
    "::test_a_request_waits_for_the_block_inside_which_its_hit_ends_until_that_is_written"
)
VLLM: Final = "tests/differential/test_cache_manager.py::TestVllmCacheManager"
HITS: Final = "tests/differential/test_cache_hits.py::test_hits_in_front_of_holes_are_the_rules"
ADMISSION: Final = (
    "tests/differential/test_cache_admission.py"
    "::test_a_request_is_let_in_from_the_same_size_of_the_pool_on"
)
BYTES: Final = (
    "tests/unit/layout/test_properties.py"
    "::test_every_byte_of_a_view_is_in_one_chunk_and_every_byte_of_a_chunk_in_its_view"
)
INTERLEAVED: Final = (
    "tests/unit/layout/test_seed_defects.py"
    "::test_a_layer_in_interleaved_kernel_blocks_has_a_chunk_of_all_of_them"
)
SELECTED: Final = (
    "tests/differential/test_layout_views.py"
    "::test_views_are_those_of_selecting_a_layer_and_permuting"
)
WORKED: Final = (
    "tests/unit/layout/test_worked_models.py"
    "::test_gemma_2_keeps_a_block_of_either_group_in_one_range"
)
FINGERPRINT: Final = (
    "tests/unit/layout/test_fingerprints.py"
    "::test_a_plan_that_says_something_else_has_another_fingerprint"
)

GHOST: Final = "tests/ghost/test_faults.py::test_no_fault_lets_garbage_out_or_loses_a_token"
LATE: Final = "tests/unit/scheduler/test_late_reports.py"
ASSESS: Final = "tests/differential/test_assess.py::test_the_answer_is_that_of_the_naive_model"
OWNERS: Final = "tests/unit/recovery/test_owners.py"
SHARED: Final = "tests/unit/recovery/test_shared_blocks.py"
COUNTED: Final = "tests/unit/scheduler/test_recovered_tokens.py"
LOADS: Final = "tests/unit/scheduler/test_loads.py"


ALLOCATE: Final = "crates/core/src/cache/step/allocate.rs"
BOUNDARIES: Final = "crates/core/src/cache/retention/boundaries.rs"
CACHE_PLAN: Final = "crates/core/src/cache/step/plan.rs"
COMMIT: Final = "crates/core/src/cache/step/commit.rs"
EVENTS: Final = "crates/core/src/blocks/events.rs"
FIND: Final = "crates/core/src/cache/step/find.rs"
FREE: Final = "crates/core/src/cache/step/free.rs"
GROUP: Final = "crates/core/src/cache/group.rs"
HASH_INDEX: Final = "crates/core/src/blocks/hash_index.rs"
POOL: Final = "crates/core/src/blocks/pool.rs"
STATE: Final = "crates/core/src/cache/step/state.rs"
DIALECT: Final = "crates/core/src/rule/dialect.rs"
NEEDS: Final = "crates/core/src/rule/needs.rs"
PLAN: Final = "crates/core/src/rule/plan.rs"
SWEEP: Final = "crates/core/src/rule/sweep.rs"
RECOVERING: Final = "python/kvbraid/scheduler/recovery.py"

OF_THE_STUDY: Final = (
    Mutant(
        "M01",
        "a window needs ceil(W / b) blocks of a hit instead of ceil((W - 1) / b)",
        (
            Edit(
                PLAN,
                ".div_ceil(group.block_size);",
                ".saturating_add(1).div_ceil(group.block_size);",
            ),
            Edit(
                DIALECT,
                "let needed = tokens.div_ceil(self.grain) as usize + extra;",
                "let needed = (tokens + 1).div_ceil(self.grain) as usize + extra;",
            ),
        ),
        (RULE, SEARCH, HITS),
    ),
    Mutant(
        "M06",
        "each spec is asked once; the shortened length is not offered to the other specs again",
        (
            Edit(
                SWEEP,
                "for (index, _) in plan.others() {",
                """for (index, _) in plan.others() {
            let mut any = 0;
            for word in buffers.accept.iter_mut().rev() {
                any |= *word;
                *word = any;
            }""",
            ),
            Edit(DIALECT, "if is_simple {", "if true {"),
        ),
        (RULE, SEARCH, HITS),
    ),
    Mutant(
        "M07",
        "states ignore the alignment: any state before the next boundary allows a hit at this one",
        (
            Edit(
                SWEEP,
                "GroupDemand::Prefix | GroupDemand::Checkpoint => {} // A",
                """GroupDemand::Checkpoint => {
            for at in 0..words.len() {
                let near = at..words.len().min(at + per_step);
                words[at] = words[near].iter().fold(0, |any, word| any | word);
            }
        }
        GroupDemand::Prefix => {} // A""",
            ),
            Edit(
                DIALECT, "end.is_multiple_of(self.step) && self.holds(*end);", "self.holds(*end);"
            ),
        ),
        (RULE, SEARCH),
    ),
    Mutant(
        "M10",
        "a stored event names no parent",
        (
            Edit(
                EVENTS,
                "optional_number(out, store.parent.map(|digest| digest.key()));",
                "optional_number(out, None);",
            ),
        ),
        (CACHE, VLLM, HITS),
    ),
    Mutant(
        "M12",
        "the chunk of a token on a chunk's boundary is the one before",
        (
            Edit(
                NEEDS,
                "boundary / chunk * chunk",
                "boundary.saturating_sub(1) / chunk * chunk",
            ),
        ),
        (CACHE, PARTIAL),
    ),
    Mutant(
        "M14",
        "hits are aligned to the largest block instead of the least common multiple",
        (
            Edit(
                "crates/core/src/spec.rs",
                "(all / gcd(all, size).max(1)).saturating_mul(size)",
                "all.max(size)",
            ),
            Edit(
                PLAN,
                "self.step = lcm(self.step, spec.grain);",
                "self.step = self.step.max(spec.grain);",
            ),
        ),
        (RULE,),
    ),
    Mutant(
        "M15",
        "a window frees one token too many",
        (
            Edit(
                GROUP,
                "first_read(&self.spec, tokens).saturating_sub(retained)",
                "first_read(&self.spec, tokens + 1).saturating_sub(retained)",
            ),
        ),
        (CACHE, VLLM),
    ),
    Mutant(
        "M19",
        "the admission cap of windows and chunks is ignored",
        (Edit(CACHE_PLAN, "required = required.min(cap as usize);", "let _ = cap;"),),
        (ADMISSION,),
    ),
    Mutant(
        "M20",
        "a request resumes from a state in the same step that registers it",
        (
            Edit(
                CACHE_PLAN,
                "Kind::State { .. } => core.is_fresh(last),",
                "Kind::State { .. } => false,",
            ),
        ),
        (CACHE, PARTIAL),
    ),
)

SLOTS: Final = "python/kvbraid/layout/planning/slots.py"
VIEWS: Final = "python/kvbraid/layout/planning/views.py"

OURS: Final = (
    Mutant(
        "tail-last",
        "eviction order: the first blocks of a finished request are evicted before its last ones",
        (
            Edit(
                FREE,
                "self.pool.free(blocks.into_iter().rev());",
                "self.pool.free(blocks);",
            ),
        ),
        (CACHE, VLLM),
    ),
    Mutant(
        "unfindable-last",
        "eviction order: freed blocks that no hash finds are evicted after those that one finds",
        (
            Edit(
                POOL,
                "unhashed.push(block);",
                "let last = self.blocks[0].prev; self.link(block, last, NULL_BLOCK);",
            ),
        ),
        (CACHE, VLLM),
    ),
    Mutant(
        "newest-copy",
        "copies: when the oldest copy goes, the newest is found instead of the next oldest",
        (
            Edit(
                HASH_INDEX,
                "self.first[at] = more.remove(0);",
                "self.first[at] = more.pop().unwrap_or(NULL_BLOCK);",
            ),
        ),
        (COPIES,),
    ),
    Mutant(
        "state-not-preserved",
        "copy-on-write: a state that others may resume from stays in the block that is written",
        (Edit(STATE, "core.pool.move_keys(source, copy);", ""),),
        (PARTIAL,),
    ),
    Mutant(
        "tail-in-place",
        "copy-on-write: a hit that ends inside a block goes on writing to the shared block",
        (
            Edit(
                ALLOCATE,
                "table.shared_tail = Some(SharedTail { position, block });",
                "let _ = block;",
            ),
        ),
        (PARTIAL,),
    ),
    Mutant(
        "copied-before-written",
        "a request goes on in a copy of a block that the same step writes",
        (
            Edit(
                CACHE_PLAN,
                "!local.is_multiple_of(group.block) && core.is_unwritten(last, local)",
                "false && core.is_unwritten(last, local)",
            ),
        ),
        (UNWRITTEN, PARTIAL),
    ),
    Mutant(
        "in-flight-freed",
        "skipped blocks: blocks are freed that tokens in flight still read",
        (
            Edit(
                CACHE_PLAN,
                "lengths.total.saturating_sub(need.num_in_flight_tokens);",
                "lengths.total;",
            ),
        ),
        (CACHE, VLLM),
    ),
    Mutant(
        "state-freed-early",
        "skipped blocks: the state that this step reads is freed as superseded",
        (Edit(STATE, "(last + 1 < processed", "(last < processed"),),
        (CACHE, VLLM),
    ),
    Mutant(
        "junction-not-kept",
        "junctions: the state where requests branch off is not retained",
        (Edit(BOUNDARIES, "if request.junction > 0 {", "if false {"),),
        (CACHE,),
    ),
    Mutant(
        "junction-of-any-group",
        "junctions: the first group decides, even if it is not a full group",
        (
            Edit(
                FIND,
                "let lead = first.or_else(|| cacheable.next());",
                "let lead = cacheable.next().or(first);",
            ),
        ),
        (CACHE,),
    ),
    Mutant(
        "groups-backwards",
        "event order: the stores of the last group are published first",
        (
            Edit(
                COMMIT,
                "for index in 0..committer.core.groups.len() {",
                "for index in (0..committer.core.groups.len()).rev() {",
            ),
        ),
        (CACHE, VLLM),
    ),
    Mutant(
        "keys-backwards",
        "event order: the last of a block's several boundaries is removed first",
        (
            Edit(
                POOL,
                "lose(first);\n        further.into_iter().flatten().for_each(lose);",
                "further.into_iter().flatten().rev().for_each(&mut lose);\n        lose(first);",
            ),
        ),
        (HITS,),
    ),
    Mutant(
        "kernel-blocks-apart",
        "layout: interleaved kernel blocks of a layer follow each other without the other layers",
        (
            Edit(
                VIEWS,
                "length * place.num_slots if pieces > 1 else row_bytes",
                "length * place.num_slots if pieces > 1 else kernel_bytes",
            ),
        ),
        (BYTES, INTERLEAVED),
    ),
    Mutant(
        "slots-backwards",
        "layout: the last layer of a group stands in the first slot",
        (Edit(SLOTS, "for layer in layers:", "for layer in reversed(layers):"),),
        (SELECTED, WORKED),
    ),
    Mutant(
        "padding-moves",
        "layout: what moves of a padded page is all of it",
        (
            Edit(
                VIEWS,
                "length, count = kernel_bytes // pieces,",
                "length, count = place.layer.page.page_bytes // view.kernel_blocks // pieces,",
            ),
        ),
        (BYTES,),
    ),
    Mutant(
        "types-forgotten",
        "layout: plans that differ in the type of elements have one fingerprint",
        (
            Edit(
                "python/kvbraid/layout/document.py",
                "chunk.name, view.dtype, list(_axes(view)), place]",
                "chunk.name, list(_axes(view)), place]",
            ),
        ),
        (FINGERPRINT,),
    ),
)

OF_RECOVERY: Final = (
    Mutant(
        "taint-stays",
        "recovery: taint is not handed on to requests that share what was computed from garbage",
        (
            Edit(
                "crates/core/src/recovery/taint.rs",
                "if block != NULL_BLOCK && taint.add(block) && self.may_be_shared(block) {",
                "if block != NULL_BLOCK && taint.add(block) && self.ended.has(block) {",
            ),
        ),
        (GHOST, ASSESS),
    ),
    Mutant(
        "owner-lost",
        "recovery: if the owner of a shared block is aborted, nobody inherits the block",
        (
            Edit(
                "python/kvbraid/recovery/ledger/owners.py",
                "if entry is not None and entry.waiters:",
                "if entry is not None and entry.waiters and request < 0:",
            ),
        ),
        (
            f"{OWNERS}::test_an_owner_that_leaves_hands_on_to_the_lowest_waiter_of_each_block",
            f"{SHARED}::test_if_the_first_is_aborted_the_second_inherits_and_finds_no_garbage",
        ),
    ),
    Mutant(
        "quarantine-early",
        "recovery: held blocks are freed when the first rank has reported the end of a load",
        (
            Edit(
                "python/kvbraid/loads/quarantine.py",
                "        if known.pending:\n            return []\n",
                "",
            ),
        ),
        (
            GHOST,
            "tests/unit/loads/test_quarantine.py"
            "::test_blocks_are_freed_when_the_last_rank_has_reported",
        ),
    ),
    Mutant(
        "waiter-early",
        "recovery: whoever waits for a block of others goes on when its first token is computed",
        (
            Edit(
                "python/kvbraid/recovery/ledger/owners.py",
                "if entry.is_decided and entry.whole_at <= num_tokens:",
                "if entry.is_decided and num_tokens:",
            ),
        ),
        (
            f"{OWNERS}::test_a_waiter_is_released_when_the_whole_block_is_processed",
            f"{SHARED}"
            "::test_the_second_goes_on_when_the_block_is_computed_and_not_when_it_is_scheduled",
        ),
    ),
    Mutant(
        "tokens-per-group",
        "recovery: affected tokens are counted once per group",
        (
            Edit(
                RECOVERING,
                "request.counts.recovered(what.resume, what.recompute)",
                "request.counts.recovered(what.resume, what.recompute * len(table.groups))",
            ),
        ),
        (f"{COUNTED}::test_tokens_that_recovery_takes_back_count_once_for_all_groups",),
    ),
    Mutant(
        "last-token-first",
        "recovery: the last token of a full load is taken back before its blocks are committed",
        (
            Edit(
                RECOVERING,
                "commit(number, end if is_whole",
                "commit(number, min(end, request.num_tokens - 1) if is_whole",
            ),
        ),
        (f"{COUNTED}::test_all_of_a_full_load_is_findable_before_its_last_token_is_computed",),
    ),
    Mutant(
        "store-stays",
        "recovery: an announced store of tainted blocks is not retracted",
        (
            Edit(
                "python/kvbraid/recovery/ledger/state.py",
                "self._tiers.forget_blocks(garbage)",
                "self._tiers.forget_blocks(())",
            ),
        ),
        (GHOST,),
    ),
    Mutant(
        "copies-stay",
        "recovery: what tiers have copied of garbage into ended loads is not garbage",
        (
            Edit(
                "python/kvbraid/recovery/decision/copies.py",
                "if copied := forget(sorted(news)):",
                "if forget(sorted(news)) and not (copied := failures):",
            ),
        ),
        (
            "tests/unit/recovery/test_with_copies.py"
            "::test_copies_of_copies_are_garbage_and_each_block_is_told_once",
            "tests/ghost/test_faults.py::test_a_copy_is_garbage_exactly_if_its_source_was",
        ),
    ),
    Mutant(
        "handed-out-forgotten",
        "recovery: what a run has read is forgotten once its block is handed out again",
        (
            Edit(
                "python/kvbraid/recovery/ledger/released_blocks.py",
                "if content >= 0 or self._is_meant(each):",
                "if content >= 0:",
            ),
        ),
        (f"{LATE}::test_who_was_told_a_token_of_garbage_ends_and_nothing_of_it_is_found",),
    ),
    Mutant(
        "handed-out-is-the-same",
        "recovery: what a block holds now is taken for what it held before it changed hands",
        (
            Edit(
                "python/kvbraid/recovery/ledger/contents.py",
                "at = bisect_right(times, since)",
                "at = bisect_right(times, since) + len(times)",
            ),
        ),
        (f"{LATE}::test_a_long_run_does_not_end_because_its_old_block_is_garbage_under_another",),
    ),
    Mutant(
        "ended-is-forgotten",
        "recovery: a run is forgotten with its last step although a report on its load may come",
        (
            Edit(
                "python/kvbraid/recovery/ledger/released_blocks.py",
                "e for e in self._ended if e.last_step is not None or self.loads.concern(e.since)",
                "e for e in self._ended if e.last_step is not None",
            ),
        ),
        (f"{LATE}::test_nothing_of_a_request_that_is_over_is_found_either",),
    ),
    Mutant(
        "eagle-twice",
        "recovery: a draft head's unit is dropped again from what a match has dropped it from",
        (
            Edit(
                "crates/core/src/recovery/owners.rs",
                "Search::new(self.topology, bad, false, self.max_refusals)",
                "Search::new(self.topology, bad, true, self.max_refusals)",
            ),
        ),
        (ASSESS,),
    ),
    Mutant(
        "copies-of-others",
        "recovery: copies of the same tokens that others have registered are taken for its own",
        (
            Edit(
                "crates/core/src/cache/going_back/assess.rs",
                "core.pool.author(block) == author || gap.has_read(position, block)",
                "core.pool.author(block) == author || !gap.positions.is_empty()",
            ),
        ),
        (
            ASSESS,
            "tests/unit/recovery/test_copies.py"
            "::test_a_healthy_copy_of_a_request_that_has_left_is_not_taken_for_the_failed_one",
        ),
    ),
    Mutant(
        "copy-not-read",
        "recovery: a run has not read the block that its own is a copy of",
        (
            Edit(
                "python/kvbraid/recovery/ledger/loading.py",
                "for request, group, position in places.of(destination):",
                "for request, group, position in places.of(source):",
            ),
        ),
        (
            f"{LOADS}"
            "::test_who_began_with_a_copy_of_a_part_of_a_block_goes_back_if_that_block_failed",
        ),
    ),
    Mutant(
        "next-load-blamed",
        "recovery: what failed of a load is taken for a part of the request's next load",
        (
            Edit(
                "python/kvbraid/recovery/ledger/transfers.py",
                "if not transfer.is_judged and self._latest",
                "if transfer.is_judged and self._latest",
            ),
        ),
        (f"{LOADS}::test_what_failed_of_an_earlier_load_is_not_taken_for_a_part_of_the_next_one",),
    ),
    Mutant(
        "stale-output",
        "recovery: outputs of steps in flight that have read garbage are handed out",
        (
            Edit(
                RECOVERING,
                "(what.resume, what.recompute)\n        request.in_flight.clear()",
                "(what.resume, what.recompute)",
            ),
        ),
        (GHOST,),
    ),
)

MUTANTS: Final = (
    OF_THE_STUDY
    + OURS
    + OF_RECOVERY
    + OF_RETENTION
    + OF_ROUTING
    + OF_TIERS
    + OF_MOVER
    + OF_RECORDS
    + OF_OFFLOAD
    + OF_OPERATING
)
