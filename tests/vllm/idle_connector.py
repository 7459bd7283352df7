"""What vLLM asks of every connector, and most of ours have nothing to do in."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
        SupportsHMA,
    )


class IdleConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc] # Untyped here.
    """A connector that brings nothing; a subclass says what it brings."""

    def build_connector_meta(self, scheduler_output: object) -> KVConnectorMetadata:
        del scheduler_output
        return KVConnectorMetadata()

    def request_finished(self, request: object, block_ids: object) -> tuple[bool, None]:
        del request, block_ids
        return False, None

    def request_finished_all_groups(self, request: object, block_ids: object) -> tuple[bool, None]:
        del request, block_ids
        return False, None

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, *args: object, **kwargs: object) -> None: ...
    def wait_for_save(self) -> None: ...
