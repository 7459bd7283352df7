"""The events of engines: sockets, one thread that reads them, one feed per rank.

In reading order:

    subscriber       the face: follows any number of pods, in one thread of its own
    follower         what that thread owns: feeds by pod, their links and replays, and time limits
    rank_feed        one rank's feed: carries out what its sequence tracker says, and counts
    journalled       a sink that passes everything on, and writes down what an operator wants
    link             a subscription to one address: its socket, and whose messages come
    connected_link   the link to the one rank that binds an address
    bound_link       the link at an address that engines connect to
    log_link         the log of events in place of a socket
    replay           one question for lost messages, and its answers
    zmq_environment  what all links and replays of one subscriber share
    reactor          waits on many sockets
    meter            how many bytes of a connection wait to be read
    heap             gives memory that was freed back to the system
    names            host names to addresses, away from the thread
    endpoints        who binds, which port a rank has, what a topic names
    bindable         whether addresses can be bound, tried before anything depends on it
    backoff          how long to wait before the next attempt
    trtllm_poller    follows TensorRT-LLM, which keeps its events in a buffer
    publisher        publishes events as an engine does
    tail             yields what engines publish, as it comes
"""
