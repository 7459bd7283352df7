"""The native resume rule, asked about holders that are bits of words."""

from math import gcd
from random import Random

from kvbraid._native import resume as native_resume
from kvbraid.resume import HeldWords, ResumeQuery
from kvbraid.spec import EngineDialect

from tests.reference import resume as reference
from tests.reference.topologies import Case

PURE = EngineDialect.PURE


def bits_of(case: Case, seed: int) -> list[int]:
    """One bit of a word for each holder, in no particular order."""
    return Random(seed).sample(range(64), len(case.holders))


def words_of(case: Case, bits: list[int]) -> HeldWords:
    unit = gcd(reference.hash_block(case.topology), case.topology.alignment or 0)
    units = case.num_tokens // unit
    whole = [[0] * units for _ in case.topology.groups]
    partial = [[0] * units for _ in case.topology.groups]
    for bit, holder in zip(bits, case.holders, strict=True):
        for index, entries in enumerate(holder):
            for end in entries:
                if end <= case.num_tokens:
                    is_whole = end % case.topology.groups[index].block_size == 0
                    words = whole if is_whole else partial
                    words[index][end // unit - 1] |= 1 << bit
    return HeldWords(unit, whole, partial)


def native(
    case: Case, seed: int = 0, *, dialect: EngineDialect = PURE, strict: bool = True
) -> list[int]:
    """The answers in the order of the holders; every other bit must answer 0."""
    bits = bits_of(case, seed)
    query = ResumeQuery(case.num_tokens, sum(1 << bit for bit in bits), strict)
    answers = native_resume(case.topology, [dialect.value], words_of(case, bits), query)
    assert all(answer == 0 for bit, answer in enumerate(answers) if bit not in bits)
    return [answers[bit] for bit in bits]
