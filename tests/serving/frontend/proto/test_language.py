"""The files of messages are read as the language says, and mistakes in them are told."""

import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from sublet.serving.frontend import proto
from sublet.serving.frontend.proto import language

TEXT = """
// A comment.
syntax = "proto3";
package p;

message Outer {
  message Inner { int32 a = 1; }
  enum Kind { NONE = 0; SOME = 5; }
  Inner inner = 1;
  repeated Inner inners = 2;
  Kind kind = 3;
  map<string, Inner> by_name = 4;
  oneof choice {
    string text = 6; // the one
    p.Outer.Inner other = 7;
  }
}
"""


def test_messages_enums_maps_and_oneofs_become_classes() -> None:
    pool = DescriptorPool()
    pool.AddSerializedFile(language.read("p.proto", TEXT).SerializeToString())
    outer = GetMessageClass(pool.FindMessageTypeByName("p.Outer"))(kind=5, text="t")
    outer.by_name["n"].a = 3
    outer.inners.add(a=4)
    again = type(outer).FromString(outer.SerializeToString())
    assert again == outer
    assert again.WhichOneof("choice") == "text"
    assert again.by_name["n"].a == 3


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("extend S {}", "p.proto: extend is not known here"),
        ("service S { option a = 1; }", "p.proto: expected rpc, found option"),
        ("message M { int32 a 1; }", "p.proto: expected =, found 1"),
        ("message M { int32 a = 1;", "p.proto ends too early"),
    ],
)
def test_mistakes_are_told_with_the_file(text: str, answer: str) -> None:
    with pytest.raises(SyntaxError, match=answer):
        language.read("p.proto", text)


def test_our_messages_are_not_those_of_the_default_pool() -> None:
    from google.protobuf import descriptor_pool, wrappers_pb2

    ours = proto.message("google.protobuf.Int64Value")
    assert ours is not wrappers_pb2.Int64Value
    assert ours.DESCRIPTOR.file.pool is not descriptor_pool.Default()
