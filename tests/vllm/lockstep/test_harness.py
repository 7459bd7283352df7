"""The lock-step harness itself: what it covers, and that it finds differences.

The engine's manager agrees with a second copy of itself, a difference planted in one of the two
is found, and the driver ends chunks where the engine's own scheduler does.
"""

from collections import Counter
from random import Random
from types import SimpleNamespace

import pytest
from kvbraid.cache.chunk import Position

from tests.vllm.lockstep.chunks import rules_of
from tests.vllm.lockstep.configs import FEATURES, MIN_OF_EACH, NUM_CONFIGS, Config, generate
from tests.vllm.lockstep.planted import PLANTED
from tests.vllm.lockstep.run import run
from tests.vllm.lockstep.theirs import Theirs


def test_the_configurations_cover_what_they_must() -> None:
    configs = [generate(number) for number in range(NUM_CONFIGS)]
    assert len(configs) >= 200
    for name, has in FEATURES.items():
        assert sum(map(has, configs)) >= MIN_OF_EACH, name
    retentions = Counter(config.retention for config in configs)
    assert retentions[None] >= MIN_OF_EACH
    assert retentions[0] >= MIN_OF_EACH
    assert len(configs) - retentions[None] - retentions[0] >= MIN_OF_EACH


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(0, NUM_CONFIGS, 20))
def test_the_engine_agrees_with_itself(number: int) -> None:
    outcome = run(generate(number), Theirs, num_operations=500, seed=0)
    assert outcome.failure is None
    assert outcome.num_engine_failures == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_found(name: str) -> None:
    def planted(config: Config) -> Theirs:
        side = Theirs(config)
        PLANTED[name](side)
        return side

    outcomes = (
        run(generate(number), planted, num_operations=1_000, seed=0)
        for number in range(NUM_CONFIGS)
    )
    assert any(outcome.failure for outcome in outcomes)


def test_chunks_end_where_the_engines_scheduler_ends_them() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    random = Random(4)
    configs = [generate(number) for number in range(NUM_CONFIGS)]
    configs = [config for config in configs if config.state_block_size is not None]
    num_clipped = 0
    for _ in range(20_000):
        config = random.choice(configs)
        num_prompt_tokens = random.randint(2, config.max_model_len)
        position = Position(
            start=random.randrange(num_prompt_tokens),
            num_tokens=num_prompt_tokens + random.choice((0, 0, 1, 20)),
            num_prompt_tokens=num_prompt_tokens,
            junction=random.choice((0, random.randrange(num_prompt_tokens))),
            budget=random.randint(1, config.token_budget),
        )
        expected = Scheduler._mamba_block_aligned_split(
            _scheduler(config), _request(position), position.budget
        )
        assert rules_of(config).plan(position) == expected, (config, position)
        num_clipped += expected != position.budget
    assert num_clipped > 5_000


def _scheduler(config: Config) -> SimpleNamespace:
    """Return what the engine's rule reads of its scheduler."""
    return SimpleNamespace(
        cache_config=SimpleNamespace(block_size=config.state_block_size),
        block_size=config.alignment,
        hash_block_size=config.hash_block_size,
        use_eagle_block_drop=config.use_eagle,
        max_num_scheduled_tokens=config.token_budget,
        scheduler_config=SimpleNamespace(long_prefill_token_threshold=config.long_prefill_tokens),
        mamba_partial_cache_hit=(
            config.hash_block_size < config.alignment and config.partial_hits
        ),
        mamba_has_prefill_checkpoint_blocks=config.checkpoint_alignment is not None,
        mamba_prefill_checkpoint_alignment=config.checkpoint_alignment,
        mamba_shared_prefix_checkpoint=config.partial_junctions,
    )


def _request(position: Position) -> SimpleNamespace:
    return SimpleNamespace(
        num_computed_tokens=position.start,
        num_tokens=position.num_tokens,
        num_prompt_tokens=position.num_prompt_tokens,
        shared_prefix_boundary=position.junction,
    )
