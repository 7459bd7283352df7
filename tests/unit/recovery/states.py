"""States of recoveries as the objects of their JSON: one by hand, and random ones."""

import json
from typing import Any, Final

import hypothesis.strategies as st

Json = dict[str, Any]
SIZES: Final = (4, 8, 4, 4, 4)
GROUPS: Final[tuple[Json, ...]] = (
    {"kind": "full_attention", "block_size": 4},
    {"kind": "mla_attention", "block_size": 8},
    {"kind": "sliding_window", "block_size": 4, "window": 8},
    {"kind": "chunked_local_attention", "block_size": 4, "chunk": 8},
    {"kind": "mamba", "block_size": 4},
)
NUM_BLOCKS: Final = 30


def as_bytes(state: Json) -> bytes:
    return json.dumps(state).encode()


def run(request: int, **changes: Any) -> Json:  # noqa: ANN401 - fields of the run
    """A request of 11 tokens that loaded 8 of them, in a full group and in a window of 8."""
    return {
        "request": request,
        "num_tokens": 11,
        "num_prompt_tokens": 11,
        "num_known_tokens": 11,
        "num_local_tokens": 0,
        "num_loaded_tokens": 8,
        "num_processed_tokens": 8,
        "num_computed_tokens": 11,
        "tables": [[1, 2, 3], [4, 5, 6]],
        **changes,
    }


def state(*runs: Json, **changes: Any) -> Json:  # noqa: ANN401 - fields of the state
    return {
        "version": 1,
        "topology": {"groups": [GROUPS[0], GROUPS[2]]},
        "num_blocks": NUM_BLOCKS,
        "runs": list(runs) or [run(7)],
        "failures": {},
        **changes,
    }


SHARED: Final = state(
    run(3, num_processed_tokens=11, tables=[[1, 2, 3], [4, 5, 6]]),
    run(4, num_local_tokens=8, num_loaded_tokens=0, tables=[[1, 2, 7], [4, 5, 8]]),
    run(5, num_local_tokens=0, num_loaded_tokens=8, tables=[[11, 12, 13], [14, 15, 16]]),
    topology={"groups": [GROUPS[0], GROUPS[0]]},
    failures={"blocks": [1, 0, 99]},
)
"""Two requests share blocks 1, 2, 4 and 5; the first has loaded them. A third is by itself."""


@st.composite
def runs(draw: st.DrawFn, request: int, groups: list[int]) -> Json:
    num_tokens = draw(st.integers(1, 40))
    num_local = draw(st.integers(0, num_tokens))
    num_loaded = draw(st.integers(0, num_tokens - num_local))
    num_processed = draw(st.integers(min(num_local + num_loaded, num_tokens - 1), num_tokens))
    num_computed = num_processed + draw(st.integers(0, 8))
    block = st.integers(0, NUM_BLOCKS - 1)
    tables = [
        draw(st.lists(block, min_size=length, max_size=length + 1))
        for length in (-(-num_computed // SIZES[group]) for group in groups)
    ]
    has_ended = draw(st.integers(0, 4)) == 0
    states = [
        [
            [SIZES[group] * (position + 1), position]
            for position, held in enumerate(table)
            if GROUPS[group]["kind"] == "mamba" and held and draw(st.booleans())
        ]
        for group, table in zip(groups, tables, strict=True)
    ]
    place = {"group": st.integers(0, len(groups) - 1), "position": st.integers(0, 9)}
    used = st.integers(1, NUM_BLOCKS - 1)
    findable = st.fixed_dictionaries({**place, "blocks": st.lists(used, max_size=2)})
    given_back = st.fixed_dictionaries({**place, "block": used})
    return {
        "request": request,
        "num_tokens": num_tokens,
        "num_prompt_tokens": draw(st.integers(1, num_tokens)),
        "num_known_tokens": draw(st.integers(1, num_tokens)),
        "num_local_tokens": num_local,
        "num_loaded_tokens": num_loaded,
        "num_processed_tokens": num_processed,
        "num_computed_tokens": num_computed,
        "tables": tables,
        "delays_commit": draw(st.booleans()),
        "states": [] if has_ended else states,
        "findable": draw(st.lists(findable, max_size=1)),
        "given_back": draw(st.lists(given_back, max_size=1)),
        "ended": has_ended,
    }


@st.composite
def states(draw: st.DrawFn) -> Json:
    groups = draw(st.lists(st.integers(0, len(GROUPS) - 1), min_size=1, max_size=3))
    requests = draw(st.lists(st.integers(1, 9), max_size=3, unique=True))
    pools = draw(st.sampled_from([[], [], list(range(len(groups)))]))
    ids = st.integers(0, NUM_BLOCKS + 2)
    own = st.integers(1, NUM_BLOCKS - 1)
    pair = st.tuples(st.integers(0, len(groups)), ids)
    flat = st.just([]) if len(pools) > 1 else st.lists(ids, max_size=4)
    place = {"request": st.integers(1, 9), "group": st.integers(0, 3)}
    cause = st.sampled_from(["miss", "short", "corrupt", "timeout", "io_error"])
    key = st.binary(max_size=2).map(bytes.hex)
    return {
        "version": 1,
        "topology": {"groups": [GROUPS[group] for group in groups]},
        "num_blocks": NUM_BLOCKS,
        "runs": [draw(runs(request, groups)) for request in requests],
        "failures": {
            "places": draw(
                st.lists(
                    st.fixed_dictionaries(
                        {**place, "positions": st.lists(st.integers(0, 9), max_size=3)}
                    ),
                    max_size=2,
                )
            ),
            "group_blocks": draw(st.lists(pair, max_size=3)),
            "blocks": draw(flat),
            "requests": draw(st.lists(st.integers(1, 9), max_size=1)),
            "causes": draw(
                st.lists(
                    st.fixed_dictionaries({"tier": st.just("disk"), "key": key, "cause": cause}),
                    max_size=2,
                )
            ),
        },
        "pools": pools,
        "busy": {
            "group_blocks": draw(st.lists(st.tuples(st.just(0), own), max_size=2)),
            "blocks": [] if len(pools) > 1 else draw(st.lists(own, max_size=2)),
        },
        "policy": draw(st.sampled_from(["recompute", "retry", "fail"])),
    }
