"""What a client of a real vLLM says of the end of its request reaches our cache."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.vllm.drop_in_pair import tokens

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    from kvbraid.integrations.vllm.cache import requests
    from kvbraid.integrations.vllm.cache.requests import HINT, Requests
    from vllm import PoolingParams, SamplingParams
    from vllm.v1.request import Request


def heard(**params: Any) -> object:  # noqa: ANN401 - parameters of a request
    """What the cache is told of a request with these parameters."""
    told: list[dict[str, Any]] = []

    def add(_: object, **said: Any) -> int:  # noqa: ANN401 - see CacheManager.add
        told.append(said)
        return 0

    cache: Any = SimpleNamespace(add=add, config=SimpleNamespace(events=False))
    request = Request(
        **{
            "request_id": "one",
            "prompt_token_ids": tokens(1, 40),
            "sampling_params": None,
            "pooling_params": None,
            **params,
        }
    )
    assert Requests(cache, 16).number_of(request) == 0
    (said,) = told
    return said["will_return"]


def sampling(extra_args: dict[str, Any] | None) -> SamplingParams:
    return SamplingParams(max_tokens=1, extra_args=extra_args)


@pytest.mark.parametrize("hint", [True, False, 0.25, 1, None])
def test_a_hint_in_extra_args_is_told(hint: float | None) -> None:
    assert heard(sampling_params=sampling({HINT: hint, "other": 3})) is hint


def test_a_request_without_one_says_nothing() -> None:
    assert heard(sampling_params=sampling(None)) is None
    assert heard(sampling_params=sampling({})) is None
    assert heard(pooling_params=PoolingParams()) is None


@pytest.mark.parametrize("hint", ["yes", 1.5, -1, float("nan"), [True]])
def test_what_is_no_probability_is_logged_and_stops_no_engine(
    hint: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    logger = SimpleNamespace(warning=lambda text, *values: found.append(text % values))
    monkeypatch.setattr(requests, "logger", logger)
    assert heard(sampling_params=sampling({HINT: hint})) is None
    (line,) = found
    assert line.startswith(f"kvbraid: request one: {HINT} is {hint!r}; expected true, false or a")
