"""What a template takes as a content: found in its loops, as vLLM finds it."""

import pytest
from jinja2 import Environment
from kvbraid.gateway.tokens.content import content_format_of
from kvbraid.gateway.tokens.templates import ChatTemplate

from tests.unit.gateway.model_folders import TEMPLATES

EACH = "{% for m in messages %}<...>{% endfor %}"


def found(template: str) -> str:
    return content_format_of(Environment().parse(template))


@pytest.mark.parametrize(
    "inside",
    [
        "{% for p in m.content %}{% endfor %}",
        "{% for p in m['content'] %}{% endfor %}",
        "{% for p in m.content | list %}{% endfor %}",
        "{% for p in m.content[1:] %}{% endfor %}",
        "{% if m.content is not string %}{% for p in m['content'] %}{% endfor %}{% endif %}",
        "{% set content = m.content %}{% for p in content %}{% endfor %}",
    ],
)
def test_a_loop_over_a_content_takes_parts(inside: str) -> None:
    assert found(EACH.replace("<...>", inside)) == "openai"


@pytest.mark.parametrize(
    "template",
    [
        "{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content %}{% endfor %}"
        "{% endfor %}",
        "{% set a = messages %}{% set b = a | list %}{% set a = b %}"
        "{% for m in b %}{% for p in m.content %}{% endfor %}{% endfor %}",
        "{% macro f(x) %}{% for p in x %}{% endfor %}{% endmacro %}"
        + EACH.replace("<...>", "{{ f(m.content) }}"),
        "{% macro f(a, x) %}{% for p in x %}{% endfor %}{% endmacro %}"
        + EACH.replace("<...>", "{{ f(1, x=m.content) }}"),
    ],
)
def test_it_is_found_through_other_names_and_macros(template: str) -> None:
    assert found(template) == "openai"


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{{ messages }}",
        EACH.replace("<...>", "{{ m.content }}"),
        EACH.replace("<...>", "{% for c in m.tool_calls %}{{ c }}{% endfor %}"),
        EACH.replace("<...>", "{% for p in other.content %}{% endfor %}"),
        "{% for k, v in messages %}{{ v.content }}{% endfor %}",
        "{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}"
        + EACH.replace("<...>", "{{ f(m.role) }}"),
    ],
)
def test_everything_else_takes_texts(template: str) -> None:
    assert found(template) == "string"


def test_templates_in_the_manner_of_families() -> None:
    formats = {name: ChatTemplate(text, name).content_format for name, text in TEMPLATES.items()}
    assert formats == {
        "turns": "string",
        "headers": "string",
        "parts": "openai",
        "macro": "openai",
    }
