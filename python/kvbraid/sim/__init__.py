"""Fleets and caches without a model: simulated engines, recorded captures, traces of prompts.

In reading order:

    one_by_one  one request at a time on one cache
    traces/     which prefixes prompts share
    captures/   the recorded lives of real engines
    traffic     any of these to simulate a cache with
    fleet/      simulated engines, and the demo
    routing/    a fleet under a routing policy, on a clock of its own
"""
