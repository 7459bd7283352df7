"""Engines that can run on our parts, and frameworks that can ask them: all that imports either.

In reading order:

    vllm/      vLLM's schedulers on our cache
    replicas/  a deployment of replicas, and the calls that a router has to choose one for
    ray        Ray Serve's request router
"""
