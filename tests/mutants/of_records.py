"""Bugs of records and tiers: what is verified, what comes first, what is kept."""

from typing import Final

from tests.mutants.mutant import Edit, Mutant

RECORDS: Final = "python/kvbraid/transfer/records.py"
QUEUE: Final = "python/kvbraid/transfer/record_store/queue.py"
DISK: Final = "python/kvbraid/transfer/disk/tier.py"
STORE: Final = "tests/unit/transfer/test_record_store.py"
FAULTS: Final = "tests/unit/transfer/test_disk_faults.py"
TIER: Final = "tests/unit/transfer/test_disk_tier.py"

OF_RECORDS: Final = (
    Mutant(
        "unverified-payload",
        "records: a header is believed, and its payload not compared with the checksum",
        (
            Edit(
                RECORDS,
                "if header.key != key or header.checksum != xxh3_64_intdigest(payload):",
                "if header.key != key:",
            ),
        ),
        (
            "tests/unit/transfer/test_records.py::test_no_flipped_bit_of_a_payload_passes",
            f"{STORE}::test_a_record_that_went_bad_is_told_counted_and_dropped",
            f"{FAULTS}::test_a_flipped_bit_anywhere_is_corrupt_and_the_file_removed",
        ),
    ),
    Mutant(
        "drop-overtakes-store",
        "records: a block that is dropped while it is stored is there again afterwards",
        (
            Edit(
                QUEUE,
                "if task.key in self._later:",
                "if task.key in self._later and kind is not Kind.DROP:",
            ),
        ),
        (f"{STORE}::test_what_is_asked_of_one_record_happens_in_the_order_of_asking",),
    ),
    Mutant(
        "evicted-though-read",
        "records: a file that was read since it was chosen is evicted all the same",
        (Edit(DISK, "if used_ns > victim.used_ns >= 0:", "if used_ns < victim.used_ns:"),),
        (f"{TIER}::test_a_record_that_was_read_since_it_was_chosen_is_not_evicted",),
    ),
    Mutant(
        "limit-of-one-namespace",
        "records: a directory's limit is compared with the records of one namespace",
        (
            Edit(
                DISK,
                "self._total += found.num_bytes - known.num_bytes",
                "self._total += (found.num_bytes - known.num_bytes) * self._is_own(place)",
            ),
        ),
        (f"{TIER}::test_the_limit_is_of_all_namespaces",),
    ),
)
