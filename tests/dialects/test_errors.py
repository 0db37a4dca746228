"""Errors: the right code in every version, and the right error from every code."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import errors as e
from dragoman.dialects import errors, select

CODES: list[tuple[type[e.A2AError], dict[str, int]]] = [
    (e.ParseError, dict.fromkeys(select.DIALECTS, -32700)),
    (e.InvalidRequest, dict.fromkeys(select.DIALECTS, -32600)),
    (e.MethodNotFound, dict.fromkeys(select.DIALECTS, -32601)),
    (e.InvalidParams, dict.fromkeys(select.DIALECTS, -32602)),
    (e.A2AError, dict.fromkeys(select.DIALECTS, -32603)),
    (e.TaskNotFound, dict.fromkeys(select.DIALECTS, -32001)),
    (e.TaskNotCancelable, dict.fromkeys(select.DIALECTS, -32002)),
    (e.PushNotSupported, {"draft": -32003, "0.1": -32003, "0.2": -32003, "0.3": -32003, "1.0": -32003, "arbiter": -32004}),
    (e.UnsupportedOperation, dict.fromkeys(select.DIALECTS, -32004)),
    (e.StreamingNotSupported, {"draft": -32004, "0.1": -32006, "0.2": -32004, "0.3": -32004, "1.0": -32004}),
    (e.TaskClosed, {"draft": -32004, "0.1": -32009, "0.2": -32004, "0.3": -32004, "1.0": -32004}),
    (e.ContentTypeNotSupported, dict.fromkeys(select.DIALECTS, -32005)),
    (e.InvalidAgentResponse, {"draft": -32603, "0.1": -32603, "0.2": -32006, "0.3": -32006, "1.0": -32006, "arbiter": -32006}),
    (e.ExtendedCardNotConfigured, {"draft": -32004, "0.1": -32004, "0.3": -32007, "1.0": -32007, "arbiter": -32601}),
    (e.ExtensionRequired, {"draft": -32602, "0.1": -32602, "0.2": -32602, "0.3": -32602, "1.0": -32008, "arbiter": -32602}),
    (e.VersionNotSupported, {"draft": -32600, "0.1": -32600, "0.2": -32600, "0.3": -32009, "1.0": -32009, "arbiter": -32007}),
    (e.Unauthenticated, {"draft": -32007, "0.1": -32007, "0.2": -32000, "0.3": -32000, "1.0": -32000}),
    (e.Forbidden, {"draft": -32008, "0.1": -32008, "0.3": -32000, "1.0": -32000}),
    (e.RateLimited, {"draft": -32010, "0.1": -32010, "0.3": -32000, "1.0": -32000}),
    (e.Unavailable, {"draft": -32011, "0.1": -32011, "0.2": -32603, "0.3": -32603, "1.0": -32603, "arbiter": -32603}),
]  # fmt: skip
EACH = [(kind, name, code) for kind, codes in CODES for name, code in codes.items()]


def make_error(kind: type[e.A2AError], message: str) -> e.A2AError:
    return kind(message=message) if kind is e.TaskNotFound else kind(message)


@pytest.mark.parametrize(("kind", "name", "code"), EACH)
def test_every_error_has_its_code_in_every_version(kind: type[e.A2AError], name: str, code: int) -> None:
    written = select.DIALECTS[name].write_error(make_error(kind, "a sentence"))
    assert (written["code"], written["message"]) == (code, "a sentence")


@pytest.mark.parametrize("kind", [kind for kind, _ in CODES])
def test_1_0_keeps_the_reason_of_every_error(
    kind: type[e.A2AError],
) -> None:
    dialect = select.DIALECTS["1.0"]
    error = dialect.read_error(dialect.write_error(make_error(kind, "a sentence")))
    assert error.reason == kind.reason
    assert issubclass(kind, type(error))
    assert error.message == "a sentence"


@pytest.mark.parametrize("name", list(select.DIALECTS))
def test_an_error_that_has_a_code_of_its_own_survives_in_every_version(name: str) -> None:
    dialect = select.DIALECTS[name]
    own: dict[int, type[e.A2AError]] = {}
    for kind, codes in CODES:
        if name in codes and codes[name] != -32000:
            own.setdefault(codes[name], kind)
    for kind in own.values():
        assert type(dialect.read_error(dialect.write_error(make_error(kind, "x")))) is kind


@pytest.mark.parametrize(
    ("name", "code", "kind"),
    [
        ("0.1", -32007, e.Unauthenticated),
        ("0.3", -32007, e.ExtendedCardNotConfigured),
        ("arbiter", -32007, e.VersionNotSupported),
        ("0.1", -32009, e.TaskClosed),
        ("1.0", -32009, e.VersionNotSupported),
        ("0.1", -32006, e.StreamingNotSupported),
        ("0.3", -32006, e.InvalidAgentResponse),
        ("0.3", -31401, e.Unauthenticated),
        ("1.0", -31403, e.Forbidden),
    ],
)
def test_a_code_means_what_it_means_in_the_version_that_wrote_it(name: str, code: int, kind: type) -> None:
    assert type(select.DIALECTS[name].read_error({"code": code, "message": "m"})) is kind


@pytest.mark.parametrize(
    ("http", "kind"),
    [(401, e.Unauthenticated), (403, e.Forbidden), (429, e.RateLimited), (503, e.Unavailable)],
)
def test_a_server_error_is_identified_by_the_http_status(http: int, kind: type) -> None:
    for name in ("1.0", "0.3", "arbiter"):
        assert type(select.DIALECTS[name].read_error({"code": -32000, "message": "no"}, http=http)) is kind
        assert type(select.DIALECTS[name].read_error(None, http=http)) is kind


def test_the_reason_outweighs_the_code() -> None:
    data = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "TASK_NOT_FOUND",
            "metadata": {"taskId": "t"},
        }
    ]
    error = select.DIALECTS["1.0"].read_error({"code": -32603, "message": "gone", "data": data})
    assert type(error) is e.TaskNotFound
    assert (error.message, error.metadata) == ("gone", {"taskId": "t"})


def test_an_unknown_code_keeps_its_words() -> None:
    error = select.DIALECTS["0.3"].read_error({"code": -32055, "message": "the tea is cold"})
    assert (type(error), error.message) == (e.A2AError, "the tea is cold")


@pytest.mark.parametrize(
    "nonsense", [None, 3, [], {}, {"code": "x"}, {"message": 5, "data": [1, None, {"@type": 3}]}, "no"]
)
def test_any_nonsense_is_still_an_error_with_words(nonsense: Any) -> None:
    for name in select.DIALECTS:
        assert select.DIALECTS[name].read_error(nonsense).message


def test_field_violations_survive_where_there_is_room_for_them() -> None:
    error = e.InvalidParams("parts are wrong", fields=(("message.parts", "must not be empty"),))
    for name in ("1.0", "0.3", "0.2", "0.1"):
        dialect = select.DIALECTS[name]
        assert dialect.read_error(dialect.write_error(error)).fields == error.fields
    assert "data" not in select.DIALECTS["arbiter"].write_error(error)


def test_1_0_details_are_a_list_of_typed_objects() -> None:
    data = select.DIALECTS["1.0"].write_error(e.TaskNotFound("t"))["data"]
    assert [detail["@type"] for detail in data] == ["type.googleapis.com/google.rpc.ErrorInfo"]
    assert data[0]["domain"] == "a2a-protocol.org"
    assert "data" not in select.DIALECTS["0.3"].write_error(e.TaskNotFound("t"))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (e.TaskNotFound, "TaskNotFoundError"),
        (e.ExtendedCardNotConfigured, "ExtendedAgentCardNotConfiguredError"),
        (e.TaskClosed, "UnsupportedOperationError"),
        (e.A2AError, "InternalError"),
        (e.Forbidden, ""),
    ],
)
def test_an_error_is_called_what_the_sdks_call_it(kind: type[e.A2AError], name: str) -> None:
    assert errors.name_of(make_error(kind, "a sentence")) == name
    assert not name or issubclass(kind, errors.by_name(name) or ())
