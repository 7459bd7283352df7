"""Engines that can run on our parts, one package each: the only places that import an engine.

In reading order:

    vllm/  vLLM's schedulers on our cache
"""
