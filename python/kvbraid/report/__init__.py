"""Results as people see them: tables, progress and pictures, made with rich and matplotlib.

In reading order:

    console        where reports go
    tables         tables in which nothing is cut, used by most of the others
    answers        what a server answers; `ladder` is how much of the prompts was reused, and why
    events         what `kvbraid tail` shows
    replay         replays of captures
    demo           the demo, as it goes on
    models         a model's layers and groups; `memory_plan` is where they stand in memory
    block_picture  a block as SVG, drawn from `block_rows`
    simulation     policies at every memory; `plot` draws them
    routing        policies of routing on one workload
    recovery       what a decision does with each request, and why
    tier_contents  what is in the directory of a tier
"""
