"""Values of a wrong type: a `KvbraidError` names the value and what was expected instead.

No caller has to read `AttributeError`, `TypeError` or what the binding calls its fields.
"""

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

import pytest
from kvbraid.cache import (
    ByValue,
    CacheConfig,
    CacheManager,
    GroupOptions,
    Interval,
    Match,
    Need,
    Recovery,
)
from kvbraid.engine import EngineProfile
from kvbraid.errors import InvalidValueError, TopologyError
from kvbraid.fleet import FleetIndex, Request
from kvbraid.ids import PodId
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.unit.cache.caches import config, full

FULL: Final[Any] = SpecKind.FULL_ATTENTION
NOTHING: Final[Any] = {}
A_SET: Final[Any] = {1}
BYTES: Final[Any] = b"abc"
A_MAPPING: Final[Any] = {1: None}
POD: Final = PodId("pod")
Call = Callable[[Any, int], object]


def need(request: int, **fields: Any) -> Need:  # noqa: ANN401 - fields of the need
    return Need(**{"request": request, "num_new_tokens": 1, **fields})


CALLS: Final[dict[str, tuple[Call, str]]] = {
    "add": (lambda c, _: c.add(None), "tokens are None"),
    "add a generator": (lambda c, _: c.add(t for t in (1, 2)), "expected a buffer of uint32"),
    "add extra": (lambda c, _: c.add([1], extra="salt"), "extra is 'salt'; expected ExtraKeys"),
    "add hashes": (lambda c, _: c.add([1], block_hashes="ab"), "block_hashes is 'ab'"),
    "add lora_id": (lambda c, _: c.add([1], lora_id="a"), "lora_id is 'a'"),
    "add session_id": (lambda c, _: c.add([1], session_id=3), "session_id is 3"),
    "add a prompt": (lambda c, _: c.add([1], num_prompt_tokens="1"), "num_prompt_tokens is '1'"),
    "add a hint": (lambda c, _: c.add([1], will_return="yes"), "will_return is 'yes'; expected T"),
    "add a hint above 1": (lambda c, _: c.add([1], will_return=1.5), "will_return is 1.5; expect"),
    "add a hint below 0": (lambda c, _: c.add([1], will_return=-1), "will_return is -1; expected"),
    "add no number": (lambda c, _: c.add([1], will_return=float("nan")), "will_return is NaN"),
    "match": (lambda c, _: c.match("r"), "request is 'r'; expected the number that add"),
    "match nothing": (lambda c, _: c.match(None), "request is None"),
    "match below zero": (lambda c, _: c.match(-1), "request is -1"),
    "extend hashes": (lambda c, r: c.extend(r, [1], block_hashes=5), "block_hashes is 5"),
    "allocate a need": (lambda c, r: c.allocate(need(r)), "needs is .*expected Sequence"),
    "allocate a generator": (lambda c, r: c.allocate(need(n) for n in (r,)), "expected Sequence"),
    "allocate a mapping": (lambda c, r: c.allocate([{"request": r}]), r"needs\[0\] is {'request'"),
    "allocate a text": (lambda c, r: c.allocate([need(r, num_new_tokens="3")]), "tokens is '3'"),
    "allocate for a text": (lambda c, _: c.allocate([need("r")]), r"needs\[0\].request is 'r'"),  # type: ignore[arg-type]
    "allocate nothing": (
        lambda c, r: c.allocate([need(r, num_new_tokens=None)]),
        "num_new_tokens is None; expected an integer from 0 to 4294967295",
    ),
    "allocate below zero": (lambda c, _: c.allocate([need(-1)]), r"needs\[0\].request is -1"),
    "allocate beyond": (
        lambda c, _: c.allocate([need(1 << 64)]),
        "request is 18446744073709551616; expected a number that add returned",
    ),
    "allocate, loading": (lambda c, r: c.allocate([need(r, loading_groups=3)]), "groups is 3"),
    "allocate, delayed": (lambda c, r: c.allocate([need(r, delay_commit="yes")]), "expected bool"),
    "allocate, matched": (lambda c, r: c.allocate([need(r, match=4)]), "expected Match or None"),
    "allocate, a wrong match": (
        lambda c, r: c.allocate([need(r, match=Match(-4, 0))]),
        "num_tokens is -4",
    ),
    "allocate, reserved": (lambda c, r: c.allocate([need(r)], reserved_blocks="a"), "is 'a'"),
    "blocks_needed": (lambda c, _: c.blocks_needed(3), r"needs\[0\] is 3"),
    "decode a generator": (lambda c, r: c.decode((n for n in (r,)), [1]), "requests is <gen"),
    "decode texts": (lambda c, _: c.decode(["a"], [1]), r"requests is \['a'\]"),
    "release": (lambda c, _: c.release(5), "requests is 5; expected a list of numbers"),
    "preempt": (lambda c, _: c.preempt("ab"), "requests is 'ab'"),
    "commit nothing": (lambda c, r: c.commit(r, None), "num_tokens is None"),
    "roll_back to nothing": (lambda c, r: c.roll_back(r, None), "num_computed_tokens is None"),
    "take nothing": (lambda c, _: c.pool.take(None), "count is None"),
    "commit": (lambda c, r: c.commit(r, "x"), "num_tokens is 'x'"),
    "can_ever_fit": (lambda c, _: c.can_ever_fit(-1), "num_tokens is -1"),
    "hit_blocks": (lambda c, r: c.hit_blocks(r, "4"), "num_tokens is '4'"),
    "plan_chunk": (lambda c, r: c.plan_chunk(r, "a"), "budget is 'a'"),
    "plan_chunk, matched": (lambda c, r: c.plan_chunk(r, 4, match=3), "expected Match"),
    "hold": (lambda c, _: c.pool.hold("ab"), "block_id is 'a'"),
    "hold one": (lambda c, _: c.pool.hold(5), "block_ids are 5"),
    "describe": (lambda c, _: c.pool.describe(["a"]), "block_id is 'a'"),
    "holders": (lambda c, _: c.pool.holders(0, "x"), "block_hash is 'x'; expected bytes"),
    "recover": (lambda c, _: c.recover(None), "expected Recovery"),
    "recovery": (lambda _, r: Recovery(rewind=[r]), "rewind is .*expected Mapping"),  # type: ignore[arg-type]
    "recover a set": (
        lambda c, _: c.recover(Recovery(hold=A_SET)),
        r"Recovery.hold is \{1\}; expected Seq",
    ),
    "recover a mapping": (
        lambda c, _: c.recover(Recovery(forget=A_MAPPING)),
        r"Recovery.forget is \{1: None\}; expected Seq",
    ),
    "recover bytes": (lambda c, _: c.recover(Recovery(forget=BYTES)), "block 97 does not exist"),
    "block_hashes": (lambda c, _: c.tiers.block_hashes("r"), "request is 'r'"),
    "block_hashes, start": (lambda c, r: c.tiers.block_hashes(r, -1), "start is -1"),
    "match_over": (lambda c, r: c.tiers.match_over(r, 3), "tiers is 3; expected Sequence"),
    "match_over a cache": (lambda c, r: c.tiers.match_over(r, [c]), r"tiers\[0\] is .*BlockPool"),
    "match_over for a text": (lambda c, _: c.tiers.match_over("r", []), "request is 'r'"),
    "resume_points": (lambda c, _: c.tables.resume_points("ab", []), "requests are 'ab'"),
}


