"""The counters of offloading: what the pages list, and what the code has, both ways."""

import ast
import re
from dataclasses import fields
from typing import Final

from kvbraid.transfer.offload import Drop, OffloadCounts
from kvbraid.transfer.rank_counts import DIRECTORY_INCIDENTS, INCIDENTS

from tests.docs.markdown import DOCS, ROOT, codes, tables

METRICS: Final = ROOT / "python/kvbraid/integrations/vllm/offload/tier_metrics.py"
WORKER: Final = ROOT / "python/kvbraid/transfer/worker.py"
OF_CALIBRATION: Final = {"calibration_trials", "calibration_refused", "calibration_unwritten"}
"""Of the engine on a CUDA device, as tests/torch/test_cuda_engine.py sees it."""

HOW: Final = "How blocks are stored and loaded"
TOLD, INCIDENT_ROWS = tables("offload-vllm.md", "How to see it")


def metrics() -> dict[str, tuple[str, ...]]:
    """The labels of each metric, from the tables of a module that only vLLM can import."""
    found = {}
    for node in ast.parse(METRICS.read_text()).body:
        name = getattr(getattr(node, "target", None), "id", "")
        if isinstance(node, ast.AnnAssign) and name in {"COUNTERS", "GAUGES"}:
            assert node.value is not None
            suffix = "_total" if name == "COUNTERS" else ""
            for metric, (_, labels) in ast.literal_eval(node.value).items():
                found[f"kvbraid_tier_{metric}{suffix}"] = ("engine", *labels)
    return found


def test_every_metric_has_its_row_with_its_labels() -> None:
    listed = {codes(name)[0]: tuple(codes(labels)) for name, labels, _ in TOLD}
    assert len(listed) == len(TOLD)
    assert listed == metrics()


def test_every_incident_has_its_row() -> None:
    listed = [incident for row in INCIDENT_ROWS for incident in codes(row[0])]
    counted = [*INCIDENTS, *DIRECTORY_INCIDENTS, *OffloadCounts().incidents(), *OF_CALIBRATION]
    assert sorted(listed) == sorted(counted)


def test_every_reason_of_an_item_that_failed_is_named() -> None:
    (meaning,) = (row[2] for row in TOLD if "failed_items" in row[0])
    assert {*codes(meaning)} == {*re.findall(r'_fail\("(\w+)"', WORKER.read_text())}


def test_every_counter_of_the_manager_has_its_row() -> None:
    (rows,) = (t for t in tables("offload.md", HOW) if "`num_bytes`" in t[0][0])
    listed = [name for row in rows for name in codes(row[0])]
    assert sorted(listed) == sorted(each.name for each in fields(OffloadCounts))


def test_every_reason_of_a_drop_is_named() -> None:
    sentence = (DOCS / "offload.md").read_text().split("\nReasons of drops: ")[1].split("\n\n")[0]
    assert sorted(codes(sentence)) == sorted(map(str, Drop))
