"""What an engine remembers between reports, and how a decision reaches the cache and the tiers.

In reading order: `counts` says where the tokens of prompts came from; `loading` is what a load
fills, and where it ends; `open_loads` are those that reports may mean; `contents` is what blocks
held before; `released_blocks` is what runs gave back; `live` is a run that goes on, and `runs` has
those of a cache; `transfers` are the loads that are not over; `owners` says who waits for whose
block; `state` is all of it for one engine.
"""
