"""A model's chat template: Jinja in a sandbox, with bounds on steps, time and size.

A template is a program from a model's files, and clients choose what it works on. It reaches
nothing but its arguments, and changes none of them. Each pass of a loop and each call is a step:
steps are counted, and every so often the clock of the thread is asked. No argument or factor may
ask for a huge value. So a template ends by itself, and `is_stuck` tells of one that does not. What
is not bounded is memory that its author means to waste, by doubling a text again and again.

The environment is that of transformers (`utils/chat_template_utils.py`), which engines render by.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from threading import get_ident
from time import monotonic, thread_time
from typing import Any, Final, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvbraid.errors import InvalidValueError, shortened
from kvbraid.gateway.prompts import NoTokensError
from kvbraid.gateway.tokens.content import content_format_of
from kvbraid.gateway.tokens.messages import ContentFormat

MOST_TEMPLATE_CHARACTERS: Final = 1 << 20
"""The longest template; the longest published ones have 20 000 characters."""
LARGEST_NUMBER: Final = 1 << 20
"""The largest number that a call or filter gets, and the most copies that `*` makes."""
_MOST_BITS: Final = 4096
_STEPS_BETWEEN_LOOKS: Final = 256
_WIDE: Final = re.compile(r"\d{5}|\*")
"""A width in a format that is no width of text, or one that is an argument."""
_FORMATS: Final = frozenset({"format", "format_map"})


class OutOfStepsError(Exception):
    """A template needs more steps than it was given."""


@dataclass(slots=True)
class Allowance:
    """What one rendering may use: steps, seconds of its thread's CPU, characters of its output.

    It is made by the thread that renders: a machine with much else to do makes nothing too slow.
    """

    steps: int
    seconds: float
    characters: int
    _end: float = field(init=False)
    _next_look: int = field(init=False)

    def __post_init__(self) -> None:
        self._end = thread_time() + self.seconds
        self._next_look = self.steps - _STEPS_BETWEEN_LOOKS

    def step(self) -> None:
        """Count one step.

        Raises:
            OutOfStepsError: It was one too many.
            NoTokensError: `too_slow`.
        """
        self.steps -= 1
        if self.steps < 0:
            raise OutOfStepsError
        if self.steps < self._next_look:
            self._next_look = self.steps - _STEPS_BETWEEN_LOOKS
            if thread_time() > self._end:
                raise NoTokensError("too_slow")


_ALLOWANCE: Final[ContextVar[Allowance]] = ContextVar("allowance")


class ChatTemplate:
    """One template, ready to render; may be used by several threads.

    `content_format` is what it takes as contents, and `knows_developers` whether it has a role
    for them.
    """

    def __init__(self, text: str, source: str) -> None:
        """Compile a template; `source` is named in errors.

        Raises:
            InvalidValueError: It is no template, or too long.
        """
        if len(text) > MOST_TEMPLATE_CHARACTERS:
            msg = f"{source}: a chat template of {len(text)} characters; "
            raise InvalidValueError(f"{msg}at most {MOST_TEMPLATE_CHARACTERS}")
        try:
            tree = _SANDBOX.parse(text)
            self.content_format: ContentFormat = content_format_of(tree)
            _count_loops(tree)
            self._template = _SANDBOX.from_string(tree)
        except (TemplateError, SyntaxError, RecursionError) as error:
            msg = f"{source}: no chat template: {shortened(str(error))}; give Jinja as the model's"
            raise InvalidValueError(f"{msg} own files have it") from None
        self.knows_developers = '"developer"' in text or "'developer'" in text
        self.mentions_content = "content" in text
        self._begun: dict[int, float] = {}  # By thread.

    def is_stuck(self, after_s: float) -> bool:
        """Whether a rendering began more than `after_s` seconds ago and has not ended."""
        before = monotonic() - after_s
        return any(begun < before for begun in list(self._begun.values()))

    def render(self, arguments: Mapping[str, Any], allowance: Allowance) -> str:
        """Return what the template makes of its arguments.

        Raises:
            NoTokensError: `failed`, `too_slow`, `too_many_tokens`.
            OutOfStepsError: More steps are needed than are allowed.
        """
        token = _ALLOWANCE.set(allowance)
        self._begun[get_ident()] = monotonic()
        try:
            return "".join(_bounded(self._template.generate(**arguments), allowance.characters))
        except (NoTokensError, OutOfStepsError):
            raise
        except Exception:  # noqa: BLE001 - whatever a template's expressions raise
            raise NoTokensError("failed") from None
        finally:
            del self._begun[get_ident()]
            _ALLOWANCE.reset(token)


def _bounded(chunks: Iterable[str], most: int) -> Iterator[str]:
    for chunk in chunks:
        most -= len(chunk)
        if most < 0:
            raise NoTokensError("too_many_tokens")
        yield chunk


class _Generation(Extension):
    """`{% generation %}` marks what the model is trained on; a prompt has it as it is."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Read a block up to its end; its names are its own, as in a macro."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("_as_it_is"), [], [], body)
        return block.set_lineno(line)

    def _as_it_is(self, caller: Macro) -> str:
        return caller()


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox of jinja2, which also counts steps and refuses huge numbers."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call(
        self,
        context: Context,
        function: Any,  # noqa: ANN401 - whatever a template calls
        /,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Call what a template calls, as one step."""
        method = getattr(function, "__wrapped__", function)  # The sandbox has wrapped formats.
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str) and method.__name__ in _FORMATS:
            _check_width(owner)
        _check_call(args, kwargs)
        return super().call(context, function, *args, **kwargs)

    def call_binop(
        self,
        context: Context,
        operator: str,
        left: Any,  # noqa: ANN401 - whatever a template computes with
        right: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Compute what is not too large."""
        _BOUNDS[operator](left, right)
        return super().call_binop(context, operator, left, right)


