"""Messages of protobuf as the documents of their JSON form, and back. The dialects of JSON read and write those. The messages
are of types whose fields have their JSON names (`messages.document_type`), so that protobuf fills most of a message by itself.

Members have their JSON names, enums the names of their values, timestamps their text. Bytes stay bytes. A document has every
text, flag, enum and list of its message, also if it is empty; numbers and messages only if they are there. Unknown members of
a document are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from dragoman.dialects.proto.values import (
    read_moment,
    read_struct,
    read_value,
    write_moment,
    write_struct,
    write_value,
)
from dragoman.dialects.reading import Malformed

Read = Callable[[Any], Any]
Write = Callable[[Any], Any]

_NUMBERS = (1, 2, 3, 4, 5, 6, 7, 13, 15, 16, 17, 18)
"""The types of fields that are numbers, as descriptor.proto counts them."""
_KNOWN: dict[str, tuple[Read, Write]] = {
    "google.protobuf.Struct": (read_struct, write_struct),
    "google.protobuf.Value": (read_value, write_value),
    "google.protobuf.Timestamp": (read_moment, write_moment),
}


@cache
def document_reader(descriptor: Any) -> Callable[[Any], dict[str, Any]]:
    """Reads messages of a type. It raises `Malformed`."""
    if descriptor.full_name in _KNOWN:
        return _KNOWN[descriptor.full_name][0]
    empty: dict[str, Any] = {}
    readers: dict[Any, tuple[str, Read | None]] = {}
    for field in descriptor.fields:
        read = _reader(field)
        readers[field] = field.json_name, read
        if field.is_repeated:
            empty[field.json_name] = {} if _is_map(field) else []
        elif not field.has_presence and field.type not in _NUMBERS:
            empty[field.json_name] = field.default_value if read is None else read(field.default_value)

    def read_document(message: Any) -> dict[str, Any]:
        document = empty.copy()
        for field, value in message.ListFields():
            name, read = readers[field]
            try:
                document[name] = value if read is None else read(value)
            except Malformed as wrong:
                raise Malformed(f"{name}.{wrong.path}".rstrip("."), wrong.why) from None
        return document

    return read_document


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _reader(field: Any) -> Read | None:
    """Reads the value of a field. None if that stays as it is."""
    if _is_map(field):
        each = _reader(field.message_type.fields_by_name["value"])
        return dict if each is None else lambda value: {key: each(item) for key, item in value.items()}
    if field.message_type is not None:
        read = document_reader(field.message_type)
        return (lambda values: [read(value) for value in values]) if field.is_repeated else read
    if field.enum_type is not None:
        return partial(_read_enum, {n: value.name for n, value in field.enum_type.values_by_number.items()})
    return list if field.is_repeated else None


def _read_enum(names: dict[int, str], number: int) -> str:
    if number not in names:
        raise Malformed("", f"has the unknown value {number}")
    return names[number]


@cache
def document_writer(descriptor: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Makes of a document what the constructor of the message takes, which is mostly the document itself: only what differs is
    copied. It raises TypeError or ValueError for what protobuf cannot carry, and so does the constructor."""
    if descriptor.full_name in _KNOWN:
        return _KNOWN[descriptor.full_name][1]
    names = frozenset(field.name for field in descriptor.fields)
    writers = [(field.name, write) for field in descriptor.fields if (write := _writer(field)) is not None]

    def write_document(document: dict[str, Any]) -> dict[str, Any]:
        if not names.issuperset(document):
            document = {name: value for name, value in document.items() if name in names}
        written = document
        for name, write in writers:
            if name in document:
                before = document[name]
                value = write(before)
                if value is not before:
                    if written is document:
                        written = document.copy()
                    written[name] = value
        return written

    return write_document


@cache
def _plain_members(descriptor: Any) -> frozenset[str]:
    """The members of a type whose values stay as they are."""
    return frozenset(field.name for field in descriptor.fields if _writer(field) is None)


def _writer(field: Any) -> Write | None:
    """Writes the value of a field. None if that stays as it is."""
    if _is_map(field):
        each = _writer(field.message_type.fields_by_name["value"])
        return None if each is None else lambda value: {key: each(item) for key, item in value.items()}
    if field.message_type is None:
        return None
    write = document_writer(field.message_type)
    if not field.is_repeated:
        return write
    if field.message_type.full_name in _KNOWN:
        return lambda values: [write(value) for value in values]
    plain = _plain_members(field.message_type)

    def write_list(values: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        for value in values:
            if not plain.issuperset(value):
                return [write(value) for value in values]
        return values

    return write_list
