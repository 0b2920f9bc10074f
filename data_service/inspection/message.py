"""Protobuf classes for the messages of tf.data's servers, which TensorFlow's wheel lacks. Sends nothing."""

from __future__ import annotations

import re
from types import SimpleNamespace

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_MESSAGE = re.compile(r"message (\w+) \{(.*?)\}", re.DOTALL)
_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")
_SCALARS = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "string": FieldDescriptorProto.TYPE_STRING,
}


def classes(proto: str) -> SimpleNamespace:
    """The classes of messages, by name.

    Args:
        proto: The messages in .proto syntax. Fields that are left out are skipped when parsing.
    """
    file = FileDescriptorProto(name="tfdist.proto", syntax="proto3")
    for name, body in _MESSAGE.findall(proto):
        message = file.message_type.add(name=name)
        for repeated, kind, field, number in _FIELD.findall(body):
            label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            shape = {"type": _SCALARS[kind]} if kind in _SCALARS else {"type_name": kind}
            message.field.add(name=field, number=int(number), label=label, **shape)
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return SimpleNamespace(
        **{each.name: GetMessageClass(pool.FindMessageTypeByName(each.name)) for each in file.message_type}
    )
