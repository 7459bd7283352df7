"""Traces: forms told apart, ids that mean prefixes, sessions interleaved; broken files refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from kvbraid.errors import TraceError
from kvbraid.sim.traces import read
from kvbraid.sim.traces.read import read_trace
from kvbraid.sim.traces.sessions import Session, SessionCall, interleave
from kvbraid.sim.traces.trace import Trace


def mooncake(*rows: tuple[int, list[int]]) -> str:
    lines = [{"timestamp": 0, "input_length": n, "hash_ids": ids} for n, ids in rows]
    return "".join(json.dumps(line) + "\n" for line in lines)


def session(*requests: list[Any], agents: int = 1) -> str:
    """One line; a request is [agent, start, tokens, seconds of the answer, keep, runs]."""
    rows = [[a, t, n, 1, api, 0.0, "n", 0, keep, runs] for a, t, n, api, keep, runs in requests]
    return json.dumps({"id": "s", "bs": 64, "agents": ["x"] * agents, "reqs": rows}) + "\n"


def written(tmp_path: Path, text: str, name: str = "some.trace.jsonl") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def played(trace: Trace) -> list[tuple[int, int, list[int]]]:
    return [(r.conversation, r.num_tokens, list(r.ids)) for r in trace.play()]


def test_requests_that_share_their_first_block_are_one_conversation(tmp_path: Path) -> None:
    text = mooncake((600, [1, 2]), (1024, [1, 3]), (100, [4]))
    trace = read_trace(written(tmp_path, text))
    assert (trace.name, trace.block_tokens, trace.num_requests) == ("some", 512, 3)
    assert played(trace) == [(1, 600, [1]), (1, 1024, [1, 3]), (4, 100, [])]


def test_a_first_block_that_all_requests_share_tells_no_conversation(tmp_path: Path) -> None:
    text = mooncake((600, [1, 2]), (1024, [1, 3]), (100, [1]))
    assert [row[0] for row in played(read_trace(written(tmp_path, text)))] == [2, 3, 1]


def test_a_trace_can_be_played_again_and_cut_short(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, mooncake((600, [1, 2]), (100, [4]))))
    assert played(trace) == played(trace)
    assert trace.first(1).num_requests == len(played(trace.first(1))) == 1
    assert trace.first(9).num_requests == 2


def test_compressed_traces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl.zst"
    path.write_bytes(zstandard.compress(mooncake((600, [1, 2])).encode()))
    assert read_trace(path).num_requests == 1
    path.write_bytes(b"not an archive")
    with pytest.raises(TraceError, match=r"some\.jsonl\.zst: "):
        read_trace(path)


def test_a_missing_decompressor_is_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_module", lambda _name: None)
    path = written(tmp_path, "", name="some.jsonl.zst")
    with pytest.raises(TraceError, match=r"pip install '\.\[traces\]'"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no line"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "line 1 is not JSON: .*; expected one JSON"),
        ('{"timestamp": 0, "input_length": 600}\n', "the first line has none of `hash_ids`, "),
        (mooncake((600, [1, 2])) + "{}\n", "line 2: no field 'input_length'"),
        (mooncake((600, [1, 2])) + "{\n", "line 2: Expecting property name"),
        (mooncake((600, [1])), "line 1: 1 ids for 600 tokens; expected .* 2 ids of 512 tokens"),
        (mooncake((0, [])), "line 1: 0 ids for 0 tokens"),
        (mooncake((600, [1, 1 << 70])), "line 1: "),
        (mooncake((600, [1, 2]), (600, [3, 2])), "line 2: id 2 follows id 3 here and id 1 before"),
        (mooncake((600, [1, 2]), (9, [2])), "line 2: id 2 follows nothing here and id 1 before"),
        (session([0, 0.0, 64, 1.0, 0, [1, 1]]) + '{"reqs": []}\n', "line 2: no field 'bs'"),
        ('{"bs": 64, "agents": [], "reqs": [[1]]}\n', "line 1: not enough values"),
        (
            '{"bs": 64, "agents": [], "reqs": []}\n{"bs": 32, "agents": [], "reqs": []}\n',
            "one size",
        ),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(TraceError, match=reason):
        read_trace(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.jsonl: No such file"):
        read_trace(tmp_path / "absent.jsonl")


def test_ids_of_sessions_continue_the_agents_last_prompt_and_meet_no_other_sessions(
    tmp_path: Path,
) -> None:
    text = session(
        [0, 0.0, 128, 1.0, 0, [1, 2]],
        [1, 5.0, 64, 1.0, 0, [9, 1]],
        [0, 7.0, 200, 1.0, 1, [4, 2]],
        agents=2,
    ) + session([0, 6.0, 64, 1.0, 0, [1, 1]])
    trace = read_trace(written(tmp_path, text))
    other = 1 << 32
    assert played(trace) == [
        (0, 128, [1, 2]),
        (1, 64, [other + 1]),  # Sessions begin together, whenever they were recorded.
        (2, 64, [9]),
        (0, 200, [1, 4, 5]),
    ]


def test_sessions_recorded_twice_are_dropped_and_long_gaps_capped_and_counted(
    tmp_path: Path,
) -> None:
    text = session(
        [0, 100.0, 64, 5.0, 0, [1, 1]],
        [0, 165.0, 64, -1, 1, []],  # 60 s idle: kept.
        [0, 4000.0, 64, 5.0, 1, []],  # 3835 s idle: an hour and more is cut.
    )
    trace = read_trace(written(tmp_path, text + text))
    assert trace.num_requests == 3
    assert trace.notes == {
        "sessions": 1,
        "duplicate sessions dropped": 1,
        "gaps capped at 60 s": 1,
        "hours of gaps cut": 1,
    }


def test_so_many_sessions_are_active_and_the_next_begins_when_one_has_its_last_answer() -> None:
    def calls(*starts: float, end: float, tokens: int) -> Session:
        return Session(tuple(SessionCall(0, t, tokens, 0, ()) for t in starts), end, 0, 0.0)

    sessions = [
        calls(0, 10, 20, end=21, tokens=1),
        calls(0, 5, end=7, tokens=2),
        Session((), 0.0, 0, 0.0),
        calls(0, 1, 14, end=15, tokens=3),  # Begins at 7.
    ]
    order = [request.num_tokens for request in interleave(sessions, num_active=2)]
    assert order == [1, 2, 2, 3, 3, 1, 1, 3]
