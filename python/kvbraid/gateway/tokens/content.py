"""Whether a chat template takes the content of a message as one text or as a list of parts.

Nobody writes it down: vLLM looks for a loop over the content (`_detect_content_format` in its
`renderers/hf.py`), and hands over what it found. To get the same tokens, this finds the same.
"""

from collections.abc import Collection, Iterator

from jinja2 import nodes

from kvbraid.gateway.tokens.messages import ContentFormat


def content_format_of(template: nodes.Template) -> ContentFormat:
    """Return what the template takes: parts if it loops over a content anywhere."""
    messages = set(_aliases(template, "messages"))
    items = {
        name
        for loop in template.find_all(nodes.For)
        if any(_reads(loop.iter, name) for name in messages)
        for name in _names(loop.target)
    }
    parameters = dict(_loops_of_macros(template, items))
    for loop in template.find_all(nodes.For):
        named = parameters.get(id(loop), {"content"})
        if any(_reads(loop.iter, item, "content") for item in items):
            return "openai"
        if isinstance(loop.iter, nodes.Name) and loop.iter.name in named:
            return "openai"
    return "string"


def _aliases(template: nodes.Template, name: str) -> Iterator[str]:
    """The name, and those that it, or a part of it, is assigned to."""
    waiting, seen = [name], {name}
    while waiting:
        name = waiting.pop()
        yield name
        for assignment in template.find_all(nodes.Assign):
            if _reads(assignment.node, name):
                new = set(_names(assignment.target)) - seen
                seen |= new
                waiting.extend(new)


def _loops_of_macros(
    template: nodes.Template, items: Collection[str]
) -> Iterator[tuple[int, set[str]]]:
    """Each loop in a macro, with the parameters by which the macro gets contents."""
    calls = list(template.find_all(nodes.Call))
    for macro in template.find_all(nodes.Macro):
        own = [argument.name for argument in macro.args]
        given = {
            name
            for call in calls
            if isinstance(call.node, nodes.Name) and call.node.name == macro.name
            for name, value in _arguments(call, own)
            if any(_reads(value, item, "content") for item in items)
        }
        for loop in macro.find_all(nodes.For):
            yield id(loop), given


def _arguments(call: nodes.Call, names: list[str]) -> Iterator[tuple[str, nodes.Expr]]:
    yield from zip(names, call.args, strict=False)
    yield from ((each.key, each.value) for each in call.kwargs if each.key in names)


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether an expression is a variable, or its `key`, or a part or a filtered form of that."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    by_item = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const)
    if by_item or isinstance(node, nodes.Getattr):
        assert isinstance(node, nodes.Getitem | nodes.Getattr)
        found = node.attr if isinstance(node, nodes.Getattr) else node.arg.as_const()
        return found == key and _reads_plainly(node.node, name)
    return False


def _reads_plainly(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _names(target: nodes.Node) -> Iterator[str]:
    if isinstance(target, nodes.Name):
        yield target.name
