"""The `[router]` table of fleet.toml: the policy, its coefficients, and how long bookings count.

Every value is checked when the file is read, so a router that is made from a table never refuses
it. A coefficient that the chosen policy would not look at is refused, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from kvbraid.errors import InvalidValueError, one_line
from kvbraid.policy import BASELINES, CostOptions, CostRule, RouterOptions, RoutingPolicy, Seconds
from kvbraid.reading import check, one_of
from kvbraid.service.decoding import describe

POLICIES: Final = (CostRule.name, *BASELINES)
"""What `policy` may be: our own rule, or the published rule of another router."""

_COSTS: Final = CostOptions()
_OPTIONS: Final = RouterOptions()
_SECONDS: Final = Seconds()
_Above0 = Annotated[float, Meta(gt=0)]
_AtLeast0 = Annotated[float, Meta(ge=0)]


class RouterTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How `/v1/pick` chooses. Times are in seconds; `seconds` has a table for each model."""

    policy: str = CostRule.name
    potential: float = _COSTS.potential
    displacement: float = _COSTS.displacement
    queue: float = _COSTS.queue
    slack: float = _COSTS.slack
    in_flight: bool = _OPTIONS.in_flight
    first_tokens: bool = _OPTIONS.first_tokens
    sparse_windows: bool | None = _OPTIONS.sparse_windows
    grace_s: _AtLeast0 = _OPTIONS.grace_s
    remember_s: _AtLeast0 = _OPTIONS.remember_s
    hold_s: _Above0 = _OPTIONS.hold_s
    stuck_s: _Above0 = _OPTIONS.stuck_s
    load_age_s: _Above0 = _OPTIONS.load_age_s
    replica_age_s: _Above0 = _OPTIONS.replica_age_s
    most_bookings: Annotated[int, Meta(ge=1, le=1 << 24)] = _OPTIONS.most_bookings
    seconds: dict[str, dict[str, Any]] = {}


class SecondsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a prompt of one model costs a pod: the fields of `policy.Seconds`.

    With `fit` they are only what is expected until enough requests have shown what prefills take.
    """

    fixed: float = _SECONDS.fixed
    per_token: float = _SECONDS.per_token
    per_pair: float = _SECONDS.per_pair
    per_loaded_token: float = _SECONDS.per_loaded_token
    per_decoded_token: float = _SECONDS.per_decoded_token
    step_tokens: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] = _SECONDS.step_tokens
    fit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """A table whose values have been checked."""

    policy: str = CostRule.name
    costs: CostOptions = field(default_factory=CostOptions)
    options: RouterOptions = field(default_factory=RouterOptions)
    seconds: Mapping[str, Seconds] = field(default_factory=dict)

    def make_policy(self) -> RoutingPolicy:
        """Return the policy that the table names; some count, so each router has its own."""
        return CostRule(self.costs) if self.policy == CostRule.name else BASELINES[self.policy]()


def read_routing(table: RouterTable) -> Routing:
    """Check a table's values.

    Raises:
        InvalidValueError: One line with the key, the value and what was expected.
    """
    try:
        return _checked(table)
    except InvalidValueError as error:
        raise InvalidValueError(f"router.{error}") from None


def _checked(table: RouterTable) -> Routing:
    check("policy", table.policy, one_of(POLICIES))
    given = msgspec.structs.asdict(table)
    costs = CostOptions(**{name: given[name] for name in _names(CostOptions)})
    if table.policy != CostRule.name and costs != _COSTS:
        unused = next(n for n in _names(CostOptions) if given[n] != getattr(_COSTS, n))
        raise InvalidValueError(
            f"{unused} is {given[unused]!r}, which policy {table.policy} does not look at; "
            f"remove it, or use policy {CostRule.name}"
        )
    options = {name: given[name] for name in _names(RouterOptions) if name in given}
    tables = {model: _table(model, fields) for model, fields in table.seconds.items()}
    fit = frozenset(model for model, (_, is_fitted) in tables.items() if is_fitted)
    if fit and not table.first_tokens:
        where = f"seconds.{one_line(min(fit))}.fit"
        raise InvalidValueError(f"{where} needs first tokens, and first_tokens is false")
    return Routing(
        policy=table.policy,
        costs=costs,
        options=RouterOptions(**options, fit=fit),
        seconds={m: tables[m][0] for m, fields in table.seconds.items() if {*fields} - {"fit"}},
    )


def _names(options: type[CostOptions | RouterOptions]) -> list[str]:
    return [each.name for each in fields(options)]


def _table(model: str, given: dict[str, Any]) -> tuple[Seconds, bool]:
    """Return the coefficients of a model, and whether they are fitted."""
    where = f"seconds.{one_line(model)}"
    try:
        fields = msgspec.structs.asdict(msgspec.convert(given, SecondsTable))
        is_fitted = fields.pop("fit")
        return Seconds(**fields), is_fitted
    except msgspec.ValidationError as error:
        raise InvalidValueError(f"{where}: {describe(error, SecondsTable)}") from None
    except InvalidValueError as error:
        raise InvalidValueError(f"{where}: {error}") from None
