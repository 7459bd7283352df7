"""What an operator can do about a rank whose messages are lost, in one line.

docs/operate.md explains each part of the line.
"""

from typing import Final

from kvbraid.ids import PodState
from kvbraid.service.config import PodConfig
from kvbraid.spec import EngineDialect

_NO_REPLAY: Final = "give the engine and the pod a replay_endpoint"
_SHORT_BUFFER: Final = "raise the engine's buffer_steps, or start kvbraid before the engine"
_NO_GROUPS: Final = "list the pod's groups, as kvbraid model CONFIG --groups --toml prints them"
_NO_SIZE: Final = "set the pod's num_gpu_blocks to make answers exact as its cache turns over"
_NOW: Final = "reset the engine's prefix cache to make answers exact now"


def remedy_for(feed_state: PodState, config: PodConfig) -> str:
    """Return what keeps messages from being lost again, and what heals the loss.

    Args:
        feed_state: How completely the feed knows the rank's history. Only a loss for good makes
            it `degraded`; a contradiction or a refused event does not.
        config: How the pod is registered.

    Returns:
        One line; empty if nothing is lost.
    """
    if feed_state is not PodState.DEGRADED:
        return ""
    has_groups = config.topology is not None and bool(config.topology.groups)
    parts = (
        _SHORT_BUFFER if config.replay_endpoint else _NO_REPLAY,
        "" if has_groups else _NO_GROUPS,
        _NO_SIZE if _needs_size(config) else "",
        _NOW,
    )
    return "; ".join(part for part in parts if part)


def _needs_size(config: PodConfig) -> bool:
    """Whether the index would count with the size of this engine's pool, and is not told it."""
    engine = config.engine
    return (
        engine.num_gpu_blocks is None
        and engine.dialect is not EngineDialect.SGLANG
        and engine.report_mode == "incremental"
        and not engine.extra_keys
        and not (config.topology and config.topology.partial_hits)
    )
