"""A worker of vLLM's tiered offloading on a CPU, where vLLM has none: it copies rows at once."""

from collections.abc import Iterator
from typing import Any

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class RowsWorker(OffloadingWorker):  # type: ignore[misc] # Untyped here.
    """Chunks of one block each, in the memory that the scheduler's process sees as well."""

    def __init__(self, caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        self._region = region
        self._caches = caches
        self._rows = [
            region.create_next_worker_view(each.page_size_bytes) for each in caches.tensors
        ]
        self._ended: list[TransferResult] = []

    def _pairs(
        self, device: GPULoadStoreSpec, host: CPULoadStoreSpec
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the bytes of each page on the device, with those of its row."""
        ids = zip(device.block_ids.tolist(), host.chunk_ids.tolist(), strict=True)
        for refs, count in zip(self._caches.group_data_refs, device.group_sizes, strict=True):
            for block, chunk in (next(ids) for _ in range(count)):
                for ref in refs:
                    page = self._caches.tensors[ref.tensor_idx].tensor[block]
                    row = self._rows[ref.tensor_idx][chunk]
                    yield page.view(torch.int8).flatten(), row[: page.nbytes]

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: Any) -> bool:  # noqa: ANN401
        for page, row in self._pairs(src_spec, dst_spec):
            row.copy_(page)
        return self._end(job_id)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: GPULoadStoreSpec) -> bool:  # noqa: ANN401
        for page, row in self._pairs(dst_spec, src_spec):
            page.copy_(row)
        return self._end(job_id)

    def _end(self, job_id: int) -> bool:
        self._ended.append(TransferResult(job_id, success=True))
        return True

    def get_finished(self) -> list[TransferResult]:
        ended, self._ended = self._ended, []
        return ended

    def wait(self, job_ids: set[int]) -> None: ...

    def shutdown(self) -> None:
        self._rows.clear()
        self._region.cleanup()


class RowsSpec(TieringOffloadingSpec):  # type: ignore[misc] # Untyped here.
    """vLLM's own tiers, but for the worker."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> RowsWorker:
        region = SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=0,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return RowsWorker(kv_caches, region)
