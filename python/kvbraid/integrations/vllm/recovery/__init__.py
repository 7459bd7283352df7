"""Recovery from failed loads in vLLM's schedulers.

In reading order: `failures` is what workers say; `options` is what operators ask for; `load_gate`
decides when a connector is asked; `request_runs` are the runs of vLLM's requests, and `tracked`
tells of them; `reports` turns what workers say into failures; `counts` is what operators read;
`recovery` decides and applies; `rescheduling` moves requests between vLLM's queues.
"""
