"""All of kvbraid's I/O: sockets, asyncio and clocks live here and in the layers above.

Two wings that do not know each other, on one common ground. In reading order:

    config      what an operator writes, with `weights` of tiers and `decoding` of JSON
    indexing    the `[index]` table
    routing     the `[router]` table: policy, coefficients, how long bookings count
    forwarding  the `[gateway]` table, which `kvbraid.gateway` reads
    prompting   the `[tokens]` tables, which it reads too
    envoy       the `[envoy]` table, which its picker for Envoy reads
    console     the `[console]` table: how much pages in a browser are shown
    replicas    the `[shared]` table, and what is shown of what it says
    keys        keys and what they allow
    tls         the `[tls]` table, and the context that is made from its files
    fleet_file  a fleet.toml is read with all of them, or refused with every error in it
    errors      one table of error codes, one JSON shape
    requests    bytes of a request to a `Request`; `answers` are the bodies that go back
    journal     what happens to pods, one line each; `logs` writes the lines
    capacity    how many sockets and descriptors this process has room for
    closing     what `with` closes at its end
    supervision   what systemd is told: ready, alive, ending
    ports       the protocols of the index and the feeds that the other modules need
    rungs       from a prompt to what an engine reused of it: gaps and their reasons
    ladder      the sums of that, per model; `ladder_history` has them by time
    strips      what pods hold of a prompt, as a drawing
    recent      the last requests: why their ranks were chosen, and what became of them
    tracing     decisions as spans of OpenTelemetry, with the extra `otel`
    coefficients  the rule that chooses, and what counts for each model
    picking     which rank gets a request: the router, its clock, and what is counted
    registry    which pods are registered; `readiness` waits for them, `remedy` helps with losses
    in_force    the configuration that counts; `reloading` takes a fleet.toml that is written anew
    pod_checks  a pod as it is written, or was found at an address, to its configuration
    found_pods  pods that a source has found: `discovery` by a name, and `kubernetes/` by what an
                API server lists
    snapshots   what the index knows of each pod, in files, or from a running `neighbour`
    event_sources   pods that are asked where they publish
    sharding    which shard a pod is of; `shards/` asks several servers that index a fleet together
    shared/     what replicas tell each other, and the log of events, over a server of messages
    feeds/      events of engines come in: Subscriber, PodFeed, Publisher
    http/       requests of gateways come in: run_server, Application, Client
    serve       `kvbraid serve`: both wings put together; `relay` writes what comes in to the log

It comes with the extra `serve`.
"""

from kvbraid.extras import require

require("serve", __name__)
