"""What happens after failed loads: vLLM's `kv_load_failure_policy`, or our options over it.

Our options stand in `kv_connector_extra_config` under the key "kvbraid_recovery".
"""

from typing import Annotated, Final

import msgspec
from vllm.config import KVTransferConfig

from kvbraid.errors import InvalidValueError
from kvbraid.recovery import Policy

KEY: Final = "kvbraid_recovery"


class RecoverySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the schedulers react to failed loads.

    Attributes:
        policy: What happens to affected requests; None: what `kv_load_failure_policy` says.
        retries: How often a request may ask the connector again, under the policy `retry`.
        deadline_ms: How long after its first failure it may do so; None: without limit.
        tier_cooldown_s: How long the connector is not asked after three failures in a row.
        state_interval_tokens: The connector has a state after each multiple of so many tokens, and
            loads what it is asked for where it has offered more; None: nobody knows where.
        late_report_steps: For how many steps after the end of a load the connector may report that
            it failed.
    """

    policy: Policy | None = None
    retries: Annotated[int, msgspec.Meta(ge=0)] = 1
    deadline_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None
    tier_cooldown_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    state_interval_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    late_report_steps: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 4


def recovery_options(config: KVTransferConfig) -> tuple[Policy, RecoverySettings]:
    """Return the policy in force, and the options.

    Raises:
        InvalidValueError: There is no such option or policy; the message shows the valid ones.
    """
    asked = config.get_from_extra_config(KEY, {})
    try:
        options = msgspec.convert(asked, RecoverySettings)
    except msgspec.ValidationError as error:
        raise InvalidValueError(
            f'kv_connector_extra_config has {asked!r} under "{KEY}": {error}; expected '
            '{"policy": "recompute", "retry" or "fail", "retries": count, '
            '"deadline_ms": milliseconds, "tier_cooldown_s": seconds, '
            '"state_interval_tokens": count, "late_report_steps": count}'
        ) from error
    return options.policy or Policy(config.kv_load_failure_policy), options
