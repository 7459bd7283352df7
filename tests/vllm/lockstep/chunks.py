"""The rules by which the driver ends prefill chunks, from a configuration of the harness."""

from kvbraid.cache.chunk import ChunkRules

from tests.vllm.lockstep.configs import Config


def rules_of(config: Config) -> ChunkRules:
    """Return where the engine that a configuration stands for ends its chunks."""
    block_size = config.state_block_size or 0
    threshold = config.long_prefill_tokens
    return ChunkRules(
        block_size=block_size,
        checkpoint_size=block_size or config.alignment,
        alignment=config.alignment,
        hash_block_size=config.hash_block_size,
        partial_hits=config.partial_hits and config.hash_block_size < config.alignment,
        eagle=config.use_eagle,
        partial_junctions=config.partial_junctions,
        checkpoint_alignment=config.checkpoint_alignment,
        max_chunk_tokens=min(config.token_budget, threshold) if threshold else config.token_budget,
    )
