"""Overwrites a block that a request is about to reuse, inside a running engine.

The block is chosen when the engine looks the request up, and is overwritten at once, before the
step that reads it. Imported by the engine's process alone, where vLLM is.
"""

from random import Random
from typing import Any

import torch


class Tamper:
    """Stands between an engine's scheduler and its cache manager."""

    def __init__(self, engine: Any) -> None:  # noqa: ANN401 - vLLM's own type.
        core = engine.llm_engine.engine_core.engine_core
        self._config = core.scheduler.kv_cache_config
        runner = core.model_executor.driver_worker.worker.model_runner
        self._layers = runner.compilation_config.static_forward_context
        self._manager = core.scheduler.kv_cache_manager
        self._look_up = self._manager.get_computed_blocks
        self._manager.get_computed_blocks = self._tampering
        self._random = Random(0)
        self._group: int | None = None
        self._is_own = False
        self._last: dict[int, list[torch.Tensor]] = {}
        self.did: bool = False

    @property
    def num_groups(self) -> int:
        return len(self._config.kv_cache_groups)

    def arm(self, group: int, *, is_own: bool) -> None:
        """Overwrite a block of the next hit in a group; with its own bytes if `is_own`."""
        self._group, self._is_own, self.did = group, is_own, False

    def _tampering(self, request: Any) -> Any:  # noqa: ANN401 - vLLM's own types.
        found = self._look_up(request)
        group, self._group = self._group, None
        if group is not None:
            ids = [block_id for block_id in found[0].get_block_ids()[group] if block_id]
            if ids:
                self._overwrite(group, ids)
        return found

    def _overwrite(self, group: int, ids: list[int]) -> None:
        victim = self._random.choice(ids)
        others = [block_id for block_id in ids if block_id != victim]
        pages = self._pages(group, victim)
        own = [page.clone() for page in pages]
        if self._is_own:
            source: list[torch.Tensor] | None = own
        elif others:
            source = [page.clone() for page in self._pages(group, self._random.choice(others))]
        else:
            source = self._last.get(group)  # The one state that an earlier request resumed from.
        if source is not None:
            for page, content in zip(pages, source, strict=True):
                page.copy_(content)
            self.did = True
        if not self._is_own:
            self._last[group] = own

    def _pages(self, group: int, block_id: int) -> list[torch.Tensor]:
        """Return the bytes of a block in every layer of its group."""
        spec = self._config.kv_cache_groups[group].kv_cache_spec
        names = set(self._config.kv_cache_groups[group].layer_names)
        pages = []
        for tensor in self._config.kv_cache_tensors:
            for index, name in enumerate(tensor.layers):
                if name not in names:
                    continue
                view = self._layers[name].kv_cache
                while isinstance(view, list | tuple):
                    view = view[0]
                raw = torch.empty(0, dtype=torch.uint8).set_(view.untyped_storage())
                start = (
                    tensor.offset + index * tensor.layer_stride + block_id * tensor.block_stride
                )
                pages.append(raw[start : start + spec.page_size_bytes])
        assert len(pages) == len(names), (len(pages), names)
        return pages


def run(engine: Any, generate: Any, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """Answer a prompt from its own cache: untouched, rewritten, and overwritten in each group."""
    tamper = engine.__dict__.get("tamper") or Tamper(engine)
    engine.tamper = tamper  # One per engine: it stands in the way for good.
    prompt, count = request["prompt"], request["max_tokens"]

    def reused(group: int | None, *, is_own: bool = False) -> tuple[bool, list[int]]:
        assert engine.reset_prefix_cache()
        generate(engine, {"prompts": [prompt], "max_tokens": 1})
        if group is not None:
            tamper.arm(group, is_own=is_own)
        answer = generate(engine, {"prompts": [prompt], "max_tokens": count})
        assert answer["cached"][0] > 0
        return tamper.did, answer["outputs"][0]

    _, untouched = reused(None)
    rows = []
    for group in range(tamper.num_groups):
        did, overwritten = reused(group)
        _, rewritten = reused(group, is_own=True)
        rows.append(
            {"did": did, "changed": overwritten != untouched, "kept": rewritten == untouched}
        )
    return {"groups": rows}
