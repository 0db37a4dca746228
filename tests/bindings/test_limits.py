"""How deep a document nests, found out without decoding it."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dragoman.bindings.limits import deeper_than

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{}"\\a\n', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('{}["\\', max_size=3), inner, max_size=4)
    ),
    max_leaves=40,
)


def depth(value: Any) -> int:
    match value:
        case list():
            return 1 + max(map(depth, value), default=0)
        case dict():
            return 1 + max(map(depth, value.values()), default=0)
    return 0


@given(VALUES, st.integers(0, 8))
def test_it_agrees_with_the_decoded_document(value: Any, limit: int) -> None:
    assert deeper_than(limit, msgspec.json.encode(value)) == (depth(value) > limit)


@given(st.binary(max_size=200) | st.text('[]{}":,\\1', max_size=200).map(str.encode))
def test_any_bytes_will_do(document: bytes) -> None:
    deeper_than(3, document)


def test_a_wide_document_is_not_deep() -> None:
    assert not deeper_than(2, b"[" + b"[]," * 100_000 + b"[]]")


def test_brackets_in_a_string_do_not_count() -> None:
    assert not deeper_than(1, msgspec.json.encode(["[" * 1000, '\\"[[[' * 100]))


def test_what_never_closes_is_deep_or_no_document() -> None:
    assert deeper_than(64, b"[" * 100_000)
    assert not deeper_than(64, b'"' + b'\\"[' * 1_000_000)