@pytest.mark.parametrize(("call", "says"), CALLS.values(), ids=CALLS.keys())
def test_a_call_names_the_value_that_it_does_not_take(call: Call, says: str) -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add([1, 2, 3])
    with pytest.raises(InvalidValueError, match=says):
        call(cache, request)
    cache.debug.check_integrity()


Values = dict[str, Any]
COUNTS: Final = [
    field.name
    for field in fields(Need)
    if field.name.startswith("num_") or field.name == "junction"
]
OPTIONAL: Final = {"junction", "num_computed_tokens"}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [None, "3", 1.5, -1, 1 << 32, [1]], ids=repr)
def test_a_number_of_a_need_that_is_none_is_named_with_its_value(name: str, value: object) -> None:
    cache = CacheManager(config(full(4)))
    request = cache.add([1, 2, 3])
    if value is None and name in OPTIONAL:
        assert cache.allocate([need(request, **{name: value})]).num_fit == 1
        return
    says = re.escape(f"{name} is {value!r}; expected an integer from 0 to 4294967295")
    with pytest.raises(InvalidValueError, match=says):
        cache.allocate([need(request, **{name: value})])
    with pytest.raises(InvalidValueError, match=says):
        cache.blocks_needed(need(request, **{name: value}))


RECOVERIES: Final[dict[str, tuple[Values, str]]] = {
    "forgets None": ({"forget": [None]}, "block_id is None"),
    "preempts a text": ({"preempt": "x"}, "Recovery.preempt: request is 'x'"),
    "preempts nothing": ({"preempt": None}, "requests are None; expected a list"),
    "preempts below zero": ({"preempt": [0, -1]}, "Recovery.preempt: request is -1"),
    "commits for a text": ({"commit": {"a": 1}}, "Recovery.commit: request is 'a'"),
    "commits None": ({"commit": {0: None}}, "num_tokens is None"),
    "rewinds half a request": ({"rewind": {1.5: 2}}, r"Recovery.rewind: request is 1\.5"),
    "rewinds to None": ({"rewind": {0: None}}, "num_tokens is None"),
    "zeroes for None": ({"zero": {None: 2}}, "Recovery.zero: request is None"),
    "zeroes from None": ({"zero": {0: None}}, "num_tokens is None"),
}


