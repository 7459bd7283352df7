"""Simulated engines that publish to a real server, and the demo that compares the two.

In reading order:

    presets     the simulated models
    workload    what users send
    engine      a simulated engine
    driver      plays a workload and compares with the truth
    processes   one server and the engines; `interrupts` end them
    demo        all of it, as `kvbraid demo`
"""
