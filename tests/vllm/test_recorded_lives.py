"""The recorded lives over vLLM's own cache manager: it passes the test that ours must pass."""

import pytest

from tests.captures import LIVES, folder_of
from tests.contract.recorded_life import assert_is_lived_again
from tests.vllm.stock_cache import StockCache


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LIVES)
def test_the_engines_own_cache_lives_it_again(name: str) -> None:
    assert assert_is_lived_again(folder_of(name), StockCache) > 0
