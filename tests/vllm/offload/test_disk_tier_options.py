"""What operators ask of the tier: what is refused, whose records are read, what the page says."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from kvbraid.errors import InvalidValueError

from tests.vllm import drop_in_pair  # noqa: F401 - imports vLLM with its warnings off.

if True:  # Only afterwards.
    import kvbraid.integrations.vllm as integration
    import msgspec
    from kvbraid.integrations.vllm.disk_tier.counts import METRICS
    from kvbraid.integrations.vllm.disk_tier.options import DiskTierSettings, namespace_of
    from vllm.v1.kv_offload.config import OffloadingCacheConfig, OffloadingModelConfig
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

    from tests.vllm.offload.stock_tiers import (
        RECORD_BYTES,
        ROW_BYTES,
        StockTiers,
        changed,
        config,
        entry,
    )

PAGE: Final = Path(__file__).parents[3] / "docs" / "offload-stock.md"
HERE: Final = Path("directory")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"disk_bites": 1}, r"disk_bites.*did you mean disk_bytes"),
        ({"disk_bytes": "1 GB"}, r"disk_bytes.*1 GB.*expected `int`"),
        ({"disk_bytes": RECORD_BYTES - 1}, rf"{RECORD_BYTES - 1}.*one record has {RECORD_BYTES}"),
        ({"disk_bytes": -1}, r"disk_bytes.*>= 1"),
        ({"disk_threads": 1}, r"disk_threads.*>= 2"),
        ({"disk_load_seconds": 0}, r"disk_load_seconds.*> 0"),
        ({"locality": "HERE"}, r"locality.*LOCAL, REMOTE"),
        ({"disk_directory": ""}, r"disk_directory.*>= 1"),
        ({"disk_directory": None}, r"disk_directory.*give at least"),
    ],
)
def test_what_is_wrong_is_refused_by_name_before_a_directory_is_made(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    directory = tmp_path / "records"
    with pytest.raises(InvalidValueError, match=f"secondary_tiers: .*{message}"):
        StockTiers(directory, **options)
    assert not directory.exists()


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"")
    with pytest.raises(InvalidValueError, match="file cannot be a tier"):
        StockTiers(place)


CHANGES: Final[dict[str, dict[str, Any]]] = {
    "model": {"model": OffloadingModelConfig(name="other", dtype="bfloat16")},
    "type": {"model": OffloadingModelConfig(name="model", dtype="fp8")},
    "chunks": {"cache": OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=2)},
    "layout": {"kv_cache_layout": "BLHNC"},
    "canonical": {"canonical_layout": True},
    "groups": {"groups": config(entry(HERE)).groups[:1]},
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_engine_whose_rows_hold_something_else_has_another_namespace(what: str) -> None:
    made = config(entry(HERE))
    own = namespace_of(made, ROW_BYTES, "").digest
    assert namespace_of(changed(made), ROW_BYTES, "").digest == own
    assert namespace_of(changed(made, **CHANGES[what]), ROW_BYTES, "").digest != own


def test_row_revision_and_seed_are_part_of_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(entry(HERE))
    digests = {namespace_of(made, ROW_BYTES, "").digest}
    digests.add(namespace_of(made, 2 * ROW_BYTES, "").digest)
    digests.add(namespace_of(made, ROW_BYTES, "main").digest)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    digests.add(namespace_of(made, ROW_BYTES, "").digest)
    assert len(digests) == 4


def test_the_package_gives_the_tier_by_its_name_and_no_other() -> None:
    tier = SecondaryTierFactory.get_tier_class(entry(HERE))
    assert tier is integration.KvbraidDiskTier
    with pytest.raises(AttributeError, match="KvbraidDisk'"):
        integration.KvbraidDisk  # type: ignore[attr-defined]  # noqa: B018


def test_vllm_defines_every_metric_of_the_tier(tmp_path: Path) -> None:
    extra = config(entry(tmp_path)).extra_config
    assert TieringOffloadingSpec.build_metric_definitions(extra).items() >= METRICS.items()
    tiers = StockTiers(tmp_path)
    tiers.store(0)
    tiers.close()
    assert tiers.counts
    for name, *labels in tiers.counts:
        assert len(METRICS[name].labelnames) == len(labels)


def tables() -> dict[str, tuple[str, ...]]:
    """Return the rows of the page's tables, by their first cell in back ticks."""
    rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `")
    )
    return {cells[0].strip("`"): tuple(cells[1:]) for cells in rows}


def test_the_page_has_every_key_with_its_default() -> None:
    rows = tables()
    for field in msgspec.structs.fields(DiskTierSettings):
        default = "needed" if field.required else json.dumps(field.default)
        assert rows[field.encode_name][0].strip("`") == default, field.name


def test_the_page_has_every_metric_with_its_labels() -> None:
    rows = tables()
    for name, metadata in METRICS.items():
        labels = re.findall(r"`(\w+)`", rows[name][0])
        assert tuple(labels) == metadata.labelnames, name


def test_the_pages_configuration_starts_an_engines_tiers(tmp_path: Path) -> None:
    (asked,) = re.findall(r"--kv-transfer-config '(.*?)'", PAGE.read_text(), re.DOTALL)
    extra = json.loads(asked)["kv_connector_extra_config"]
    (tier,) = extra["secondary_tiers"]
    assert extra["spec_name"] == "TieringOffloadingSpec"
    made = config({**tier, "disk_directory": str(tmp_path)})
    tiers = StockTiers.of(made)
    tiers.store(0)
    tiers.forget()
    assert len(tiers.load(0)) == 1
    tiers.close()
