"""From runs and failures to a plan; pure.

In reading order: `run` is what a request has computed, and from what; `snapshot` is what a cache
says of runs; `assessment` is what failures mean for them, and `assess` asks the native core for
it; `policy` is what an operator wants; `plan` is what is to be done, and `decide` makes it;
`copies` decides again if tiers have made copies of what is garbage.
"""
