"""Chat templates in the sandbox: what they may do, and that nothing else comes of them."""

from collections.abc import Mapping
from threading import Event, Thread
from typing import Final

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.gateway.prompts import NoTokensError
from kvbraid.gateway.tokens.templates import (
    MOST_TEMPLATE_CHARACTERS,
    Allowance,
    ChatTemplate,
    OutOfStepsError,
)

NOTHING: Final[Mapping[str, object]] = {}


def render(
    text: str,
    given: Mapping[str, object] = NOTHING,
    *,
    steps: int = 1_000,
    seconds: float = 60.0,
    characters: int = 1_000,
) -> str:
    return ChatTemplate(text, "t.jinja").render(given, Allowance(steps, seconds, characters))


def why(
    text: str,
    given: Mapping[str, object] = NOTHING,
    *,
    steps: int = 1_000,
    seconds: float = 60.0,
) -> str:
    with pytest.raises(NoTokensError) as refused:
        render(text, given, steps=steps, seconds=seconds)
    return refused.value.why


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{% if true %}\n  a\n{% endif %}\nb\n", "  a\nb"),
        ("{% for x in xs %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% for x in 'ab' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
         "1/2False 2/2True "),
        ("{% for x in nothing %}{{ x }}{% else %}none{% endfor %}", "none"),
        ("{% for x in xs if x > 1 recursive %}{{ x }}{% endfor %}", "23"),
        ("{% set n = namespace(x=1) %}{% for i in range(3) %}{% set n.x = n.x * 2 %}{% endfor %}"
         "{{ n.x }}", "8"),
        ("{{ {'a': '<é>&\\''} | tojson }}", '{"a": "<é>&\'"}'),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}",
         '{\n "a": [\n  2\n ],\n "b": 1\n}'),
        ("{% generation %}{% set x = 1 %}a{% endgeneration %}{{ x }}", "a"),
        ("{{ 'a b'.split()[1] ~ '%s-%d' % ('x', 3) ~ '{}!'.format(1) }}", "bx-31!"),
        ("{{ '%s' | format('y') }}{{ 'c' | upper }}{{ undefined_name }}", "yC"),
        ("{{ strftime_now('%Y-%m-%d') | length }}", "10"),
        ("{% macro f() %}({{ caller() }}){% endmacro %}{% call f() %}b{% endcall %}", "(b)"),
        ("{{ 3 * 4 }}{{ '-' * 3 }}{{ 2 ** 10 }}{{ 7 % 4 }}", "12---10243"),
    ],
)  # fmt: skip
def test_a_template_has_what_published_ones_use(text: str, expected: str) -> None:
    assert render(text, {"xs": [1, 2, 3]}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('not these roles') }}",
        "{{ 1 / 0 }}",
        "{{ none.x.y }}",
        "{% for x in none %}{% endfor %}",
        "{% include 'other' %}",
        "{% import 'other' as o %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(0) }}",
        # What the sandbox keeps from it.
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__['os'] }}",
        "{{ tojson.__globals__ }}{{ raise_exception.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages.__init__() }}",
        "{{ messages[0].update(a=1) }}",
        "{{ messages[0].__setitem__('a', 1) }}",
        "{{ lipsum(100) }}",
        # What is bounded.
        "{{ range(10000000) | list }}",
        "{{ 'a' * 100000000 }}",
        "{{ 100000000 * 'a' }}",
        "{{ [0] * 100000000 }}",
        "{{ 9 ** 99999999 }}",
        "{% set n = namespace(x=9) %}"
        "{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ '%99999999d' % 1 }}",
        "{{ '%*d' % (99999999, 1) }}",
        "{{ '%99999999d' | format(1) }}",
        "{{ '{:99999999}'.format(1) }}",
        "{{ '{x:99999999}'.format_map({'x': 1}) }}",
        "{{ 'a'.ljust(99999999) }}",
        "{{ 'a'.center(width=99999999) }}",
        "{{ 'a' | center(99999999) }}",
        "{{ 'a' | indent(width=99999999, first=true) }}",
        "{{ {} | tojson(indent=99999999) }}",
    ],
)
def test_a_template_that_fails_or_wants_too_much_ends(text: str) -> None:
    messages = [{"role": "user"}]
    assert why(text, {"messages": messages}) == "failed"
    assert messages == [{"role": "user"}]


@pytest.mark.parametrize("text", ["{{ ''.__class__ }}", "{{ '' | attr('__class__') }}"])
def test_private_names_are_undefined(text: str) -> None:
    assert render(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ dict() and '' }}{% endfor %}",
        "{% macro f() %}{% endmacro %}{% for i in range(99999) %}{{ f() }}{% endfor %}",
        "{% for i in range(99999) if i < 0 %}{% endfor %}",
        "{% generation %}{% for i in range(99999) %}{% endfor %}{% endgeneration %}",
    ],
)
def test_every_pass_and_every_call_is_a_step(text: str) -> None:
    with pytest.raises(OutOfStepsError):
        render(text)


def test_the_clock_is_asked_every_so_often() -> None:
    loop = "{% for i in range(99999) %}{% endfor %}"
    assert why(loop, steps=1_000_000, seconds=0.0) == "too_slow"
    assert render("{{ 1 }}", seconds=0.0) == "1"


def test_the_output_is_bounded() -> None:
    loop = "{% for i in range(n) %}1234567890{% endfor %}"
    assert len(render(loop, {"n": 100})) == 1_000
    assert why(loop, {"n": 101}) == "too_many_tokens"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% if", r"t\.jinja: no chat template: .*; give Jinja as the model's own files have it"),
        ("{% for x in y %}", "no chat template"),
        ("{{ x | no_such_filter }}", "no chat template"),
        ("(" * 10 + "{{ " + "(" * 100_000, "no chat template"),
        ("a" * (MOST_TEMPLATE_CHARACTERS + 1), r"1048577 characters; at most 1048576"),
    ],
)
def test_what_is_no_template_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message) as refused:
        ChatTemplate(text, "t.jinja")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_rendering_that_does_not_end_is_told() -> None:
    template = ChatTemplate("{{ wait() }}", "t.jinja")
    began, may_end = Event(), Event()

    def wait() -> str:
        began.set()
        may_end.wait()
        return ""

    thread = Thread(target=template.render, args=({"wait": wait}, Allowance(9, 9.0, 9)))
    thread.start()
    began.wait()
    assert template.is_stuck(after_s=-1.0)
    assert not template.is_stuck(after_s=3600.0)
    may_end.set()
    thread.join()
    assert not template.is_stuck(after_s=-1.0)


def test_it_knows_whether_developers_have_a_role() -> None:
    assert ChatTemplate("{% if m.role == 'developer' %}{% endif %}", "t").knows_developers
    assert not ChatTemplate("{{ developer }}", "t").knows_developers
