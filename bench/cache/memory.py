"""Prints one JSON line: the memory that a cache of a million blocks takes, in this process.

`python -m bench.cache.memory SIDE [NUM_BLOCKS]` measures resident bytes per block of the empty
pool. It then measures them per findable (group, hash): the largest figure while the pool fills
from half to all of its blocks.
"""

import gc
import itertools
import json
import os
import sys

from bench.cache.ours import Ours
from bench.cache.pair import rival
from bench.cache.side import BLOCK, GEMMA3, Factory, random_tokens
from bench.harness.measure import rss_bytes_of_process

PROMPT_TOKENS = 8_192
NUM_BLOCKS = 1_000_000


def resident_bytes() -> int:
    """Return the resident memory, after a garbage collection."""
    gc.collect()
    return rss_bytes_of_process(os.getpid())


def main() -> None:
    """Measure the side that the command line names."""
    sides: dict[str, Factory] = {"ours": Ours, "rival": rival}
    new = sides[sys.argv[1]]
    num_blocks = int(sys.argv[2]) if len(sys.argv) > 2 else NUM_BLOCKS
    new(GEMMA3, 64)  # The one-time costs of a first cache, mainly imports, do not count.
    random_tokens(0, PROMPT_TOKENS)
    before = resident_bytes()
    cache = new(GEMMA3, num_blocks)
    empty = resident_bytes()
    gc.freeze()  # Otherwise each collection would look at a million blocks.
    per_prompt = len(GEMMA3) * PROMPT_TOKENS // BLOCK
    worst = 0.0
    for number in itertools.count(1):
        num_cached = number * per_prompt
        if num_cached >= num_blocks:
            break
        request = cache.add(random_tokens(number, PROMPT_TOKENS))
        cache.allocate(request, PROMPT_TOKENS)
        cache.release(request)
        if num_cached >= num_blocks // 2:
            worst = max(worst, (resident_bytes() - empty) / num_cached)
    print(json.dumps({"block": (empty - before) / num_blocks, "hash": worst}))


if __name__ == "__main__":
    main()
