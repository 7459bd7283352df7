"""A directory of our records as a tier of vLLM's own `OffloadingConnector`, under any scheduler.

    primary tier of vLLM  <->  rows: a chunk of every rank  <->  records: verified, bounded, shared

In reading order: `options` is what operators ask for, and whose records an engine may read; `rows`
is a directory whose reads can be given up; `counts` is what vLLM's metrics say of it; `tier` is
what vLLM calls, in the scheduler's process alone.
"""

from kvbraid.integrations.vllm.disk_tier.tier import KvbraidDiskTier

__all__ = ["KvbraidDiskTier"]
