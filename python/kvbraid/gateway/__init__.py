"""The embedded gateway: it chooses a pod for each request of the OpenAI API, and forwards bytes.

The server below is the service's own (`service.http`), the client is aiohttp: nothing here parses
HTTP or keeps connections. In reading order:

    prompts     what a request asks for, as far as a choice depends on it
    client      how engines are asked questions: limits of time and length
    tokens/     the token ids of prompts, by model: templates and tokenizers
    headers     which headers go on to a pod, and which come back
    bodies      the body of a request, kept or passed on while it arrives
    counts      what is counted for the metrics
    usage       what an engine says it has reused, from the end of an answer
    breakers    which pods have failed so often that they are left alone
    fleet       the pods: where they are, whom a model's name means, who cannot get a request
    choosing    what the router is asked about a request, and its choice
    asking      what data planes ask that send requests themselves
    directions  where a request goes, for such a data plane: POST /internal/route
    ends        ends of requests, as HAProxy tells of them
    upstream    requests to pods over aiohttp
    exchange    one request on its way: what it waits for, and how its wait is ended
    queue       requests that wait because every pod is full
    sending     a request goes out: a pod is chosen, asked, and another one if it fails
    answering   an answer comes back, and the router learns how it went
    proxy       the face: requests come in, are read and checked, and go that way
    engine_metrics  what an engine's metrics say of its load
    polling     asks each pod for its metrics, and tells the router
    metrics     what the gateway has counted
    app         the application: the service's own routes, and everything else to a pod
    route       `kvbraid route`: all of it put together
    envoy/      `kvbraid pick-serve`: Envoy asks over gRPC, and sends requests itself

It comes with the extra `route`, and `envoy/` with `envoy`.
"""

from kvbraid.extras import require

require("route", __name__)
