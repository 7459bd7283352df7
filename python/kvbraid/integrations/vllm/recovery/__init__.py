"""Recovery from failed loads in vLLM's schedulers.

In reading order: `failures` is what workers say; `options` is what operators ask for, and `asking`
decides when a connector is asked; `runs` remembers runs, and `tracked` tells it of them; `reports`
turns what workers say into failures; `counts` is what operators read; `recovery` decides and
applies; `rescheduling` moves requests between vLLM's queues.
"""
