"""What a user can ask of our cache in a real vLLM and not of vLLM's own: retention by value."""

from random import Random
from types import SimpleNamespace
from typing import Any, Final

import pytest
from kvbraid import __version__
from kvbraid.cache import ByValue
from kvbraid.errors import InvalidValueError
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.models import PrefillCost

from tests.vllm.engines import LAYOUTS, Engines, Layout, config, scheduler
from tests.vllm.live_engine import ENGINE, MODELS, LiveModel
from tests.vllm.live_pair import running_both

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    import vllm
    from kvbraid.integrations.vllm import KvbraidScheduler, schedulers
    from kvbraid.integrations.vllm.options import retention_of

POD: Final = PodId("pod")
MAX_OUTPUT: Final = 8
SECOND_HITS: Final = {"gemma3": 0, "qwen3next": 896}
"""Of vLLM's own. Its states end where steps do, here at 896 of any such prompt."""


def asking(**options: object) -> Any:  # noqa: ANN401 - vLLM's own type.
    return config(LAYOUTS["window and full"], is_async=False, **options)


def test_the_engines_retention_stays_unless_asked() -> None:
    assert retention_of(asking()) is None
    assert retention_of(asking(retention="engine")) is None
    none_of_ours = asking()
    none_of_ours.additional_config = {"another": "platform's"}
    assert retention_of(none_of_ours) is None


def test_the_interval_is_rounded_down_to_blocks_of_all_groups() -> None:
    layout = LAYOUTS["unequal blocks"]
    made = scheduler(KvbraidScheduler, layout, asking(retention="value-flat", interval=95))
    retention = made.kv_cache_manager.cache.config.retention
    assert retention == ByValue(interval=64, cost=PrefillCost())


@pytest.mark.parametrize(
    ("options", "retention"),
    [({}, "as the engine asks"), ({"retention": "value-flat"}, "by value")],
)
def test_a_line_at_the_start_says_that_the_cache_is_ours(
    options: dict[str, object], retention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        schedulers.logger, "info", lambda text, *values: lines.append(text % values)
    )
    scheduler(KvbraidScheduler, LAYOUTS["window and full"], asking(**options))
    assert lines == [
        f"kvbraid {__version__}: this engine's KV cache is kvbraid's (vLLM {vllm.__version__}), "
        "60 blocks, 2 groups (0: sliding_window of 40 tokens in blocks of 16; "
        f"1: full_attention in blocks of 16), retention {retention}, prefix caching on."
    ]


def test_a_token_is_worth_what_the_model_computes() -> None:
    retention = retention_of(asking(retention="value"))
    assert retention is not None
    assert retention.interval == 8_192
    assert retention.cost.per_token > retention.cost.per_pair > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retention": "lru"}, "'lru'.*expected"),
        ({"retention": "value", "interval": -1}, "-1.*>= 0"),
        ({"retain": "value"}, "unknown field `retain`"),
    ],
)
def test_options_that_there_are_not_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        scheduler(KvbraidScheduler, LAYOUTS["window and full"], asking(**options))


def test_a_model_that_is_not_known_is_refused_with_a_remedy() -> None:
    made = asking(retention="value")
    unheard_of = SimpleNamespace(to_dict=lambda: {"model_type": "unheard_of"})
    made.model_config = SimpleNamespace(hf_config=unheard_of)
    with pytest.raises(InvalidValueError, match=r'unheard_of.*"value-flat"'):
        retention_of(made)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_an_engine_lives_with_retention_by_value(layout: Layout, is_async: bool) -> None:
    engines = Engines(layout, is_async=is_async, retention="value-flat", interval=64)
    engines.live()
    assert engines.num_preempted > 0
    assert engines.num_hits > 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_earlier", [0, 12], ids=["cold", "warm"])
@pytest.mark.parametrize(
    "model", [model for model in MODELS if model.folder in SECOND_HITS], ids=lambda m: m.folder
)
def test_the_second_request_of_a_prefix_hits_and_answers_the_same(
    model: LiveModel, num_earlier: int
) -> None:
    """Window blocks of a shared prefix are kept from the second request on by vLLM."""
    random = Random(3)

    def tokens(count: int) -> list[int]:
        return [random.randrange(10, 250) for _ in range(count)]

    document = tokens(900)
    index = FleetIndex()
    index.register(POD, model="tiny", topology=model.topology, engine=ENGINE)
    hits, num_removed = [], 0
    with running_both(model, options={"retention": "value"}) as pair:
        for each in range(num_earlier + 3):
            prompt = tokens(1_000) if each < num_earlier else document + tokens(100)
            (row,) = index.score(Request(model="tiny", token_ids=prompt)).rows
            expected, answer = pair.generate_together([prompt], MAX_OUTPUT)
            assert answer.outputs == expected.outputs
            assert (row.lower, row.upper) == (answer.cached[0], answer.cached[0])
            for payload in answer.payloads:
                assert not index.apply(POD, payload).refused
                num_removed += payload.count(b"BlockRemoved")
            hits.append((expected.cached[0], answer.cached[0]))
            if each == num_earlier - 1:
                assert num_removed > 0, "the pool is not full yet"
    assert hits[-3:] == [(0, 0), (SECOND_HITS[model.folder], 896), (896, 896)]
