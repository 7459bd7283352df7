"""Packed groups are those of a real vLLM's own functions with a block-outermost layout."""

import warnings

import pytest
from hypothesis import given, settings
from kvbraid.models import CacheLayer
from kvbraid.models.packing import packed_groups

from tests.unit.models.packed_models import PACKED, layers
from tests.vllm.random_models import models, ours

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Of torch and vLLM, while they are imported.
    from vllm.v1.kv_cache_layout import KVCacheLayout

    from tests.vllm.engine_groups import described


@settings(max_examples=2_000)
@given(model=models())
@pytest.mark.timeout(600)
def test_random_layers_are_packed_into_the_engines_own_groups(
    model: tuple[CacheLayer, ...],
) -> None:
    assert ours(model, packed_groups) == described(model, KVCacheLayout.BLNHC)


@pytest.mark.parametrize("case", PACKED)
def test_a_models_layers_are_packed_as_the_engine_packs_them(case: str) -> None:
    model = layers(*PACKED[case][0])
    assert ours(model, packed_groups) == described(model, KVCacheLayout.BLNHC)
