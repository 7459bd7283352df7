"""What replicas of one fleet tell each other, over a NATS server.

The truth is shared by nobody: each replica reads the engines' events itself. Each says ten times a
second what it has booked, which ends by age, and of each request where it was sent. A server that
is lost costs quality, and never an answer. In reading order:

    ports        what is needed of a server of messages
    messages     what replicas say, to bytes and back
    hearing      what others say: who is believed, and why not
    nats_server  a connection to a NATS server: the only module that knows one
    sharing      all of it, on a thread of its own

It comes with the extra `nats`, which is looked for when a configuration has a `url`.
"""
