"""Each room of the service opens with a map of its modules."""

import importlib
import pkgutil
import re

import pytest


@pytest.mark.parametrize(
    "room", ["kvbraid.service", "kvbraid.service.feeds", "kvbraid.service.http"]
)
def test_a_room_names_each_of_its_modules(room: str) -> None:
    package = importlib.import_module(room)
    modules = {name for _, name, _ in pkgutil.iter_modules(package.__path__)}
    named = re.findall(r"\b[a-z_]+\b", (package.__doc__ or "").partition("In reading order:")[2])
    assert modules <= set(named)
