"""A fleet that several servers index together: the shards, and the front that asks them.

A shard is a server that indexes the pods that `sharding` gives it. A front has the same pods and
no index: it asks all shards, puts their columns together, and chooses. In reading order:

    kept       what was made of bytes lately, within a limit
    messages   what a front asks and a shard answers, to bytes and back
    answering  a shard's side: questions to answers, and the promises of fronts
    merging    the columns and rows of several shards as those of one index
    link       one connection to a shard, which is never waited for
    asking     a question to all shards at once, and their answers within a time
    front      all shards as one index
    no_feed    what a front has in place of a subscriber
"""
