"""The verdict on vLLM's own tests: no test passes because it is listed, skipped or never run."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.upstream import fetch, verdict
from tests.vllm.upstream.verdict import Case, Listed, cases_of, judge, read_list

LIST = Path(verdict.__file__).with_name("cannot.toml")
PASSES = Case("a.py", "test_a", "", 3, passed=True, reached=True, why="")
FAILS = PASSES._replace(passed=False, why="a.py:4: boom")
ENTRY = Listed("a.py", "test_a", 3, "an internal")


@pytest.fixture(autouse=True)
def no_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "LEAST_PASSED", {})


def counts(cases: list[Case], listed: list[Listed]) -> tuple[int, int, int]:
    passed, failed, known = judge(cases, listed).counts().values()
    return passed, failed, known


def test_each_case_of_a_function_counts() -> None:
    def outcome(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of an outcome
        return {"file": "a.py", "line": 3, "passed": True, "reached": True, **more}

    cases = cases_of(
        {
            "a.py::test_a[0]": outcome(),
            "a.py::test_a[[1]]": outcome(passed=False, why="a.py:4: boom"),
            "a.py::test_a": outcome(reached=False),
            "a.py::test_c": {"reached": False},
        }
    )
    never = Case("a.py", "test_c", "", 0, passed=False, reached=False, why="")
    assert cases == [
        PASSES._replace(parameters="0"),
        FAILS._replace(parameters="[1]"),
        PASSES._replace(reached=False),
        never,
    ]


def test_a_list_may_name_the_cases_that_cannot_pass() -> None:
    cases = [PASSES._replace(parameters="windows"), FAILS._replace(parameters="states")]
    only = ENTRY._replace(cases=frozenset({"states"}))
    assert counts(cases, [only]) == (1, 0, 1)
    (complaint,) = judge(cases, [ENTRY]).complaints
    assert complaint == "a.py:3 test_a[windows] passes: take it off the list"
    (complaint,) = judge(cases, [only._replace(cases=frozenset({"states", "b"}))]).complaints
    assert complaint == "a.py:3 test_a[b] is listed, but was not run"


def test_a_pass_that_never_reaches_our_code_is_not_counted() -> None:
    assert counts([PASSES], []) == (1, 0, 0)
    judged = judge([PASSES._replace(reached=False)], [])
    assert (judged.passed, len(judged.apart)) == ([], 1)


@pytest.mark.parametrize(
    ("cases", "listed", "says"),
    [
        ([FAILS], [], "is not listed: a.py:4: boom"),
        ([PASSES], [ENTRY], "passes: take it off"),
        ([FAILS], [ENTRY._replace(line=4)], "listed at line 4"),
        ([], [ENTRY], "was not run"),
    ],
)
def test_a_list_that_is_not_exact_is_a_failure(
    cases: list[Case], listed: list[Listed], says: str
) -> None:
    (complaint,) = judge(cases, listed).complaints
    assert says in complaint
    assert counts(cases, listed)[1] == 1


def test_a_failure_that_is_listed_is_none() -> None:
    assert counts([FAILS], [ENTRY]) == (0, 0, 1)


def test_too_few_passes_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "LEAST_PASSED", {"a.py": 2})
    (complaint,) = judge([PASSES], []).complaints
    assert complaint == "1 cases of a.py pass; expected 2"


def test_the_list_names_each_function_once_and_what_it_reaches_for() -> None:
    listed = read_list(LIST)
    assert len({(entry.file, entry.name) for entry in listed}) == len(listed)
    assert {entry.file for entry in listed} <= set(fetch.WANTED)
    for entry in listed:
        assert entry.line > 0
        assert "`" in entry.reaches, entry


def test_any_other_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "vllm.tar.gz"
    path.write_bytes(b"something else")
    with pytest.raises(SystemExit, match="expected " + fetch.SHA256):
        fetch.check(path)
    monkeypatch.setattr(fetch, "SHA256", hashlib.sha256(b"something else").hexdigest())
    fetch.check(path)


def test_the_model_that_tests_ask_a_hub_for_is_written(tmp_path: Path) -> None:
    fetch.write_model(tmp_path)
    config = json.loads((tmp_path / "facebook" / "opt-125m" / "config.json").read_text())
    assert config["architectures"] == ["OPTForCausalLM"]
