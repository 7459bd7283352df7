"""A state's JSON: read, written, refused. Hostile text gets one line and nothing else."""

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from kvbraid.errors import InvalidValueError, KvbraidError, TooLargeError
from kvbraid.recovery import Ignored, RecoveryPlan, read, write
from kvbraid.recovery.document import checks, reading

from tests.unit.recovery.states import GROUPS, NUM_BLOCKS, Json, as_bytes, run, state, states

GOLDEN = Path(__file__).parents[2] / "golden" / "recovery" / "state.json"


@given(found=states())
def test_what_is_written_is_read_as_the_same_decision(found: Json) -> None:
    first = read(as_bytes(found))
    again = read(write(first))
    assert again.runs == first.runs
    assert again.snapshot == first.snapshot
    assert sorted(again.busy) == sorted(set(first.busy))
    assert again.decide() == first.decide()
    assert write(again) == write(first)


def test_the_golden_state_is_written_as_it_was_read() -> None:
    """Its fields are all that there are; a change of the format is a new version."""
    golden = GOLDEN.read_bytes()
    assert write(read(golden)) == golden
    fields = json.loads(golden)
    assert set(fields) == set(reading.StateFields.__struct_fields__)
    assert set(fields["runs"][0]) == set(reading.RunFields.__struct_fields__)
    assert set(fields["failures"]) == set(reading.FailureFields.__struct_fields__)


def test_fields_with_a_default_may_be_left_out() -> None:
    found = read(as_bytes(state()))
    assert found.decide().requests == {}
    assert found.snapshot.tables[7].states == [[], []]


def test_blocks_of_two_pools_are_told_apart() -> None:
    """Block 1 of group 0 is another one than block 1 of group 1."""
    found = read(
        as_bytes(
            state(
                run(7, tables=[[1, 2, 3], [1, 2, 3]]),
                pools=[0, 1],
                failures={"group_blocks": [[1, 2]]},
            )
        )
    )
    plan = found.decide()
    assert plan.tainted == (3, NUM_BLOCKS + 2, NUM_BLOCKS + 3)
    assert [found.in_its_pool(block) for block in plan.tainted] == [3, 2, 3]
    assert plan.requests[7].resume == 4


def test_a_block_that_no_pool_has_is_ignored_and_counted() -> None:
    failures = {"group_blocks": [[1, NUM_BLOCKS], [9, 1]]}
    found = read(as_bytes(state(pools=[0, 1], failures=failures)))
    assert found.decide().ignored == {Ignored.OUT_OF_RANGE: 2}


# What is refused.

