"""Which dialect a call is in, and in which one it is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

from dragoman.dialects import select
from dragoman.errors import MethodNotFound, UnsupportedOperation, VersionNotSupported
from dragoman.model import ops
from tests.spec.examples import CARDS

KINDED = b'{"message":{"role":"user","parts":[{"kind":"text","text":"hi"}],"messageId":"m"}}'
TYPED = b'{"message":{"role":"user","parts":[{"type":"text","text":"hi"}],"messageId":"m"}}'
MIXED = b'{"message":{"kind":"message","parts":[{"type":"text","text":"hi"}]}}'
NEITHER = b'{"message":{"parts":[{"text":"hi"},{"data":{"type":"text"}}]}}'


@pytest.mark.parametrize(
    ("version", "method", "params", "dialect", "op"),
    [
        ("1.0", "SendMessage", b"", "1.0", ops.SEND),
        ("1", "SendMessage", b"", "1.0", ops.SEND),
        ("1.0.1", "SendMessage", b"", "1.0", ops.SEND),
        ("", "SendMessage", b"", "1.0", ops.SEND),
        ("", "message/send", KINDED, "0.3", ops.SEND),
        ("0.3", "message/send", KINDED, "0.3", ops.SEND),
        ("0.3.0", "message/stream", KINDED, "0.3", ops.STREAM),
        ("0.2", "message/send", KINDED, "0.2", ops.SEND),
        ("0.2.5", "message/send", KINDED, "0.2", ops.SEND),
        ("", "message/send", TYPED, "0.2-type", ops.SEND),
        ("", "message/send", MIXED, "0.3", ops.SEND),
        ("", "message/send", NEITHER, "0.3", ops.SEND),
        ("", "message/send", b"not json", "0.3", ops.SEND),
        ("1.0", "message/send", KINDED, "arbiter", ops.SEND),
        ("1", "tasks/get", b"", "arbiter", ops.GET),
        ("", "tasks/send", b"", "0.1", ops.SEND),
        ("0.1", "tasks/sendSubscribe", b"", "0.1", ops.STREAM),
        ("", "tasks/send", b'{"message":{"parts":[{"file":{"data":"YQ=="}}]}}', "draft", ops.SEND),
        ("", "tasks/pushNotification/set", b'{"id":"t"}', "0.1", ops.PUSH_CREATE),
        ("", "tasks/pushNotification/set", b'{"taskId":"t"}', "0.2", ops.PUSH_CREATE),
        ("0.2", "tasks/pushNotification/get", b'{"id":"t"}', "0.2", ops.PUSH_GET),
        ("", "tasks/pushNotificationConfig/set", b"", "0.3", ops.PUSH_CREATE),
        ("", "agent/getAuthenticatedExtendedCard", b"", "0.3", ops.EXTENDED_CARD),
    ],
)
def test_the_method_then_the_header_then_the_shape_decide(
    version: str, method: str, params: bytes, dialect: str, op: ops.Op
) -> None:
    chosen = select.choose_for_rpc(version, method, params)
    assert (chosen.dialect.name, chosen.op, chosen.certain) == (dialect, op, True)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "tasks/resubscribe"])
def test_methods_of_every_old_version_need_the_tasks_origin(method: str) -> None:
    assert select.choose_for_rpc("", method).certain is False
    for version in ("0.3", "0.2", "0.1"):
        chosen = select.choose_for_rpc(version, method)
        assert (chosen.dialect.name, chosen.certain) == (version, True)


@pytest.mark.parametrize(
    ("origin", "dialect"),
    [
        ("0.1", "0.1"),
        ("draft", "draft"),
        ("0.2-type", "0.2-type"),
        ("arbiter", "arbiter"),
        ("1.0", "0.3"),
        ("", "0.3"),
    ],
)
def test_a_task_is_answered_in_the_dialect_of_its_origin_if_that_has_the_method(
    origin: str, dialect: str
) -> None:
    assert select.by_origin(origin).name == dialect


@pytest.mark.parametrize(
    ("origin", "dialect"),
    [
        ("0.1", "0.1"),
        ("draft", "draft"),
        ("0.2", "arbiter"),
        ("0.3", "arbiter"),
        ("1.0", "arbiter"),
        ("native", "arbiter"),
        ("", "arbiter"),
    ],
)
def test_on_an_arbiter_mount_only_tasks_of_0_1_are_answered_in_their_dialect(
    origin: str, dialect: str
) -> None:
    for method in ("tasks/get", "tasks/cancel", "tasks/resubscribe"):
        chosen = select.choose_for_rpc("", method, home="arbiter")
        assert (chosen.dialect.name, chosen.certain) == ("arbiter", False)
        assert select.by_origin(origin, home="arbiter").name == dialect
        assert select.choose_for_rpc("1.0", method, home="arbiter").certain


@pytest.mark.parametrize("allowed", [None, ("1.0",), ("0.3", "arbiter"), ("0.2",)])
@pytest.mark.parametrize("version", ["", "1.0", "0.3", "2.0"])
@pytest.mark.parametrize("mount", ["", "arbiter"])
def test_for_names_of_1_0_the_cached_choice_is_the_choice_whatever_the_params_and_the_home_are(
    mount: str, version: str, allowed: tuple[str, ...] | None
) -> None:
    def outcome(choose: Any, method: str, *args: Any, **kw: Any) -> Any:
        try:
            return choose(version, method, *args, mount=mount, allowed=allowed, **kw)
        except select.DialectRefused as refused:
            return refused.dialect, str(refused)

    for method in ops.OPS:
        cached = outcome(select.choose_for_rpc_cached, method)
        for params, home in product((b"", TYPED), ("", "arbiter")):
            assert outcome(select.choose_for_rpc, method, params, home=home, pushes=True) == cached


def refusal(*args: Any, **kw: Any) -> tuple[str, int, type]:
    with pytest.raises(select.DialectRefused) as caught:
        select.choose_for_rpc(*args, **kw)
    refused = caught.value
    return refused.dialect.name, refused.dialect.write_error(refused.error)["code"], type(refused.error)


@pytest.mark.parametrize(
    ("version", "method", "dialect", "code", "kind"),
    [
        ("2.0", "SendMessage", "1.0", -32009, VersionNotSupported),
        ("1.7", "SendMessage", "1.0", -32009, VersionNotSupported),
        ("nonsense", "message/send", "1.0", -32009, VersionNotSupported),
        ("0.3", "SendMessage", "1.0", -32009, VersionNotSupported),
        ("0.1", "message/send", "0.3", -32009, VersionNotSupported),
        ("0.3", "tasks/send", "0.3", -32009, VersionNotSupported),
        ("1.0", "FlyToTheMoon", "1.0", -32601, MethodNotFound),
        ("", "FlyToTheMoon", "1.0", -32601, MethodNotFound),
        ("", "fly", "0.3", -32601, MethodNotFound),
        ("", "tasks/fly", "0.3", -32601, MethodNotFound),
        ("1.0", "tasks/send", "arbiter", -32601, MethodNotFound),
        ("1.0", "tasks/pushNotificationConfig/list", "arbiter", -32004, UnsupportedOperation),
        ("1.0", "agent/getAuthenticatedExtendedCard", "arbiter", -32601, MethodNotFound),
        ("", "", "0.3", -32601, MethodNotFound),
    ],
)
def test_a_call_is_refused_in_the_dialect_of_the_caller(
    version: str, method: str, dialect: str, code: int, kind: type
) -> None:
    assert refusal(version, method) == (dialect, code, kind)


def test_an_agent_speaks_only_what_it_is_allowed_to() -> None:
    assert select.choose_for_rpc("", "SendMessage", allowed=("1.0",)).dialect.name == "1.0"
    assert refusal("", "message/send", KINDED, allowed=("1.0",)) == ("0.3", -32009, VersionNotSupported)
    assert select.choose_for_rpc("", "message/send", TYPED, allowed=("0.2",)).dialect.name == "0.2-type"
    assert refusal("1.0", "message/send", allowed=("1.0",)) == ("1.0", -32601, MethodNotFound)
    assert refusal("1.0", "message/send", allowed=("0.2",)) == ("1.0", -32009, VersionNotSupported)
    assert select.choose_for_rpc("1.0", "message/send", allowed=("0.3", "arbiter")).dialect.name == "arbiter"
    assert refusal("", "tasks/send", allowed=("1.0", "0.3")) == ("0.1", -32600, VersionNotSupported)


@pytest.mark.parametrize(
    ("method", "allowed", "dialect"),
    [
        ("message/send", ("0.2",), "0.2"),
        ("message/send", ("1.0", "0.2", "0.1"), "0.2"),
        ("message/send", ("0.3", "0.2"), "0.3"),
        ("tasks/get", ("0.2", "0.1"), "0.2"),
        ("tasks/get", ("0.1",), "0.1"),
        ("tasks/cancel", ("1.0", "0.1"), "0.1"),
    ],
)
def test_a_call_without_a_version_gets_the_newest_supported_version_before_1_0(
    method: str, allowed: tuple[str, ...], dialect: str
) -> None:
    assert select.choose_for_rpc("", method, KINDED, allowed=allowed).dialect.name == dialect


@pytest.mark.parametrize(
    ("origin", "allowed", "dialect"),
    [
        ("1.0", ("1.0", "0.1"), "0.1"),
        ("0.3", ("0.2",), "0.2"),
        ("0.2-type", ("0.2",), "0.2-type"),
        ("draft", ("0.3", "0.1"), "draft"),
        ("", ("0.1",), "0.1"),
    ],
)
def test_the_origin_of_a_task_counts_if_its_version_is_supported(
    origin: str, allowed: tuple[str, ...], dialect: str
) -> None:
    assert select.by_origin(origin, allowed).name == dialect


def test_a_refusal_names_versions_and_not_our_words_for_them() -> None:
    with pytest.raises(select.DialectRefused) as caught:
        select.choose_for_rpc("", "message/send", TYPED, allowed=("0.3", "arbiter", "1.0"))
    assert "'0.2'" in caught.value.error.message
    assert caught.value.error.metadata == {"supported": "1.0, 0.3"}


@pytest.mark.parametrize(
    ("version", "method", "allowed", "unspoken", "supported"),
    [
        ("9.9", "SendMessage", ("1.0",), "9.9", "1.0"),
        ("9.9", "message/send", ("0.3", "arbiter"), "9.9", "0.3"),
        ("0.3", "SendMessage", ("1.0",), "0.3", "1.0"),
        ("0.3", "SendMessage", ("0.3", "arbiter"), "1.0", "0.3"),
        ("0.3", "tasks/send", ("0.3", "arbiter"), "0.1", "0.3"),
        ("0.3", "tasks/send", ("0.3", "arbiter", "0.1"), "0.3", "0.1"),
    ],
)
def test_a_version_error_lists_only_supported_versions(
    version: str, method: str, allowed: tuple[str, ...], unspoken: str, supported: str
) -> None:
    with pytest.raises(select.DialectRefused) as caught:
        select.choose_for_rpc(version, method, allowed=allowed)
    assert f"{unspoken!r} is not supported" in caught.value.error.message
    assert caught.value.error.metadata == {"supported": supported}


@pytest.mark.parametrize(
    ("version", "family", "allowed", "supported"),
    [("9.9", "1.0", ("1.0",), "1.0"), ("0.3", "1.0", ("0.3",), "0.3"), ("1.0", "0.3", ("0.3",), "0.3")],
)
def test_a_version_error_of_a_path_lists_only_supported_versions(
    version: str, family: str, allowed: tuple[str, ...], supported: str
) -> None:
    with pytest.raises(select.DialectRefused) as caught:
        select.choose_for_rest(version, family, allowed=allowed)
    assert caught.value.error.metadata == {"supported": supported}


def test_a_mount_speaks_one_dialect() -> None:
    for version in ("", "1", "1.0"):
        assert select.choose_for_rpc(version, "message/send", mount="arbiter").dialect.name == "arbiter"
    assert refusal("0.3", "message/send", mount="arbiter") == ("arbiter", -32007, VersionNotSupported)
    assert refusal("", "SendMessage", mount="arbiter") == ("arbiter", -32601, MethodNotFound)
    assert select.choose_for_rpc("", "tasks/get", mount="draft").certain
    assert select.choose_for_rpc("0.1", "tasks/send", mount="draft").dialect.name == "draft"


def test_a_body_that_cannot_be_parsed_is_answered_by_the_header() -> None:
    assert select.before_body("1.0").name == "1.0"
    assert select.before_body("").name == "0.3"
    assert select.before_body("", mount="arbiter").name == "arbiter"
    assert select.before_body("0.1").name == "0.1"
    assert select.before_body("", allowed=("0.1",)).name == "0.1"
    assert select.before_body("", allowed=("1.0", "0.1")).name == "0.3"


# --- the client's side


def candidates(document: Any, **kw: Any) -> list[tuple[str, str]]:
    return [(interface.url, dialect.name) for interface, dialect in select.for_card(document, **kw)]


def test_interfaces_say_their_version_and_their_order_is_the_preference() -> None:
    document = {
        "name": "x",
        "supportedInterfaces": [
            {"url": "https://g", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
            {"url": "https://a", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
            {"url": "https://b", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        ],
    }
    assert candidates(document) == [("https://g", "1.0"), ("https://a", "0.3"), ("https://b", "1.0")]


@pytest.mark.parametrize(
    ("members", "found_at", "dialects"),
    [
        ({"protocolVersion": "0.3.0"}, "", ["0.3"]),
        ({"protocolVersion": "0.2.5"}, "", ["0.2"]),
        ({"protocolVersion": "1.0", "preferredTransport": "JSONRPC"}, "", ["arbiter"]),
        ({"securitySchemes": {}}, "", ["0.2", "0.1"]),
        ({"authentication": {"schemes": ["Bearer"]}}, "", ["0.2", "0.1"]),
        ({}, "https://x/.well-known/agent.json", ["0.2", "0.1"]),
        ({}, "https://x/.well-known/agent-card.json", ["0.3"]),
    ],
)
def test_a_card_without_interfaces_is_placed_by_its_members(
    members: Any, found_at: str, dialects: list[str]
) -> None:
    document = {"name": "x", "url": "https://a", **members}
    assert candidates(document, found_at=found_at) == [("https://a", name) for name in dialects]


def test_the_example_cards_are_tried_in_their_own_version() -> None:
    for dialect, document in CARDS:
        tried = [name for _, name in candidates(document)]
        assert {"draft": "0.1"}.get(dialect, dialect) in tried


def test_a_typed_message_may_hold_anything() -> None:
    odd = msgspec.json.encode({"message": {"parts": "no list"}, "metadata": {"type": 1}})
    assert select.choose_for_rpc("", "message/send", odd).dialect.name == "0.3"


@pytest.mark.parametrize("label", ["0.2.6", "0.2.5", "0.3.0"])
def test_a_card_of_0_2_or_0_3_with_grpc_has_its_protobuf(label: str) -> None:
    card = {
        "name": "Old",
        "protocolVersion": label,
        "url": "http://a.example/",
        "additionalInterfaces": [{"url": "a.example:50051", "transport": "GRPC"}],
    }
    found = [(each.protocol_binding, dialect.name) for each, dialect in select.for_card(card)]
    assert found == [("JSONRPC", label[:3]), ("GRPC", "0.3-proto")]


@pytest.mark.parametrize("more", [{}, {"protocolVersion": "1.0"}, {"authentication": {"schemes": []}}])
def test_a_card_of_a_version_without_grpc_is_used_without_it(more: dict[str, Any]) -> None:
    card = {
        "name": "Old",
        "url": "http://a.example/",
        "preferredTransport": "GRPC",
        "additionalInterfaces": [{"url": "http://a.example/rpc", "transport": "JSONRPC"}],
        **more,
    }
    found = select.for_card(card, found_at="http://a.example/.well-known/agent.json")
    assert {dialect.name for each, dialect in found if each.protocol_binding == "GRPC"} <= {"0.3-proto"}
    assert [each for each, _ in found if each.protocol_binding == "JSONRPC"]
