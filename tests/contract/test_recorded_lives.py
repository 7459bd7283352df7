"""Recorded lives of real engines over our cache: every message of theirs, evictions included.

Whole captures where they lie beside the repository, the first operations of some otherwise.
"""

import pytest

from tests.captures import LIVES, folder_of
from tests.contract.recorded_life import assert_is_lived_again
from tests.unit.cache.caches import FreesAtOnce


@pytest.mark.parametrize("name", LIVES)
def test_every_message_of_a_recorded_life_is_ours(name: str) -> None:
    assert assert_is_lived_again(folder_of(name), FreesAtOnce) > 0
