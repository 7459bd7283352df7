"""Our messages of Envoy and gRPC have the published names, numbers and types, and nothing else."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from kvbraid.gateway.envoy.processing import BodyMode
from kvbraid.gateway.envoy.protos import access_log_pb2, ext_proc_pb2, health_pb2

from tests.golden.envoy_protos import run_protoc
from tests.service.envoy_streams import (
    entry,
    metadata,
    request_body,
    request_headers,
    response_headers,
)

PUBLISHED: list[tuple[type[Message], type[Message]]] = [
    (ext_proc_pb2.ProcessingRequest, external_processor_pb2.ProcessingRequest),
    (ext_proc_pb2.ProcessingResponse, external_processor_pb2.ProcessingResponse),
    (access_log_pb2.StreamAccessLogsMessage, als_pb2.StreamAccessLogsMessage),
    (access_log_pb2.StreamAccessLogsResponse, als_pb2.StreamAccessLogsResponse),
    (access_log_pb2.HTTPAccessLogEntry, accesslog_pb2.HTTPAccessLogEntry),
]
JSON_NAME = re.compile(r" *json_name: .*\n")
ENUMS_ARE_NUMBERS = {FieldDescriptor.TYPE_ENUM: FieldDescriptor.TYPE_INT32}


def kind(field: FieldDescriptor) -> tuple[object, ...]:
    oneof = field.containing_oneof
    return (
        field.number,
        ENUMS_ARE_NUMBERS.get(field.type, field.type),
        field.is_repeated,
        oneof.name if oneof else None,
    )


def differences(ours: Any, theirs: Any, seen: set[str]) -> Iterator[str]:  # noqa: ANN401
    if ours.full_name in seen or ours is theirs:
        return
    seen.add(ours.full_name)
    for name, field in ours.fields_by_name.items():
        other = theirs.fields_by_name.get(name)
        if other is None or kind(field) != kind(other):
            yield f"{ours.full_name}.{name}: {kind(field)}, and {other and kind(other)}"
        elif field.message_type is not None:
            yield from differences(field.message_type, other.message_type, seen)


@pytest.mark.parametrize("pair", PUBLISHED, ids=lambda pair: pair[0].__name__)
def test_every_field_is_a_published_one(pair: tuple[type[Message], type[Message]]) -> None:
    ours, theirs = (each.DESCRIPTOR for each in pair)
    assert list(differences(ours, theirs, set())) == []


def test_the_fields_of_a_health_check_are_the_published_ones() -> None:
    """grpc/health/v1/health.proto: service = 1; status = 1, SERVING = 1, NOT_SERVING = 2."""
    request, answer = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    assert request(service="a").SerializeToString() == b"\x0a\x01a"
    assert answer(status=2).SerializeToString() == b"\x08\x02"


def test_the_modes_of_bodies_have_the_published_numbers() -> None:
    field = external_processor_pb2.ProtocolConfiguration.DESCRIPTOR.fields_by_name
    published = field["request_body_mode"].enum_type.values_by_name
    assert {mode.name: mode.value for mode in BodyMode} == {
        name: value.number for name, value in published.items() if name != "GRPC"
    }


def test_the_end_of_a_request_has_its_published_type() -> None:
    assert accesslog_pb2.AccessLogType.Value("DownstreamEnd") == 6


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (request_headers(hints=["10.0.0.1:1"], a="b"), external_processor_pb2.ProcessingRequest),
        (request_body(b"body"), external_processor_pb2.ProcessingRequest),
        (response_headers(served="10.0.0.1:1"), external_processor_pb2.ProcessingRequest),
        (
            entry("r", endpoint="h:1", flags={"upstream_overflow": True},
                  usage=metadata("kvbraid", {"cached_tokens": 1})),
            accesslog_pb2.HTTPAccessLogEntry,
        ),
    ],
    ids=["headers", "body", "response", "entry"],
)  # fmt: skip
def test_what_we_write_others_read_and_write_back(ours: Message, theirs: type[Message]) -> None:
    read = theirs.FromString(ours.SerializeToString())
    assert MessageToDict(read)
    assert type(ours).FromString(read.SerializeToString()) == ours


def test_the_modules_are_those_of_the_files(tmp_path: Path) -> None:
    described = tmp_path / "described"
    run_protoc(f"--descriptor_set_out={described}", "--include_imports")
    pool, names = DescriptorPool(), []
    for file in FileDescriptorSet.FromString(described.read_bytes()).file:
        pool.Add(file)
        names.append(file.name)
    modules = (ext_proc_pb2, access_log_pb2, health_pb2)
    assert {it.DESCRIPTOR.name for it in modules} == {n for n in names if "kvbraid" in n}
    for module in modules:
        ours, theirs = FileDescriptorProto(), FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(ours)
        pool.FindFileByName(module.DESCRIPTOR.name).CopyToProto(theirs)
        assert str(ours) == JSON_NAME.sub("", str(theirs)), module.DESCRIPTOR.name
