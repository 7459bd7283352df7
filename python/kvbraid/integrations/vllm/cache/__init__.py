"""Our cache in the place of vLLM's manager.

In reading order: `convert` is vLLM's configuration as ours; `requests` keeps our requests in step
with vLLM's; `blocks` makes objects for blocks; `coordinator` and `events` are what vLLM reads
besides; `work` is a step's work in the parts that vLLM asks for; `sinks` keeps blocks of sink
attention apart; `manager` is all of it.
"""
