"""Where traffic comes from: a file, or the folder of a recorded engine."""

from pathlib import Path

import pytest
from kvbraid.errors import CaptureError, InvalidValueError, TraceError
from kvbraid.sim.captures.read import Lookup, read_capture
from kvbraid.sim.traffic import read_traffic

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"


@pytest.mark.parametrize("name", ["gptoss", "sglang/dense_p16_conc4"])
def test_a_recorded_engine_is_traffic_in_the_order_of_its_look_ups(name: str) -> None:
    path = CAPTURES / name
    lookups = [each for each in read_capture(path).operations if isinstance(each, Lookup)]
    trace = read_traffic(path)
    assert (trace.name, trace.num_requests) == (path.name, len(lookups))
    played = list(trace.play())
    assert [each.num_tokens for each in played] == [len(each.token_ids) for each in lookups]
    assert [len(each.ids) for each in played] == [len(each.token_ids) // 16 for each in lookups]


def test_an_extra_key_separates_recorded_prompts_as_a_salt_does() -> None:
    path = CAPTURES / "sglang" / "dense_p16_extra_key"
    keys: dict[tuple[int, ...], set[str | None]] = {}
    firsts: dict[tuple[int, ...], set[int]] = {}
    lookups = [each for each in read_capture(path).operations if isinstance(each, Lookup)]
    for lookup, request in zip(lookups, read_traffic(path).play(), strict=True):
        if request.ids:
            block = tuple(lookup.token_ids[:16])
            keys.setdefault(block, set()).add(lookup.extra_key or lookup.cache_salt)
            firsts.setdefault(block, set()).add(request.ids[0])
    assert max(map(len, keys.values())) > 1
    assert {block: len(each) for block, each in firsts.items()} == {
        block: len(each) for block, each in keys.items()
    }


def test_a_path_that_leads_nowhere_is_told_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"does not exist; give a file of requests, or a folder"):
        read_traffic(tmp_path / "absent.jsonl")
    with pytest.raises(CaptureError, match=r"config\.json: .*; a folder has config\.json, events"):
        read_traffic(tmp_path)


def test_a_recorded_engine_needs_no_tokenizer() -> None:
    with pytest.raises(InvalidValueError, match="whose prompts are tokens; leave --tokenizer out"):
        read_traffic(CAPTURES / "gptoss", tokenizer=Path("tokenizer.json"))