WRONG: dict[str, tuple[Json, str]] = {
    "unknown field": (state(run(7, num_token=3)), r"runs\[0\].num_token = 3: no such field; did"),
    "unknown field at the top": (state(extra=1), r"^extra = 1: no such field; known: version, "),
    "unknown field of failures": (
        state(failures={"block": [1]}),
        r"failures.block = \[1\]: no such field; did you mean blocks\?",
    ),
    "another version": (state(version=2), r"version = 2: expected one of 1; docs/recovery.md"),
    "missing field": (
        {name: value for name, value in state().items() if name != "num_blocks"},
        r"the state = .*: object missing required field `num_blocks`; docs/recovery.md",
    ),
    "negative number": (
        state(run(7, num_tokens=-5)),
        r"runs\[0\].num_tokens = -5: expected `int` >= 1; docs/recovery.md has the schema",
    ),
    "2**40": (state(num_blocks=1 << 40), r"num_blocks = 1099511627776: expected `int` <= 4294"),
    "2**70": (state(num_blocks=1 << 70), r"num_blocks = 1180591620717411303424: expected `int`"),
    "a block of 2**40": (
        state(failures={"blocks": [1 << 40]}),
        r"failures.blocks\[0\] = 1099511627776: expected",
    ),
    "text for a number": (
        state(run(7, tables=[[1, "2", 3], []])),
        r"runs\[0\].tables\[0\]\[1\] = '2': expected `int`, got `str`",
    ),
    "a pair of three": (
        state(failures={"group_blocks": [[0, 1, 2]]}),
        r"failures.group_blocks\[0\] = \[0, 1, 2\]: expected `array` of length 2",
    ),
    "an odd key": (
        state(failures={"causes": [{"tier": "disk", "key": "abc", "cause": "miss"}]}),
        r"failures.causes\[0\].key = 'abc': expected `str` matching regex",
    ),
    "unknown policy": (
        state(policy="hope"),
        r"policy = 'hope': expected one of fail, recompute, retry",
    ),
    "a topology's field": (
        state(topology={"groups": [{**GROUPS[0], "windw": 4}]}),
        r"topology.groups\[0\].windw = 4: no such field; did you mean window\?",
    ),
    "no groups": (
        state(topology={}),
        r"topology.groups = \[\]; expected at least one group; give",
    ),
    "a table too few": (
        state(run(7, tables=[[1, 2, 3]])),
        r"runs\[0\].tables = '1 tables'; expected 2, one per group; give an empty one",
    ),
    "states too few": (state(run(7, states=[[]])), r"runs\[0\].states = '1 lists'; expected 2"),
    "states of an ended run": (
        state(run(7, states=[[], []], ended=True)),
        r"runs\[0\].states = '2 lists'; expected none of a run that has ended; leave them out",
    ),
    "one request twice": (state(run(7), run(7)), r"runs\[1\].request = 7; expected a number of"),
    "more prompt than tokens": (
        state(run(7, num_prompt_tokens=12)),
        r"runs\[0\]: num_prompt_tokens = 12; expected at most num_tokens, 11; correct one",
    ),
    "more loaded than tokens": (
        state(run(7, num_loaded_tokens=12)),
        r"runs\[0\]: the hit and the load = 12; expected at most num_tokens, 11",
    ),
    "fewer processed than loaded": (
        state(run(7, num_processed_tokens=7)),
        r"runs\[0\]: the first computed token = 8; expected at most num_processed_tokens, 7",
    ),
    "fewer computed than processed": (
        state(run(7, num_computed_tokens=7)),
        r"runs\[0\]: num_processed_tokens = 8; expected at most num_computed_tokens, 7",
    ),
    "more computed than held": (
        state(run(7, num_computed_tokens=13)),
        r"num_computed_tokens = 13; expected at most the tokens of its longest table, 12",
    ),
    "a block that the pool has not": (
        state(run(7, tables=[[1, NUM_BLOCKS, 3], []])),
        r"runs\[0\].tables\[0\]\[1\] = 30; expected less than num_blocks = 30; correct",
    ),
    "a findable block of no group": (
        state(run(7, findable=[{"group": 2, "position": 0, "blocks": [1]}])),
        r"runs\[0\].findable\[0\].group = 2; expected less than 2; leave the block out",
    ),
    "a block that was given back and is none": (
        state(run(7, given_back=[{"group": 0, "position": 0, "block": 31}])),
        r"runs\[0\].given_back\[0\] = 31; expected less than num_blocks = 30",
    ),
    "states of a group that has none": (
        state(run(7, states=[[[4, 0]], []])),
        r"runs\[0\].states\[0\] = \(\(4, 0\),\); expected none: the group has no states",
    ),
    "a state where there is no block": (
        state(run(7, tables=[[1, 0, 3]], states=[[[8, 1]]]), topology={"groups": [GROUPS[4]]}),
        r"runs\[0\].states\[0\] = \(8, 1\); expected a position where its table has a block",
    ),
    "a state inside a block": (
        state(run(7, tables=[[1, 2, 3]], states=[[[6, 1]]]), topology={"groups": [GROUPS[4]]}),
        r"runs\[0\].states\[0\] = \(6, 1\); expected tokens that are a positive multiple of 4",
    ),
    "pools of some groups": (
        state(pools=[0]),
        r"pools = \[0\]; expected 2 numbers, one per group; leave it out if all groups share",
    ),
    "pools with a gap": (
        state(pools=[0, 2]),
        r"pools = \[0, 2\]; expected pools that are numbered from 0 on, without gaps",
    ),
    "a busy block of no group": (
        state(busy={"group_blocks": [[2, 1]]}),
        r"busy = \(2, 1\); expected a group and a block of its pool; leave it out",
    ),
    "a busy block that the pool has not": (
        state(busy={"blocks": [30]}),
        r"busy = \(0, 30\); expected a group and a block of its pool",
    ),
    "blocks by number in two pools": (
        state(pools=[0, 1], failures={"blocks": [3]}),
        r"failures.blocks = \[3\]; expected none, .* report \(group, block\) pairs in "
        r"failures.group_blocks or places in failures.places$",
    ),
    "busy blocks by number in two pools": (
        state(pools=[0, 1], busy={"blocks": [3]}),
        r"busy.blocks = \[3\]; expected none, .* report \(group, block\) pairs in "
        r"busy.group_blocks$",
    ),
    "a pool that is far larger than any": (
        state(num_blocks=(1 << 32) - 1),
        r"num_blocks = 4294967295; expected at most 67108864 in all pools together; give the pool",
    ),
    "pools that are too large together": (
        state(num_blocks=1 << 31, pools=[0, 1]),
        r"num_blocks = 2147483648; expected at most 67108864 in all pools together",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_state_that_makes_no_sense_is_refused_in_one_line(case: str) -> None:
    found, message = WRONG[case]
    with pytest.raises(InvalidValueError, match=message) as refused:
        read(as_bytes(found))
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [b"", b"[", b"[" * 100_000, b'{"a":' * 5_000, b"null", b"\xff", b'{"version": "\xff"}', b"{"],
)
def test_what_is_no_json_object_is_refused_in_one_line(text: bytes) -> None:
    with pytest.raises(InvalidValueError, match=r"not JSON|the state|version") as refused:
        read(text)
    assert str(refused.value).isprintable()


def test_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_BOUNDARIES", 4)
    read(as_bytes(state()))
    longer = run(7, tables=[[1, 2, 3], [4, 5, 6]], num_tokens=12)
    with pytest.raises(TooLargeError, match=r"runs\[0\] has 6 boundaries; at most 4 are read"):
        read(as_bytes(state(longer)))
    monkeypatch.setattr(reading, "MAX_BYTES", 20)
    with pytest.raises(TooLargeError, match=r"a state of \d+ bytes; at most 20 are read"):
        read(as_bytes(state()))


SCALARS = st.one_of(
    st.none(), st.booleans(), st.floats(), st.text(max_size=4), st.binary(max_size=2).map(str),
    st.integers(-2, 40), st.sampled_from([-1, 1 << 31, 1 << 32, 1 << 40, 1 << 63, 1 << 70]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def spoil(data: st.DataObject, value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Replace one value somewhere inside, or add or remove one."""
    if isinstance(value, dict) and value and data.draw(st.integers(0, 9)):
        key = data.draw(st.sampled_from(sorted(value)))
        changed = {**value, key: spoil(data, value[key])}
        if not data.draw(st.integers(0, 9)):
            del changed[key]
        return changed
    if isinstance(value, list | tuple) and value and data.draw(st.integers(0, 9)):
        i = data.draw(st.integers(0, len(value) - 1))
        return [*value[:i], spoil(data, value[i]), *value[i + data.draw(st.integers(0, 1)) :]]
    return data.draw(VALUES)


@given(found=states(), data=st.data())
def test_a_spoilt_state_is_decided_or_refused_in_one_line(
    found: Json, data: st.DataObject
) -> None:
    text = json.dumps(spoil(data, found)).encode()
    if data.draw(st.integers(0, 4)) == 0:
        cut = data.draw(st.integers(0, len(text)))
        text = text[:cut] + data.draw(st.binary(max_size=3)) + text[cut + 1 :]
    plan = RecoveryPlan()
    message = ""
    try:
        plan = read(text).decide(max_refusals=5)
    except KvbraidError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 1500
    assert message or plan.requests.keys() <= {
        each["request"] for each in json.loads(text)["runs"]
    }
