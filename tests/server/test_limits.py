"""How much structure a document has, found out without decoding it."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dragoman.server.limits import Limits

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


def nodes(value: Any) -> int:
    match value:
        case list():
            return 1 + sum(map(nodes, value))
        case dict():
            return 1 + sum(map(nodes, value.values()))
    return 0


@given(VALUES, st.integers(0, 8))
def test_the_depth_is_that_of_the_decoded_document(value: Any, limit: int) -> None:
    found = Limits(max_depth=limit).exceeded_by(msgspec.json.encode(value))
    assert bool(found) == (depth(value) > limit)


@given(VALUES, st.integers(1, 20))
def test_the_nodes_are_those_of_the_decoded_document(value: Any, limit: int) -> None:
    # a document with no more nodes than it may nest deep is not looked at any closer
    found = Limits(max_depth=0, max_nodes=limit).exceeded_by(msgspec.json.encode(value))
    assert ("objects and arrays" in found) == (nodes(value) > limit)


@given(st.binary(max_size=200) | st.text('[]{}":,\\1', max_size=200).map(str.encode))
def test_limits_of_a_document_take_any_bytes(document: bytes) -> None:
    Limits(max_depth=3).exceeded_by(document)


def test_a_wide_document_is_not_deep() -> None:
    document = b"[" + b"[]," * 100_000 + b"[]]"
    assert not Limits(max_depth=2).exceeded_by(document)
    assert "more than 1000" in Limits(max_nodes=1000).exceeded_by(document)


def test_brackets_in_a_string_do_not_count() -> None:
    assert not Limits(max_depth=1).exceeded_by(msgspec.json.encode(["[" * 1000, '\\"[[[' * 100]))


def test_unclosed_brackets_count_as_depth() -> None:
    assert "64 levels" in Limits().exceeded_by(b"[" * 100_000)
    assert not Limits().exceeded_by(b'"' + b'\\"[' * 1_000_000)
