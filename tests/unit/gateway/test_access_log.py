"""Entries of Envoy's access log: what each says of its request's end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.gateway.envoy.logs import Ended, read_entry
from kvbraid.gateway.envoy.processing import Told
from kvbraid.gateway.envoy.protos.access_log_pb2 import HTTPAccessLogEntry, ResponseFlags
from kvbraid.gateway.usage import Usage

from tests.service.envoy_streams import entry, metadata

FLAGS = [field.name for field in ResponseFlags.DESCRIPTOR.fields]
OF_THE_CLIENT = {"downstream_connection_termination", "downstream_remote_reset"}


def test_a_request_that_was_answered_has_ended_with_its_usage() -> None:
    usage = metadata("kvbraid", {"prompt_tokens": 12, "cached_tokens": 8})
    assert read_entry(entry("r", endpoint="10.0.0.1:80", usage=usage)) == Ended(
        "r", Told("end", Usage(12, 8)), "10.0.0.1:80", ""
    )


@pytest.mark.parametrize(
    ("fields", "usage"),
    [
        ({}, Usage()),
        ({"cached_tokens": 0}, Usage(None, 0)),
        ({"prompt_tokens": -1, "cached_tokens": float("nan")}, Usage()),
        ({"prompt_tokens": float("inf"), "cached_tokens": 1e300}, Usage()),
        ({"prompt_tokens": "12", "cached_tokens": [8]}, Usage(0, 0)),
    ],
)
def test_numbers_that_are_none_are_not_believed(fields: dict[str, object], usage: Usage) -> None:
    found = read_entry(entry("r", usage=metadata("kvbraid", fields)))
    assert found is not None
    assert found.told == Told("end", usage)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("has_begun", [True, False])
def test_every_flag_says_whether_the_request_failed(flag: str, has_begun: bool) -> None:
    found = read_entry(entry("r", 200, flags={flag: True}, has_begun=has_begun))
    assert found is not None
    of_the_client = flag in OF_THE_CLIENT
    assert found.told.event == ("end" if of_the_client and has_begun else "failed")
    assert found.failure in {"", flag}


@pytest.mark.parametrize(("status", "event"), [(200, "end"), (399, "end"), (400, "failed")])
def test_a_request_that_an_engine_refused_left_nothing(status: int, event: str) -> None:
    found = read_entry(entry("r", status))
    assert found is not None
    assert found.told.event == event


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [("[fd00::1]:80", "[fd00::1]:80"), ("10.0.0.1:0", "10.0.0.1:0"), ("", "")],
)
def test_who_has_answered_is_spelled_as_destinations_are(endpoint: str, told: str) -> None:
    found = read_entry(entry("r", endpoint=endpoint))
    assert found is not None
    assert found.endpoint == told


@pytest.mark.parametrize(
    "it", [entry(""), entry("x" * 257), entry("r", kind=4), entry("r", kind=5), entry("r", kind=9)]
)
def test_what_is_of_no_request_or_no_end_says_nothing(it: HTTPAccessLogEntry) -> None:
    assert read_entry(it) is None


@given(st.binary(max_size=200))
def test_no_bytes_break_a_reader(data: bytes) -> None:
    message = HTTPAccessLogEntry()
    try:
        message.ParseFromString(data)
    except Exception:  # noqa: BLE001 - whatever protobuf raises
        return
    read_entry(message)
