"""What an operator gives the router of a deployment: the `request_router_kwargs` of Ray Serve.

They are tables of fleet.toml, for one model, and refused in the same words. Nothing here knows a
replica.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvbraid.errors import InvalidValueError
from kvbraid.service.config import FleetConfig
from kvbraid.service.decoding import describe
from kvbraid.service.indexing import IndexTable
from kvbraid.service.prompting import TokensTable
from kvbraid.service.routing import RouterTable, read_routing

_Keyword = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]


class RouterKwargs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keyword arguments.

    `model` is by default the name of the deployment. `pod` has the fields of a pod, as in
    PUT /v1/pods/{id}, that replicas do not give themselves. `router`, `index` and `tokens` are
    `[router]`, `[index]` and `[tokens.MODEL]`. If `prediction` names a keyword argument, each call
    gets the decision about it under this name.
    """

    model: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    pod: dict[str, Any] = {}
    router: RouterTable = RouterTable()
    index: IndexTable = IndexTable()
    tokens: TokensTable | None = None
    prediction: _Keyword | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions:
    """The arguments for one deployment, checked; `config` has what is not Ray's own."""

    model: str
    pod: Mapping[str, Any]
    prediction: str | None
    config: FleetConfig


def read_options(kwargs: Mapping[str, object], *, deployment: str) -> DeploymentOptions:
    """Check the keyword arguments for a deployment.

    Raises:
        InvalidValueError: One line with the key, the value and what was expected.
    """
    try:
        given = msgspec.convert(dict(kwargs), RouterKwargs)
        # Ray tells when a call has ended, and never of a first token.
        routing = read_routing(msgspec.structs.replace(given.router, first_tokens=False))
    except msgspec.ValidationError as error:
        told = describe(error, RouterKwargs)
        raise InvalidValueError(f"request_router_kwargs: {told}") from None
    except InvalidValueError as error:
        raise InvalidValueError(f"request_router_kwargs: {error}") from None
    if given.index.snapshots is not None:
        raise InvalidValueError(
            f"request_router_kwargs: index.snapshots is {given.index.snapshots!r}, and each "
            "process has its own index; remove it: replicas replay what they have published"
        )
    model = given.model or deployment
    tokens = {} if given.tokens is None else {model: given.tokens}
    return DeploymentOptions(
        model=model,
        pod=given.pod,
        prediction=given.prediction,
        config=FleetConfig(index=given.index, routing=routing, tokens=tokens),
    )
