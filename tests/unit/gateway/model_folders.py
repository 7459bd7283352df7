"""Folders of models as they are published: a byte-level BPE of their own text, and templates.

The templates are ours. Each is written in the manner of a family, with what makes its templates
hard: tool calls and hidden reasoning, dates and trimmed texts, contents in parts, macros.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

SPECIAL: Final = ("<s>", "</s>", "<|start|>", "<|end|>", "<|tool|>")
_WORDS: Final = r"(?i:'s|'t|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

TURNS: Final = """\
{%- if tools %}
    {{- '<|start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "Tools:" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- '<|end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|start|>system\\n' + messages[0].content + '<|end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- if not ns.found and message.role == "user" and message.content is string %}
        {%- set ns.found = true %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|start|>' + message.role + '\\n' + message.content + '<|end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|start|>assistant\\n' }}
        {%- if message.reasoning_content and loop.index0 > ns.last %}
            {{- '(' + message.reasoning_content.strip('\\n') + ')\\n' }}
        {%- endif %}
        {%- generation %}{{- message.content }}{%- endgeneration %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<|tool|>{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}' }}
        {%- endfor %}
        {{- '<|end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|tool|>' + message.content + '<|end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '()\\n' }}{%- endif %}
{%- endif %}
"""
"""Chats by turns, tools as JSON lines, reasoning only after the last question."""

HEADERS: Final = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%Y") if false else "1 May" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system\\n\\nToday: " + date_string + "\\n" + system_message + "<|end|>" }}
{%- if documents %}
    {%- for document in documents %}{{ document.title }}: {{ document.text }}
{% endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') == (loop.index0 % 2 == 0) or tools %}
    {%- else %}{{ raise_exception('roles must alternate') }}{%- endif %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start|>assistant\\n\\n' + call.name + "(" }}
        {%- for name, value in call.arguments | items %}
            {{- name + '="' ~ value ~ '"' }}{% if not loop.last %}, {% endif %}
        {%- endfor %}
        {{- ")<|end|>" }}
    {%- else %}
        {{- '<|start|>' + message['role'] + '\\n\\n'+ message['content'] | trim + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant\\n\\n' }}
{%- endif %}
"""
"""A date, documents, trimmed texts, and an error for chats that it does not take."""

PARTS: Final = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set first = "" -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<|start|>' + role + '\\n' + (first if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<|end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<|start|>model\\n' }}
{%- endif -%}
"""
"""Contents in parts, which are what a template of pictures loops over."""

MACRO: Final = """\
{%- macro text_of(content) -%}
    {%- if content is string -%}{{- content -}}
    {%- else -%}{%- for part in content -%}[{{- part.text -}}]{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- for m in messages %}
    {%- if m.role == 'developer' %}<|start|>developer
{{ text_of(m.content) }}{% for t in m.tools or [] %}{{ t | tojson }}{% endfor %}<|end|>
    {%- else %}<|start|>{{ m.role }}
{{ text_of(content=m.content) }}
    {%- for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}<|end|>
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant
{% endif %}
"""
"""A macro gets the contents, and developers have a role."""

TEMPLATES: Final = {"turns": TURNS, "headers": HEADERS, "parts": PARTS, "macro": MACRO}

CONFIG: Final[Mapping[str, Any]] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": {"__type": "AddedToken", "content": "<s>", "special": True},
    "eos_token": "</s>",
    "model_max_length": 1_000_000,
}


@cache
def tokenizer_text() -> str:
    """Return a tokenizer.json, trained on this file."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [Split(Regex(_WORDS), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = BpeTrainer(
        vocab_size=1000,
        initial_alphabet=ByteLevel.alphabet(),
        special_tokens=[AddedToken(text, special=True) for text in SPECIAL],
        show_progress=False,
    )
    tokenizer.train_from_iterator(Path(__file__).read_text().splitlines(), trainer)
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    text: str = tokenizer.to_str()
    return text


def write_model(
    folder: Path, template: str | None = None, *, config: Mapping[str, Any] = CONFIG
) -> Path:
    """Write a model's files, and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
