"""Reads the part of the proto3 language that the files beside it are written in.

It knows messages, enums, oneofs, maps, fields and services. It owns no descriptor, and checks
nothing that the descriptor pool checks.
"""

import re
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)

_WORDS = re.compile(r'//[^\n]*|"[^"]*"|[\w.]+|[{}<>(),;=]')
_LABELS = {"repeated": FieldDescriptorProto.LABEL_REPEATED}
_SCALARS = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64")
}


def read(name: str, text: str) -> Any:
    return _Reader(name, text).file()


class _Reader:
    def __init__(self, name: str, text: str) -> None:
        self._name = name
        words: list[str] = _WORDS.findall(text)
        self._words = [word for word in reversed(words) if not word.startswith("//")]

    def file(self) -> Any:
        file = FileDescriptorProto(name=self._name)
        while self._words:
            match kind := self._take():
                case "syntax":
                    self._expect("=")
                    file.syntax = self._quoted()
                case "package":
                    file.package = self._take()
                case "import":
                    file.dependency.append(self._quoted())
                case "message":
                    self._message(file.message_type.add())
                    continue
                case "enum":
                    self._enum(file.enum_type.add())
                    continue
                case "service":
                    self._service(file.service.add())
                    continue
                case _:
                    raise SyntaxError(f"{self._name}: {kind} is not known here")
            self._expect(";")
        return file

    def _message(self, message: DescriptorProto) -> None:
        message.name = self._take()
        self._expect("{")
        while (word := self._take()) != "}":
            match word:
                case "message":
                    self._message(message.nested_type.add())
                case "enum":
                    self._enum(message.enum_type.add())
                case "oneof":
                    self._oneof(message)
                case "map":
                    self._map(message)
                case "repeated":
                    self._field(message.field.add(label=_LABELS[word]), self._take())
                case _:
                    self._field(message.field.add(), word)

    def _service(self, service: ServiceDescriptorProto) -> None:
        service.name = self._take()
        self._expect("{")
        while (word := self._take()) != "}":
            if word != "rpc":
                raise SyntaxError(f"{self._name}: expected rpc, found {word}")
            method = service.method.add(name=self._take())
            method.input_type, method.client_streaming = self._argument()
            self._expect("returns")
            method.output_type, method.server_streaming = self._argument()
            self._expect(";")

    def _argument(self) -> tuple[str, bool]:
        """The message of a method, and whether it is a stream of them."""
        self._expect("(")
        name = self._take()
        streamed = name == "stream"
        if streamed:
            name = self._take()
        self._expect(")")
        return name, streamed

    def _oneof(self, message: DescriptorProto) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._take())
        self._expect("{")
        while (word := self._take()) != "}":
            self._field(message.field.add(oneof_index=index), word)

    def _map(self, message: DescriptorProto) -> None:
        """A map is a repeated message of a key and a value; its name follows from the field's."""
        self._expect("<")
        key = self._take()
        self._expect(",")
        value = self._take()
        self._expect(">")
        field = message.field.add(label=FieldDescriptorProto.LABEL_REPEATED)
        name = self._words[-1].title().replace("_", "") + "Entry"
        self._field(field, name)
        entry = message.nested_type.add(name=name)
        entry.options.map_entry = True
        for number, (part, kind) in enumerate((("key", key), ("value", value)), start=1):
            self._type(entry.field.add(name=part, number=number), kind)

    def _field(self, field: FieldDescriptorProto, kind: str) -> None:
        self._type(field, kind)
        field.name = self._take()
        self._expect("=")
        field.number = int(self._take())
        self._expect(";")

    @staticmethod
    def _type(field: FieldDescriptorProto, kind: str) -> None:
        if not field.HasField("label"):
            field.label = FieldDescriptorProto.LABEL_OPTIONAL
        scalar = _SCALARS.get(kind)
        if scalar is None:
            field.type_name = kind  # the pool finds out whether that is a message or an enum
        else:
            field.type = scalar

    def _enum(self, enum: EnumDescriptorProto) -> None:
        enum.name = self._take()
        self._expect("{")
        while (name := self._take()) != "}":
            self._expect("=")
            enum.value.add(name=name, number=int(self._take()))
            self._expect(";")

    def _take(self) -> str:
        if not self._words:
            raise SyntaxError(f"{self._name} ends too early")
        return self._words.pop()

    def _expect(self, word: str) -> None:
        if (found := self._take()) != word:
            raise SyntaxError(f"{self._name}: expected {word}, found {found}")

    def _quoted(self) -> str:
        return str.strip(self._take(), '"')
