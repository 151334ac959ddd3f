"""The messages and services of TensorFlow Serving, the Open Inference Protocol and gRPC itself.

They live in a descriptor pool of their own. A program may therefore import the official stubs, or
TensorFlow, next to this package: the same names in two pools do not meet.
"""

from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from sublet.serving.frontend.proto import language

FILES = ("google", "tensorflow", "serving", "health", "inference", "reflection", "profiler")


@cache
def pool() -> Any:
    pool = DescriptorPool()
    for name in FILES:
        file = f"{name}.proto"
        text = files(__name__).joinpath(file).read_text(encoding="utf-8")
        pool.AddSerializedFile(language.read(file, text).SerializeToString())
    return pool


@cache
def message(name: str) -> Any:
    """The class of a message, by its full name."""
    return GetMessageClass(pool().FindMessageTypeByName(name))


def serving(name: str) -> Any:
    """The class of a message of TensorFlow Serving."""
    return message(f"tensorflow.serving.{name}")


def inference(name: str) -> Any:
    """The class of a message of the Open Inference Protocol."""
    return message(f"inference.{name}")
