"""`kvbraid route`: the real index, subscriber and gateway put together and run."""

import gc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from kvbraid.gateway.app import Gateway
from kvbraid.gateway.tokens import AskedEngine, BodyReader, TokenizerFiles, Tokenizers
from kvbraid.service.config import FleetConfig
from kvbraid.service.http.access import Access
from kvbraid.service.http.server import end_process, run_server
from kvbraid.service.prompting import TokensTable
from kvbraid.service.registry import Service
from kvbraid.service.serve import new_service

_UNTIL_COLLECTION: Final = 20_000
"""Objects that are made before a collection. A request leaves none that refers to itself, so what
collections look at is what hundreds of requests in flight need just now."""


def route(config: FleetConfig, *, announce: Callable[[str], None]) -> None:
    """Forward requests until SIGTERM or SIGINT; may end the process itself, with 0.

    Raises as `run_server`, and InvalidValueError for a model's files that are missing or wrong.
    """
    service = new_service(config)
    reader = reader_of(config, Adapters(service))

    def gateway(service: Service, access: Access) -> Gateway:
        made = Gateway(service, reader, config.forwarding, access=access)
        gc.freeze()  # What is there now stays: no collection has to look at it again.
        gc.set_threshold(_UNTIL_COLLECTION)
        return made

    run_server(
        config,
        service,
        announce=announce,
        application=gateway,
        end_s=config.forwarding.end_s,
    )
    end_process()


class Adapters(Mapping[str, str]):
    """The model of each adapter that pods list just now."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __getitem__(self, name: str) -> str:
        return self._service.adapters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._service.adapters)

    def __len__(self) -> int:
        return len(self._service.adapters)


def reader_of(config: FleetConfig, adapters: Mapping[str, str]) -> BodyReader:
    """Return the reader of prompts; `adapters` names the model of each, and may change."""
    files = {
        model: _files(table.folder, table)
        for model, table in config.tokens.items()
        if table.folder is not None
    }
    engines = {
        model: AskedEngine(table.engine)
        for model, table in config.tokens.items()
        if table.engine is not None
    }
    return BodyReader(Tokenizers.of(files), adapters, engines)


def _files(folder: str, table: TokensTable) -> TokenizerFiles:
    return TokenizerFiles(
        folder=Path(folder),
        template=None if table.template is None else Path(table.template),
        content_format=None if table.content_format == "auto" else table.content_format,
        template_arguments=table.template_arguments,
        fast=table.fast,
    )