@pytest.mark.parametrize(("parts", "says"), RECOVERIES.values(), ids=RECOVERIES.keys())
def test_a_recovery_names_the_value_that_it_does_not_take(parts: Values, says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        Recovery(**parts)


def of(**fields: Any) -> CacheConfig:  # noqa: ANN401 - fields of the configuration
    return CacheConfig(**{"topology": Topology(groups=(full(4),)), "num_blocks": 9, **fields})


CONFIGS: Final[dict[str, tuple[Callable[[], object], str]]] = {
    "a group's kind": (
        lambda: GroupSpec(kind="full_attention", block_size=16),  # type: ignore[arg-type]
        "kind is 'full_attention'; expected a SpecKind, as SpecKind.FULL_ATTENTION",
    ),
    "a group's block": (lambda: GroupSpec(kind=FULL, block_size="16"), "block_size is '16'"),  # type: ignore[arg-type]
    "a topology's groups": (
        lambda: Topology(groups=(NOTHING,)),
        r"groups\[0\] is {}; expected Group",
    ),
    "no groups in a list": (lambda: Topology(groups=full(4)), "expected tuple or list"),  # type: ignore[arg-type]
    "an alignment": (lambda: Topology(groups=(), alignment="4"), "alignment is '4'"),  # type: ignore[arg-type]
    "no configuration": (lambda: CacheManager(None), "config is None"),  # type: ignore[arg-type]
    "a topology": (lambda: of(topology=[full(4)]), "expected Topology"),
    "blocks": (lambda: of(num_blocks="5"), "num_blocks is '5'; expected an integer"),
    "half a block": (lambda: of(num_blocks=5.5), r"num_blocks is 5\.5"),
    "too many blocks": (lambda: of(num_blocks=1 << 33), "num_blocks is 8589934592"),
    "a dialect": (lambda: of(dialect="vllm"), "as EngineDialect.VLLM"),
    "a retention": (lambda: of(retention="value"), "expected Dense or Interval or ByValue"),
    "a hash function": (lambda: of(hash_algo="md5"), "expected a HashAlgo, as HashAlgo.SHA256"),
    "a seed": (lambda: of(hash_seed=0), "hash_seed is 0; expected str or None"),
    "a medium": (lambda: of(medium="cpu"), "medium is 'cpu'; expected one of GPU, CPU, STORAGE"),
    "a length": (lambda: of(max_model_len=-1), "max_model_len is -1"),
    "a watermark": (lambda: of(watermark="a"), "watermark is 'a'"),
    "options": (lambda: of(group_options=({},)), r"group_options\[0\] is {}"),
    "an option": (lambda: GroupOptions(num_speculative_blocks=-1), "num_speculative_blocks is -1"),
    "an interval": (lambda: Interval("a"), "Interval.tokens is 'a'"),  # type: ignore[arg-type]
    "a cost": (lambda: ByValue(cost=3), "ByValue.cost is 3; expected PrefillCost"),  # type: ignore[arg-type]
    "an engine": (lambda: EngineProfile(dialect="vllm"), "as EngineDialect.VLLM"),  # type: ignore[arg-type]
    "no groups at all": (lambda: of(topology=Topology(groups=())), "set caching to False"),
}


@pytest.mark.parametrize(("build", "says"), CONFIGS.values(), ids=CONFIGS.keys())
def test_a_configuration_names_the_value_that_it_does_not_take(
    build: Callable[[], object], says: str
) -> None:
    with pytest.raises((InvalidValueError, TopologyError), match=says):
        build()


FLEET: Final[dict[str, tuple[Callable[[Any], object], str]]] = {
    "a topology": (
        lambda i: i.register(POD, model="m", topology={"groups": []}),
        "topology is {'groups': .*expected Topology",
    ),
    "an engine": (lambda i: i.register(POD, model="m", engine="vllm"), "engine is 'vllm'"),
    "options": (lambda _: FleetIndex("a"), "options is .a.; expected IndexOptions"),  # type: ignore[arg-type]
    "a state": (
        lambda i: i.set_state(POD, "degraded"),
        "state is 'degraded'; .*as PodState.DEGRADED",
    ),
    "pods": (
        lambda i: i.score(Request(model="m", token_ids=[1], pods="a")),
        "pods is 'a'; expected a list",
    ),
}


@pytest.mark.parametrize(("call", "says"), FLEET.values(), ids=FLEET.keys())
def test_an_index_names_the_value_that_it_does_not_take(
    call: Callable[[Any], object], says: str
) -> None:
    index = FleetIndex()
    index.register(POD, model="m")
    with pytest.raises(InvalidValueError, match=says):
        call(index)


def test_what_stands_for_an_integer_passes_as_one() -> None:
    class Number:
        def __index__(self) -> int:
            return 9

    count: Any = Number()
    cache = CacheManager(config(full(4)))
    request = cache.add(range(9))
    assert cache.allocate([Need(request=request, num_new_tokens=count)]).num_fit == 1
    cache.roll_back(request, cache.num_computed_tokens(request))
    cache.commit(request, count)
    assert cache.num_computed_tokens(request) == 9
