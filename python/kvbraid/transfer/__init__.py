"""Blocks moved between a device, host memory and slower tiers, with one status for each of them.

    scheduler's side     kvbraid.cache -> what to store, what to load -> jobs
    workers' side        jobs -> copies, files -> one status per block -> back

Only jobs and their results cross. Whoever decides (index, pins, events) holds no bytes, and
whoever holds bytes decides nothing.

In reading order:

    status        what became of one block
    keys          what a block is called outside of its engine, and whose blocks they are
    jobs          what the workers are told, and what they answer
    tier          what a tier has to do: six calls that may wait
    records       the header page of a record, made and verified
    record_store  the threads, deadlines and verified records of one tier
    disk          a directory as a tier
    host          the arena of host memory, and its slots
    mover         from ids of blocks and slots to copies, and who carries them out
    worker        one rank's bytes: jobs in, statuses out
    rank_counts   what a rank has counted, for metrics
    offload       what is stored and loaded, what tiers hold, and events of it: no bytes
    tiered_loads  the tiers as `kvbraid.scheduler` asks them
"""
