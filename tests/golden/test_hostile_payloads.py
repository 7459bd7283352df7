"""Payloads that tried something: each is refused for the reason in its file, and nothing else.

A file holds a line that says what it is, a line `# expect REASON[@EVENT]`, and the bytes as hex.
"""

import re
from pathlib import Path

import pytest
from kvbraid.events import decode

FILES = sorted((Path(__file__).parent / "hostile").glob("*.txt"))
EXPECT = re.compile(r"# expect (?P<reason>\w+)(@(?P<index>\d+))?")
NOTES = {"unknown_kind", "bad_timestamp", "bad_rank", "trailing_bytes"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_hostile_payload_is_refused_for_its_reason(path: Path) -> None:
    _, expect, *lines = path.read_text().splitlines()
    match = EXPECT.fullmatch(expect)
    assert match is not None
    batch = decode(bytes.fromhex("".join(lines)))
    (refusal,) = batch.refused
    assert refusal.reason == match["reason"]
    assert refusal.event_index == (None if match["index"] is None else int(match["index"]))


def test_every_reason_that_a_payload_can_have_is_kept_as_a_file() -> None:
    reasons = {EXPECT.search(path.read_text())["reason"] for path in FILES}  # type: ignore[index]
    assert reasons | {"too_large"} == {
        *NOTES,
        *("malformed_batch", "malformed_event", "unknown_event", "too_large", "bad_hash"),
        *(
            "bad_tokens",
            "bad_extra_keys",
            "bad_lookahead",
            "negative_group",
            "large_group",
            "bad_text",
        ),
    }
