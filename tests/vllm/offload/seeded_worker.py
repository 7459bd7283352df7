"""Brings seeded weights into the processes of workers: vLLM imports there what extends them."""

from tests.vllm import seeded_weights

LOAD_FORMAT = seeded_weights.LOAD_FORMAT


class SeededWorker:
    """Adds nothing: importing it has registered the weights."""
