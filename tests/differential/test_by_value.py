"""The cache under retention by value against its brute-force model, as in `test_cache_manager`.

After every step the checkpoints are compared too: which ones exist, in which order they would be
evicted, and what each is worth. Lives in which the cache has learned a length at which requests
branch off are left out, and nothing is said of ends: the model knows neither heuristic.
"""

from hypothesis import settings

from tests.differential.machines import ByValueMachine

TestByValue = ByValueMachine.TestCase
TestByValue.settings = settings(max_examples=100, stateful_step_count=25)
