"""Traces: which prefixes prompts share, read from files and played against one engine's cache.

In reading order:

    trace       what a trace is, with its `prefix_hashes`
    read        trace files: `mooncake` and `sessions` are their forms; `prompts` are people's own
    models      models as a cache sees them
    policies    retention policies by name
    simulation  plays a trace against one cache; `grid` does so at every `memory_size`
    footprint   the blocks that hold all that could be reused
"""
