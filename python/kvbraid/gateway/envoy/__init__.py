"""The endpoint picker for Envoy: it says where requests go, and Envoy sends them.

The protocols are those of Envoy, over gRPC: ext_proc as the Gateway API Inference Extension uses
it, and the access log. In reading order:

    protos/     messages of these protocols: the fields that are used, with their numbers
    messages    what is read from a message, and the answers that are made
    processing  one request and its answer as Envoy tells of it: messages in, messages out
    logs        entries of the access log: how a request has ended
    picker      where requests go, and what their ends mean for the router
    server      the gRPC server: streams, health, limits
    metrics     what both have counted
    serve       `kvbraid pick-serve`: all of it put together

It comes with the extra `envoy`.
"""

from kvbraid.extras import require

require("envoy", __name__)
