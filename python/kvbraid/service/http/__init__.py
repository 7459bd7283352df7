"""The HTTP API: connections with limits, a table of routes, a client.

In reading order:

    server             the face: a socket, the server, and an orderly end
    app                the application, built from the table of routes
    routes             what each route takes and answers, and its handler
    calls              a request as handlers get it, and an answer as they give it
    pages              the files of the console, as they are served
    events             what has changed, told to every page that is open
    query              a request as HTTP brings it, to a `Request`
    access             who may register and remove pods
    metrics            Prometheus metrics, collected when they are asked for
    openapi            the OpenAPI document, generated from the routes
    connection_limits  what all connections share: their number, bytes, what was refused
    connection         one connection with limits on its head and its time
    handshakes         connections over TLS, until their handshake is over
    protocol           the shortcut for POST /v1/score
    client             a client of a running server
"""
