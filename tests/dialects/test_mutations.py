"""Documents with anything anywhere in them: they are read, or refused with words, and nothing else happens."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.dialects import cards, select
from dragoman.errors import InvalidAgentResponse, InvalidParams
from dragoman.model import ops
from tests.dialects.strategies import json_values, names
from tests.spec.examples import CARDS, EXAMPLES

anything: st.SearchStrategy[Any] = json_values | st.sampled_from(
    [0, -1, 2**63, 1e308, "", [], {}, [[]], [{}], {"": None}, None, True]
)
many = settings(max_examples=400)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a document."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        inner = list(document.items())
    elif isinstance(document, list):
        inner = list(enumerate(document))
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


@st.composite
def mutated(draw: st.DrawFn, documents: list[Any]) -> Any:
    """One of the documents with one to three places in it changed, removed or doubled."""
    document = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(places(document)[1:] or [("x",)]))
        holder = document
        for step in way:
            holder = holder[step]
        match draw(st.sampled_from(["replace", "remove", "rename"])):
            case "remove" if isinstance(holder, dict):
                del holder[last]
            case "rename" if isinstance(holder, dict):
                holder[draw(names)] = holder.pop(last)
            case _:
                if isinstance(holder, dict | list):
                    holder[last] = copy.deepcopy(draw(anything))
        if not isinstance(document, dict) or not document:
            break
    return document


requests = [(example.version, example.request["method"], example.request["params"]) for example in EXAMPLES]
results = [
    {"dialect": example.dialect, "method": example.request["method"], "result": response["result"]}
    for example in EXAMPLES
    for response in example.responses
    if response["result"]
]


@many
@given(call=st.sampled_from(requests), data=st.data())
def test_a_mutated_request_is_read_or_refused_and_in_any_dialect(call: Any, data: st.DataObject) -> None:
    version, method, params = call
    raw = msgspec.json.encode(data.draw(mutated([params])))
    chosen = select.choose_for_rpc(version, method, raw)
    for dialect in select.DIALECTS.values():
        if dialect.method(chosen.op):
            with suppress(InvalidParams):
                request = dialect.read_request(chosen.op, raw)
                dialect.read_request(chosen.op, dialect.write_request(chosen.op, request))


@many
@given(document=mutated(results))
def test_a_mutated_result_is_read_or_called_invalid(document: Any) -> None:
    result = document.get("result")
    for dialect in select.DIALECTS.values():
        for op in (ops.SEND, ops.GET, ops.PUSH_GET, ops.PUSH_LIST):
            if dialect.method(op):
                with suppress(InvalidAgentResponse):
                    dialect.write_result(op, dialect.read_result(op, result))
        with suppress(InvalidAgentResponse):
            for event in [dialect.read_event(result)]:
                for last in (False, True):
                    dialect.writer().write(ops.StreamResponse(event), last=last)
        assert dialect.read_error(result).message


@many
@given(document=mutated([document for _, document in CARDS]))
def test_a_mutated_card_is_read_or_called_invalid(document: Any) -> None:
    with suppress(InvalidAgentResponse):
        card, _ = cards.read_card(document)
        cards.superset_card(card)
        for name in select.DIALECTS:
            cards.write_card(card, name)
        select.for_card(document)


@many
@given(params=st.binary(max_size=40), method=st.sampled_from([method for _, method, _ in requests]) | names)
def test_bytes_that_are_no_json_are_refused(params: bytes, method: str) -> None:
    try:
        chosen = select.choose_for_rpc("", method, params)
        chosen.dialect.read_request(chosen.op, params)
    except (select.DialectRefused, InvalidParams):
        return
    assert not params or isinstance(msgspec.json.decode(params), dict)
