"""How near is the mover to what the bus of a GPU carries, and what does that cost a computation?

`make bench-gpu` prints a line for the device, then one for each row, as other benchmarks do. It
makes no environment: it needs a python3 with torch for CUDA, numpy and msgspec, nothing that is
built. Every byte that a row moves is compared before anything is timed.

The rival of the rows `gpu_h2d_*` and `gpu_d2h_*` is the largest plain copy of the same process;
they are named by the runs on the device. Runs of 64 and 16 KiB are those of single layers, 24 of
which make a block and its slot. The rival of `gpu_layout_*` is one buffer per layer, with the best
mechanism on both sides.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch
    from kvbraid.layout import MemoryPlan
    from kvbraid.layout.tensors import Tensors
    from kvbraid.transfer.jobs import Kind

NO_GPU: Final = (
    "bench-gpu: no GPU that torch can use; run it where python3 has msgspec, numpy and torch, and "
    "torch.cuda.is_available() is True"
)
MOST_SECONDS: Final = 7 * 60.0
MOVED_BYTES: Final = 256 << 20
REPEATS: Final = 7
GEMM_SIZE: Final = 8192

Seconds = float


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Blocks of layers of 16 KiB times `factor`, blocks outermost or layers outermost."""

    num_layers: int
    factor: int = 1
    layers_outermost: bool = False
    target: float

    def plan(self, moved_bytes: int) -> "MemoryPlan":
        """Return a plan whose pool is twice what is moved."""
        from kvbraid.layout import Layout, LayoutGroup, LayoutLayer, geometry_of, plan_memory
        from kvbraid.models.pages import Page
        from kvbraid.models.shapes import Heads
        from kvbraid.spec import SpecKind

        heads = Heads(num=2 * self.factor, key_dim=128, value_dim=128, dtype="bfloat16")
        page = Page(kind=SpecKind.FULL_ATTENTION, block_size=16, shape=heads)
        layout = Layout.LBHNC if self.layers_outermost else Layout.BLHNC
        geometry = geometry_of(layout, heads, 16)
        layers = tuple(
            LayoutLayer(name=f"{number}", page=page, geometry=geometry)
            for number in range(self.num_layers)
        )
        num_blocks = 2 * max(2, moved_bytes // (self.num_layers * page.page_bytes)) + 1
        group = LayoutGroup(kind=page.kind, block_size=16, layers=layers)
        return plan_memory([group], num_blocks=num_blocks)


RUNS: Final = {
    "4m": Runs(num_layers=32, factor=8, target=0.95),
    "1m": Runs(num_layers=8, factor=8, target=0.9),
    "384k": Runs(num_layers=24, target=0.9),
    "192k": Runs(num_layers=12, target=0.9),
    "64k": Runs(num_layers=24, factor=4, layers_outermost=True, target=0.85),
    "16k": Runs(num_layers=24, layers_outermost=True, target=0.75),
}
MODELS: Final = (
    "copies_gpt_oss_20b_tp1",
    "copies_gpt_oss_20b_tp2",
    "copies_gemma_3_27b",
    "copies_deepseek_v3",
    "copies_qwen3_next",
)


class Pool:
    """A pool with random bytes, an arena, a mover between them, and which blocks move where."""

    def __init__(self, plan: "MemoryPlan", device: "torch.device", calibrations: Path) -> None:
        import numpy as np
        import torch
        from kvbraid.layout.tensors import allocate
        from kvbraid.transfer.host import HostSlots, HostTier
        from kvbraid.transfer.mover import Mover
        from kvbraid.transfer.mover.cuda import CudaEngine

        assert plan.num_blocks is not None
        self.plan = plan
        self.tensors: Tensors = allocate(plan, device)
        self.tensors.memory.copy_(
            torch.randint(-128, 128, self.tensors.memory.shape, dtype=torch.int8, device=device)
        )
        self.engine: CudaEngine = CudaEngine(self.tensors, calibrations=calibrations)
        one = HostSlots.of(plan, 1 << 60)
        share = max(1, (plan.num_blocks - 1) // 2 // len(plan.groups))
        num = share * len(plan.groups)
        slots = HostSlots.of(plan, num * one.slot_bytes)
        self.host: HostTier = HostTier(slots, pinning=self.engine.pinning)
        assert self.host.wait()
        self.mover: Mover = Mover(
            plan, bases=self.tensors.bases, host=self.host, engine=self.engine
        )
        rng = np.random.default_rng(11)
        slot_ids = rng.permutation(num).astype(np.uint64) + np.uint64(1)
        block_ids = rng.permutation(plan.num_blocks - 1).astype(np.uint64) + np.uint64(1)
        self.pairs = [
            (block_ids[group * share :][:share], slot_ids[group * share :][:share])
            for group in range(len(plan.groups))
        ]
        self.num_bytes = sum(
            len(blocks) * group.used_bytes
            for (blocks, _), group in zip(self.pairs, plan.groups, strict=True)
        )

    def start(self, kind: "Kind") -> None:
        """Begin to move all pairs."""
        from kvbraid.transfer.jobs import Kind

        for group, (blocks, slots) in enumerate(self.pairs):
            ends = (slots, blocks) if kind is Kind.LOAD else (blocks, slots)
            self.mover.start(kind, group, *ends)

    def seconds(self, kind: "Kind") -> Seconds:
        """Return how long moving all pairs takes, from the call to the end of the copies."""
        begun = time.perf_counter()
        self.start(kind)
        self.mover.close()
        return time.perf_counter() - begun

    def verify(self) -> None:
        """Check every byte of the slots after a store, and of the pool after a load."""
        import torch
        from kvbraid.transfer.jobs import Kind

        before = self.tensors.memory.clone()
        self.seconds(Kind.STORE)
        content = before.cpu().numpy().view("uint8").data
        for index, ((blocks, slots), group) in enumerate(
            zip(self.pairs, self.plan.groups, strict=True)
        ):
            for block, slot in zip(blocks.tolist(), slots.tolist(), strict=True):
                payload, begin = self.host.payload(slot, index), 0
                for reference in group.references:
                    start = self.plan.buffers[reference.buffer].start or 0
                    start += block * reference.block_stride
                    for offset, length in reference.exact():
                        run = content[start + offset : start + offset + length]
                        assert payload[begin : begin + length] == run, f"block {block}"
                        self.tensors.memory[start + offset : start + offset + length] = 0
                        begin += length
        assert not torch.equal(self.tensors.memory, before)
        self.seconds(Kind.LOAD)
        assert torch.equal(self.tensors.memory, before)

    def mechanisms(self) -> str:
        """Return what was chosen, for people."""
        return ", ".join(
            f"{kind} {'staged ' if choice.is_staged else ''}{choice.mechanism}"
            for kind, choice in self.engine.counts
        )

    def close(self) -> None:
        """Give memory back."""
        self.mover.close()
        self.host.close()


@contextmanager
def pool(plan: "MemoryPlan", device: "torch.device", calibrations: Path) -> Iterator[Pool]:
    """A pool whose moves were verified."""
    made = Pool(plan, device, calibrations)
    try:
        made.verify()
        yield made
    finally:
        made.close()


def median(measure: Callable[[], Seconds]) -> Seconds:
    """Return the median time, after once that does not count."""
    measure()
    return statistics.median(measure() for _ in range(REPEATS))


def peaks(device: "torch.device", moved_bytes: int) -> dict[str, float]:
    """Return the bytes a second of the largest plain copies: the best of all."""
    import torch

    here = torch.zeros(moved_bytes, dtype=torch.int8, device=device)
    there = torch.zeros(moved_bytes, dtype=torch.int8, pin_memory=True)

    def seconds(target: "torch.Tensor", source: "torch.Tensor") -> Seconds:
        begun = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        return time.perf_counter() - begun

    ways = {"h2d": (here, there), "d2h": (there, here)}
    return {
        way: moved_bytes / min(seconds(*ends) for _ in range(3 + REPEATS))
        for way, ends in ways.items()
    }


def line(
    name: str, ours: float, rival: float, target: float | None, beside: dict[str, str]
) -> None:
    """Print a row: bytes a second, and ours as a share of the rival's."""
    ratio = ours / rival
    figures: dict[str, object] = {
        "bench": name,
        "ours": round(ours / 1e9, 2),
        "rival": round(rival / 1e9, 2),
        "unit": "GB/s",
        "ratio": round(ratio, 3),
        "target": "stated" if target is None else f"ratio >= {target:g}",
        "met": None if target is None else ratio >= target,
    }
    print(json.dumps(figures | {"beside": beside}), flush=True)


def gemm_seconds(device: "torch.device", background: Callable[[], object]) -> Seconds:
    """Return how long products of matrices take while something else was begun before them."""
    import torch

    left = torch.ones(GEMM_SIZE, GEMM_SIZE, dtype=torch.bfloat16, device=device)
    torch.cuda.synchronize(device)

    def once() -> Seconds:
        background()
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        for _ in range(4):
            left @ left
        ended.record()
        torch.cuda.synchronize(device)
        return float(begun.elapsed_time(ended)) / 1_000

    return median(once)


def measure_runs(name: str, device: "torch.device", calibrations: Path, moved: int) -> None:
    """Print both rows of one length of runs."""
    from kvbraid.transfer.jobs import Kind

    runs, best = RUNS[name], peaks(device, moved)
    with pool(runs.plan(moved), device, calibrations) as one:
        for way, kind in (("d2h", Kind.STORE), ("h2d", Kind.LOAD)):
            ours = one.num_bytes / median(lambda kind=kind: one.seconds(kind))  # type: ignore[misc]
            line(f"gpu_{way}_{name}", ours, best[way], runs.target, {"chosen": one.mechanisms()})


def measure_together(device: "torch.device", calibrations: Path, moved: int) -> None:
    """Print what both directions carry at once, and what a computation beside them loses."""
    from kvbraid.transfer.jobs import Kind

    plan, best = RUNS["4m"].plan(moved), peaks(device, moved)
    with pool(plan, device, calibrations) as out, pool(plan, device, calibrations) as back:

        def both() -> Seconds:
            begun = time.perf_counter()
            out.start(Kind.STORE)
            back.start(Kind.LOAD)
            out.mover.close()
            back.mover.close()
            return time.perf_counter() - begun

        carried = (out.num_bytes + back.num_bytes) / median(both)
        line("gpu_both_4m", carried, max(best.values()), None, {})
        alone = gemm_seconds(device, lambda: None)
        slowdown = {
            kind.value: round(gemm_seconds(device, lambda kind=kind: out.start(kind)) / alone, 3)  # type: ignore[misc]
            for kind in (Kind.STORE, Kind.LOAD)
        }
    print(json.dumps({"bench": "gpu_gemm", "unit": "times as long", "beside": slowdown}))


def measure_model(name: str, device: "torch.device", calibrations: Path, moved: int) -> None:
    """Print how much more our layout carries than one buffer per layer."""
    from kvbraid.transfer.jobs import Kind

    from bench.layout.bench_copies import MODELS as ALL

    model = ALL[name]
    per_block = replace(model, num_blocks=2).plan().block_bytes
    model = replace(model, num_blocks=2 * max(8, moved // per_block) + 1)
    found: dict[str, tuple[float, str]] = {}
    for layout, plan in (("ours", model.plan()), ("rival", model.plan_per_layer())):
        with pool(plan, device, calibrations) as one:
            seconds = median(lambda: one.seconds(Kind.LOAD))
            found[layout] = one.num_bytes / seconds, one.mechanisms()
    line(
        name.replace("copies_", "gpu_layout_"),
        found["ours"][0],
        found["rival"][0],
        None,
        {layout: chosen for layout, (_, chosen) in found.items()},
    )


def measure_all(device: "torch.device", calibrations: Path, moved: int = MOVED_BYTES) -> int:
    """Print all rows for which there is time; return how many there was none for."""
    begun = time.perf_counter()
    measures: list[Callable[[], None]] = [
        *(lambda name=name: measure_runs(name, device, calibrations, moved) for name in RUNS),
        lambda: measure_together(device, calibrations, moved),
        *(lambda name=name: measure_model(name, device, calibrations, moved) for name in MODELS),
    ]
    for number, measure in enumerate(measures):
        if time.perf_counter() - begun > MOST_SECONDS:
            return len(measures) - number
        measure()
    return 0


def main() -> int:
    """Measure, or say in a line what is missing."""
    if not all(find_spec(name) for name in ("torch", "numpy", "msgspec")):
        print(NO_GPU, file=sys.stderr)
        return 2
    import torch

    if not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    from kvbraid.transfer.mover.cuda import device_name
    from kvbraid.transfer.mover.cudart import CudaRuntime, loaded_library

    device = torch.device("cuda", torch.cuda.current_device())
    torch.zeros(1, device=device)  # Loads the runtime.
    of = device_name(CudaRuntime(loaded_library()), device)
    about = {"device": of.device, "driver": of.driver, "cuda": of.cuda}
    print(json.dumps({**about, "torch": torch.__version__, "python": sys.version.split()[0]}))
    with tempfile.TemporaryDirectory() as folder:
        num_left = measure_all(device, Path(folder))
    if num_left:
        print(f"bench-gpu: no time was left for {num_left} measurements", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
