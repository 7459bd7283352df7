"""How long comparisons with a real engine run: `make test-vllm`, or `make soak-vllm`."""

import os
from typing import Final

IS_SOAK: Final = os.environ.get("KVBRAID_SOAK") == "1"
NUM_OPERATIONS: Final = 10_000 if IS_SOAK else 1_000
"""Of lock-step, a configuration."""
NUM_REQUESTS: Final = 400 if IS_SOAK else 60
"""Of a live comparison, a model."""
LOCKSTEP_TIMEOUT: Final = 8 * 3_600 if IS_SOAK else 1_200
LIVE_TIMEOUT: Final = 3 * 3_600 if IS_SOAK else 900
"""In seconds."""
