"""A real vLLM whose connector brings whole prompts uses them, and answers as if it had none.

The last token is computed again, and with states what comes after the last one before it. The
lengths lie on, before and after the end of a block: one of them leaves the window of each model
without a block that the last token reads.
"""

from collections import Counter
from random import Random

import pytest

from tests.vllm.live_engine import LiveModel
from tests.vllm.live_pair import SCHEDULER
from tests.vllm.recovery.live_engines import HYBRIDS, compare, running, tokens
from tests.vllm.soak import LIVE_TIMEOUT

WHOLE = {"is_async": True, "is_whole": True}


@pytest.mark.timeout(LIVE_TIMEOUT)
@pytest.mark.parametrize("model", HYBRIDS, ids=lambda model: model.folder)
def test_at_most_one_block_of_a_whole_prompt_is_computed(model: LiveModel) -> None:
    block, counts, random = model.block_size, Counter[str](), Random(4)
    has_states = model.folder == "qwen3next"
    options = {"state_interval_tokens": block} if has_states else {}
    with running(model, SCHEDULER, options) as (program, num_groups):
        end, documents = 0, [tokens(random, 600) for _ in range(2)]
        for document in documents:
            end = program.ask(keep=document)["kept"]
            assert program.ask(keep=document[:end], adds=True)["kept"] == end - block
            for count in (end, end - 1, end - block + 1):
                prompt = document[:count]
                truth = program.answer([prompt])
                answer = program.answer([prompt], WHOLE | {"fault": None})
                compare(answer, truth, counts)
                last, cached = count - 1, answer["cached"][0]
                if has_states:
                    assert cached == last // block * block, count
                else:
                    assert cached in (last, count), count  # vLLM counts either as loaded.
                assert answer["unused"] == 0, count
        prompt = documents[1][:end]
        truth = program.answer([prompt])
        for group in range(num_groups):
            fault = {"groups": [group], "where": "last", "form": "places"}
            answer = program.answer([prompt], WHOLE | {"fault": fault})
            assert answer["failed"] == group + 1
            compare(answer, truth, counts)
    assert counts == {}, counts
