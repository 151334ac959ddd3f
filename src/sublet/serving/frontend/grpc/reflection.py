"""grpc.reflection: the services of this port and their messages, as grpcurl asks for them."""

from functools import cache
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from sublet.channel.codes import Code
from sublet.serving.frontend.grpc.calls import Call, Method, Methods
from sublet.serving.frontend.grpc.requests import parse, serialized
from sublet.serving.frontend.proto import FILES, message, pool

_REQUEST = message("grpc.reflection.v1.ServerReflectionRequest")
_RESPONSE = message("grpc.reflection.v1.ServerReflectionResponse")


_NUMBERS = {
    # Lists that are read as bytes here, which have the same form on the wire.
    "float_val": FieldDescriptorProto.TYPE_FLOAT,
    "scomplex_val": FieldDescriptorProto.TYPE_FLOAT,
    "fp32_contents": FieldDescriptorProto.TYPE_FLOAT,
    "double_val": FieldDescriptorProto.TYPE_DOUBLE,
    "dcomplex_val": FieldDescriptorProto.TYPE_DOUBLE,
    "fp64_contents": FieldDescriptorProto.TYPE_DOUBLE,
}


def services() -> tuple[str, ...]:
    """The full names of all services."""
    return tuple(
        sorted(
            service.full_name
            for name in FILES
            for service in pool().FindFileByName(f"{name}.proto").services_by_name.values()
        )
    )


def methods() -> Methods:
    path = b"/grpc.reflection.%s.ServerReflection/ServerReflectionInfo"
    return {path % version: Method(None, _answer_all) for version in (b"v1", b"v1alpha")}


async def _answer_all(call: Call) -> None:
    while (data := await call.read()) is not None:
        request = parse(_REQUEST, data)
        response = _RESPONSE(valid_host=request.host, original_request=request)
        try:
            _answer(request, response)
        except KeyError as unknown:
            response.error_response.error_code = Code.NOT_FOUND
            response.error_response.error_message = f"Not found: {unknown.args[0]}"
        await call.write(serialized(response))


def _answer(request: Any, response: Any) -> None:
    """Raises KeyError for what is not known."""
    match asked := request.WhichOneof("message_request"):
        case "list_services":
            for name in services():
                response.list_services_response.service.add(name=name)
        case "file_by_filename":
            _files(response, pool().FindFileByName(request.file_by_filename))
        case "file_containing_symbol":
            _files(response, pool().FindFileContainingSymbol(request.file_containing_symbol))
        case "all_extension_numbers_of_type":
            name = pool().FindMessageTypeByName(request.all_extension_numbers_of_type).full_name
            response.all_extension_numbers_response.base_type_name = name
        case _:
            raise KeyError(asked or "nothing was asked")


def _files(response: Any, file: Any) -> None:
    """Tell a file, and before it those that it needs."""
    found = {}

    def take(one: Any) -> None:
        for other in one.dependencies:
            take(other)
        found[one.name] = _described(one.name)

    take(file)
    response.file_descriptor_response.file_descriptor_proto.extend(reversed(found.values()))


@cache
def _described(name: str) -> bytes:
    """A file as the official one describes its messages."""
    file = FileDescriptorProto.FromString(pool().FindFileByName(name).serialized_pb)
    for each in file.message_type:
        _restore(each)
    data: bytes = file.SerializeToString()
    return data


def _restore(one: DescriptorProto) -> None:
    for field in one.field:
        if field.type == FieldDescriptorProto.TYPE_BYTES and field.name in _NUMBERS:
            field.type = _NUMBERS[field.name]
            field.label = FieldDescriptorProto.LABEL_REPEATED
    for nested in one.nested_type:
        _restore(nested)
