"""The message types of A2A, made from the compiled .proto files when this module is imported.

They live in a descriptor pool of our own. The global one has room for one definition of `lf.a2a.v1.Task`, and the
official SDK, which may be in the same process, brings its own. A compiled descriptor also fits every version of the
protobuf runtime, which generated Python code does not.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

COMPILED = Path(__file__).with_name("messages.binpb")
"""What `make proto` makes."""

POOL = descriptor_pool.DescriptorPool()
_DOCUMENTS = descriptor_pool.DescriptorPool()
_STRUCT = "google/protobuf/struct.proto"


def _load() -> dict[str, SimpleNamespace]:
    files = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes())
    packages: dict[str, SimpleNamespace] = {}
    for file in files.file:  # files come after their imports
        POOL.Add(file)
    for file in files.file:
        classes = packages.setdefault(file.package, SimpleNamespace())
        for message in POOL.FindFileByName(file.name).message_types_by_name.values():
            setattr(classes, message.name, message_factory.GetMessageClass(message))
    for file in files.file:
        for message in file.message_type:
            _name_as_json(message)
            if file.name == _STRUCT:
                for entry in message.nested_type:
                    entry.options.ClearField("map_entry")
        _DOCUMENTS.Add(file)
    return packages


def _name_as_json(message: Any) -> None:
    for field in message.field:
        field.name = field.json_name
    for inner in message.nested_type:
        _name_as_json(inner)


@cache
def document_type(kind: Any) -> Any:
    """The type that is the same as `kind` on the wire, and faster to read and write as a document: its fields have their JSON
    names, and a `Struct` has a list of entries and no map, which takes the protobuf runtime twenty times as long to fill.
    """
    return message_factory.GetMessageClass(_DOCUMENTS.FindMessageTypeByName(kind.DESCRIPTOR.full_name))


_PACKAGES = _load()

V1_0 = _PACKAGES["lf.a2a.v1"]
V0_3 = _PACKAGES["a2a.v1"]
RPC = _PACKAGES["google.rpc"]
Numbered = _PACKAGES["dragoman"].Numbered
