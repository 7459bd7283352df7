"""With a connector, vLLM's schedulers schedule on our cache what they schedule on their own.

No load fails: after failures ours recovers, which `recovery/` tests. Blocks are zeroed in all of
these layouts, or are said to be: what a load fills is left out. The connector is
`loading_connector`.
"""

from dataclasses import replace
from typing import Any, Final

import pytest
from kvbraid.errors import UnsupportedError

from tests.vllm import loading_connector
from tests.vllm.drop_in_pair import full, states, window
from tests.vllm.engines import Engines, Layout, alike, config, scheduler

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    import torch
    from kvbraid.integrations.vllm import KvbraidScheduler
    from vllm.config import KVTransferConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput

LAYOUTS: Final = {
    "states": Layout((states(), full()), 160, 16, 16),
    "states inside blocks": Layout((states(64), full(64)), 80, 64, 16),
    "two number formats": Layout((replace(window(40), dtype=torch.bfloat16), full()), 120, 16, 16),
    "one group": Layout((full(),), 80, 16, 16),
}
"""With states, the pool is large: the engine counts a block too few for a load, and then dies."""


class LoadingEngines(Engines):
    """With a connector of the tests; a step's output says which loads have ended."""

    def config(self, layout: Layout, *, is_async: bool, **options: object) -> Any:  # noqa: ANN401 - vLLM's own type.
        return with_connector(config(layout, is_async=is_async, **options))

    def reset(self) -> None:
        """Forget the cache if nothing runs or loads: vLLM cannot restart a request that loads."""
        alike(made.reset_prefix_cache() for made in self.schedulers)

    def loads(self) -> Any:  # noqa: ANN401 - vLLM's own type.
        connectors = [made.connector for made in self.schedulers]
        loading = alike(connector.loading for connector in connectors)
        output = KVConnectorOutput(finished_recving=set())
        for name in list(loading):
            if self._random.random() < 0.7:
                continue
            output.finished_recving.add(name)
            for connector in connectors:
                del connector.loading[name]
        return output


def with_connector(made: Any, name: str = "LoadingConnector") -> Any:  # noqa: ANN401 - vLLM's own type.
    made.kv_transfer_config = KVTransferConfig(
        kv_connector=name,
        kv_connector_module_path=loading_connector.__name__,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
    )
    return made


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_steps_with_loads_are_scheduled_alike(
    name: str, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeroes = property(lambda _: True)  # One group alone is never zeroed; here it is.
    monkeypatch.setattr(KVCacheConfig, "needs_kv_cache_zeroing", zeroes)
    engines = LoadingEngines(LAYOUTS[name], is_async=is_async)
    engines.live()
    assert engines.schedulers[-1].connector.num_loads > 15
    assert engines.num_hits > 0


def test_a_connector_that_continues_hits_without_their_state_is_refused() -> None:
    for name, layout in LAYOUTS.items():
        made = with_connector(config(layout, is_async=False), "DivergentConnector")
        if "states" in name:
            with pytest.raises(UnsupportedError, match="DivergentConnector continues hits"):
                scheduler(KvbraidScheduler, layout, made)
        else:
            scheduler(KvbraidScheduler, layout, made)
