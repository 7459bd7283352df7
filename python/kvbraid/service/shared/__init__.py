"""What replicas of one fleet tell each other, over a NATS server.

The truth is shared by nobody: each replica reads the engines' events itself. Each says ten times a
second what it has booked, which ends by age, and of each request where it was sent. A server that
is lost costs quality, and never an answer. In reading order:

    ports        what is needed of a server of messages
    messages     what replicas say, to bytes and back
    hearing      what others say: who is believed, and why not
    nats_server  a connection to a NATS server: the only module that knows one
    threads      an event loop on a thread of its own
    sharing      all of it, on such a thread

The log of events is what a relay has written of the engines' batches, in a stream of that server:

    stream       its subjects, names and questions
    inbox        what it brings to one rank, from thread to thread
    log_reader   reads it, for the ranks that are followed
    log_writer   writes it, for a relay

It comes with the extra `nats`, which is looked for when a configuration has a `url`.
"""
