"""The OpenAPI document, generated from the route table and the structs it names."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from kvbraid import __version__
from kvbraid.service.answers import ErrorAnswer
from kvbraid.service.errors import ERRORS
from kvbraid.service.http.query import OBJECTS
from kvbraid.service.http.routes import Route

_JSON: Final = "application/json"
EVERYWHERE: Final = (
    "malformed_http", "request_timeout", "head_too_large", "internal", "overloaded",
    "shutting_down", "too_many_connections",
)  # fmt: skip
"""Codes that every route may answer with, most of them before the route is known."""


def document(routes: Sequence[Route]) -> bytes:
    """Return the document as JSON text with sorted keys."""
    structs: set[type[msgspec.Struct]] = {ErrorAnswer, *_structs(routes)}
    ordered = sorted(structs, key=lambda struct: struct.__name__)
    refs, schemas = msgspec.json.schema_components(
        ordered, ref_template="#/components/schemas/{name}"
    )
    ref = dict(zip(ordered, refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.is_page:
            continue
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, ref, schemas)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "kvbraid", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        },
        order="sorted",
    )


def _structs(routes: Sequence[Route]) -> Iterable[type[msgspec.Struct]]:
    for route in (route for route in routes if not route.is_page):
        named = (route.body, route.query, *route.answers.values())
        yield from (struct for struct in named if struct is not None)


_Schemas = dict[str, Any]
_Refs = dict[type[msgspec.Struct], dict[str, Any]]


def _operation(route: Route, ref: _Refs, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "responses": {**_successes(route, ref), **_refusals(route, ref)},
    }
    if route.right is not None:  # A server may have no keys, so none is a way, too.
        operation["security"] = [{}, {"key": [route.right]}]
    parameters = [_path_id()] if "{id}" in route.path else []
    if route.body is not None:
        content: dict[str, Any] = {_JSON: {"schema": ref[route.body]}}
        if route.query is not None:
            raw = {"type": "string", "format": "binary", "description": "Little-endian integers."}
            content["application/octet-stream"] = {"schema": raw}
            text = "Only with application/octet-stream."
            parameters += _query_parameters(schemas[route.query.__name__], text)
        operation["requestBody"] = {"required": True, "content": content}
    elif route.binary:
        content = {route.binary: {"schema": {"type": "string", "format": "binary"}}}
        operation["requestBody"] = {"required": True, "content": content}
    elif route.query is not None:
        parameters += _query_parameters(schemas[route.query.__name__], "")
    if parameters:
        operation["parameters"] = parameters
    return operation


def _successes(route: Route, ref: _Refs) -> dict[str, Any]:
    return {
        str(status): {
            "description": "Success",
            "content": {_JSON: {"schema": ref[answer]}} if answer is not None else {},
        }
        for status, answer in route.answers.items()
    }


def _refusals(route: Route, ref: _Refs) -> dict[str, Any]:
    codes: dict[int, list[str]] = {}
    for code in (*route.codes, *EVERYWHERE):
        codes.setdefault(ERRORS[code].status, []).append(code)
    content = {_JSON: {"schema": ref[ErrorAnswer]}}
    return {
        str(status): {"description": ", ".join(listed), "content": content}
        for status, listed in sorted(codes.items())
    }


def _path_id() -> dict[str, Any]:
    return {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(fields: dict[str, Any], text: str) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    for name, schema in fields["properties"].items():
        as_text = name in OBJECTS  # One JSON text in the query.
        form = {"content": {_JSON: {"schema": schema}}} if as_text else {"schema": schema}
        parameters.append({"name": name, "in": "query", "description": text, **form})
    return parameters