def _check_call(args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    _ALLOWANCE.get().step()
    for value in (*args, *kwargs.values()):
        _check(not isinstance(value, int) or value <= LARGEST_NUMBER)


def _check_product(left: object, right: object) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check(left.bit_length() + right.bit_length() <= _MOST_BITS)
    for times, many in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(many, Sized):
            _check(times * len(many) <= LARGEST_NUMBER)


def _check_power(left: object, right: object) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check(left.bit_length() * right <= _MOST_BITS)


def _check_remainder(left: object, _right: object) -> None:
    if isinstance(left, str):
        _check_width(left)


def _check_width(text: str) -> None:
    _check(_WIDE.search(text) is None)


def _check(is_bounded: bool) -> None:
    if not is_bounded:
        raise NoTokensError("failed")


_BOUNDS: Final = {"*": _check_product, "**": _check_power, "%": _check_remainder}


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    """The values of a loop, each of them a step."""
    allowance = _ALLOWANCE.get()
    for value in values:
        allowance.step()
        yield value


def _count_loops(tree: nodes.Template) -> None:
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None)


def _checked(apply: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(apply)  # It also has the marks by which jinja2 knows what to hand over.
    def checked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        _check_call(args, kwargs)
        return apply(*args, **kwargs)

    return checked


def _format(text: object, *args: object, **kwargs: object) -> str:
    _check_width(str(text))
    return str(text) % (kwargs or args)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(text: str) -> str:
    return datetime.now().strftime(text)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the escapes that pages need, as templates expect."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _sandbox() -> _Sandbox:
    sandbox = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    sandbox.filters |= {"tojson": _tojson, "format": _format}
    sandbox.filters = {name: _checked(apply) for name, apply in sandbox.filters.items()}
    sandbox.filters["_counted"] = _counted
    del sandbox.globals["lipsum"]
    sandbox.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}
    return sandbox


_SANDBOX: Final = _sandbox()
