"""Options of offloading: what is refused before an engine starts, and what the page says."""

import re
from copy import copy
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.vllm.engines import LAYOUTS, config

if True:  # Only after `engines` has imported vLLM with its warnings off.
    from kvbraid.errors import InvalidValueError, UnsupportedError
    from kvbraid.integrations.vllm import KvbraidScheduler
    from kvbraid.integrations.vllm.offload.options import OffloadSettings, offload_settings
    from vllm.config import KVTransferConfig
    from vllm.v1.core.sched.scheduler import Scheduler

PAGE: Final = Path(__file__).parents[3] / "docs" / "offload-vllm.md"
ENOUGH: Final[dict[str, Any]] = {"host_bytes": 1_000_000}
DISK: Final[dict[str, Any]] = {"disk_directory": "/somewhere", "disk_bytes": 1_000_000}


def asked(extra: dict[str, Any], scheduler: type = KvbraidScheduler) -> Any:  # noqa: ANN401 - vLLM's own type.
    made = config(LAYOUTS["window and full"], is_async=False)
    made.scheduler_config.scheduler_cls = scheduler
    made.kv_transfer_config = KVTransferConfig(
        kv_connector="OffloadConnector",
        kv_connector_module_path="kvbraid.integrations.vllm.offload",
        kv_role="kv_both",
        kv_connector_extra_config=extra,
    )
    return made


def test_what_is_asked_for_is_read_beside_the_options_of_recovery() -> None:
    extra = ENOUGH | DISK | {"disk_threads": 8, "kvbraid_recovery": {"policy": "retry"}}
    settings = offload_settings(asked(extra))
    assert settings == OffloadSettings(**ENOUGH, **DISK, disk_threads=8)


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({}, "host_bytes"),
        ({"host_bytes": 0}, "host_bytes = 0"),
        ({"host_bytes": "64GB"}, "host_bytes = '64GB'"),
        (ENOUGH | {"disk_dir": "/x"}, "did you mean disk_directory?"),
        (ENOUGH | {"disk_bytes": 5}, "disk_bytes = 5; give both"),
        (ENOUGH | {"disk_directory": "/x"}, "disk_directory = '/x'"),
        (ENOUGH | DISK | {"disk_threads": 1}, "disk_threads = 1"),
        (ENOUGH | {"lookup_seconds": -1}, "lookup_seconds = -1"),
    ],
)
def test_a_wrong_option_is_refused_with_its_value(extra: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(told)):
        offload_settings(asked(extra))


def test_another_scheduler_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"--scheduler-cls kvbraid\S+\.KvbraidScheduler"):
        offload_settings(asked(ENOUGH, Scheduler))


def test_an_engine_without_prefix_caching_is_refused() -> None:
    made = asked(ENOUGH)
    made.cache_config = copy(made.cache_config)
    made.cache_config.enable_prefix_caching = False
    with pytest.raises(UnsupportedError, match="--no-enable-prefix-caching"):
        offload_settings(made)


def test_a_disk_with_random_hashes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    made = asked(ENOUGH | DISK)
    made.cache_config = copy(made.cache_config)
    made.cache_config.prefix_caching_hash_algo = "xxhash"
    with pytest.raises(UnsupportedError, match="set PYTHONHASHSEED"):
        offload_settings(made)
    made.kv_transfer_config.kv_connector_extra_config = ENOUGH
    assert offload_settings(made).disk_directory is None


def test_the_page_has_each_option_with_its_default() -> None:
    four_cells = r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| [^|]+ \|$"
    rows = re.findall(four_cells, PAGE.read_text(), re.MULTILINE)
    told = {msgspec.NODEFAULT: "required", None: "none"}
    fields = msgspec.structs.fields(OffloadSettings)
    assert rows == [(each.name, told.get(each.default, str(each.default))) for each in fields]
