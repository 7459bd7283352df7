"""A deployment of replicas, and the calls that a router has to choose one for.

Who runs the replicas is not known here: `kvbraid.integrations.ray` is what Ray Serve asks. It is a
module of its own because Ray copies the module of a router, and all below it, into each process.

In reading order: `options` is what an operator gives, `metadata` what a replica says of itself;
`following` keeps which ones there are; `prompts` reads the arguments of a call; `calls` keeps what
is in flight; `choosing` puts it together, and decides.
"""

from kvbraid.extras import require

require("route", __name__)
