"""The worker of vLLM's own offloading on a CPU, where vLLM has none: copies that end at once.

`NUM_LOADED` counts the blocks that it has loaded.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

NUM_LOADED: Final = Counter[str]()


class CopyingWorker(OffloadingWorker):  # type: ignore[misc] # Untyped here.
    """Chunks of one block each, by their ids."""

    def __init__(self, caches: CanonicalKVCaches) -> None:
        self._caches = caches
        self._chunks: dict[int, list[torch.Tensor]] = {}
        self._ended: list[TransferResult] = []

    def _pages(self, spec: GPULoadStoreSpec) -> Iterator[list[torch.Tensor]]:
        ids = iter(spec.block_ids.tolist())
        for refs, count in zip(self._caches.group_data_refs, spec.group_sizes, strict=True):
            for _ in range(count):
                block = next(ids)
                yield [self._caches.tensors[ref.tensor_idx].tensor[block] for ref in refs]

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: Any) -> bool:  # noqa: ANN401
        for chunk, pages in zip(dst_spec.block_ids.tolist(), self._pages(src_spec), strict=True):
            self._chunks[chunk] = [page.clone() for page in pages]
        return self._end(job_id)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: GPULoadStoreSpec) -> bool:  # noqa: ANN401
        for chunk, pages in zip(src_spec.block_ids.tolist(), self._pages(dst_spec), strict=True):
            NUM_LOADED["loaded"] += 1
            for page, content in zip(pages, self._chunks[chunk], strict=True):
                page.copy_(content)
        return self._end(job_id)

    def _end(self, job_id: int) -> bool:
        self._ended.append(TransferResult(job_id, success=True))
        return True

    def get_finished(self) -> list[TransferResult]:
        ended, self._ended = self._ended, []
        return ended

    def wait(self, job_ids: set[int]) -> None: ...


class CopyingSpec(CPUOffloadingSpec):  # type: ignore[misc] # Untyped here.
    """vLLM's own offloading to host memory, but for its worker."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> CopyingWorker:
        return CopyingWorker(kv_caches)
