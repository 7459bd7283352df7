"""Blocks offloaded to host memory and disk, in a live engine on our schedulers.

    scheduler's process    options -> scheduler_side     index, pins, decisions: no bytes
    workers' processes     options -> worker_side        arena, files, copies: no decisions
    between them           messages                      jobs and results, pickled by vLLM

In reading order: `options` is what operators ask for, `tier_metrics` what they are told;
`messages` is all that crosses; `scheduler_side` decides, `worker_side` moves; `connector` is what
vLLM calls, in both processes.
"""

from kvbraid.integrations.vllm.offload.connector import OffloadConnector

__all__ = ["OffloadConnector"]
