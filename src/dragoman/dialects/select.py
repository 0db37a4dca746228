"""Choose the dialect of a call, or of an agent.

On a server (`choose_for_rpc`) the method decides first, because the versions' names barely overlap. The `A2A-Version` header
decides between those that share a name, and may veto; then the shape of the parameters; then the version in which the
task was created (the caller asks for that, see `certain`). On a client (`for_card`) the agent's card decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from dragoman.dialects.arbiter import Arbiter
from dragoman.dialects.cards import read_card, version_of
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v0_1 import V0_1, Draft
from dragoman.dialects.v0_3 import V0_2, V0_3, V0_2Type
from dragoman.dialects.v0_3_proto import V0_3Proto
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import A2AError, MethodNotFound, UnsupportedOperation, VersionNotSupported
from dragoman.model.card import JSONRPC, Interface
from dragoman.model.ops import CANCEL, GET, OPS, PUSH_CREATE, PUSH_GET, SUBSCRIBE, Op

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (V1_0(), V0_3(), V0_3Proto(), V0_2(), V0_2Type(), V0_1(), Draft(), Arbiter())
}

VERSIONS = ("1.0", "0.3", "0.2", "0.1")

_OPS: dict[str, dict[str, Op]] = {
    name: {dialect.method(op): op for op in OPS.values() if dialect.method(op)}
    for name, dialect in DIALECTS.items()
}
_SHARED = frozenset({GET, CANCEL, SUBSCRIBE})
"""Operations whose method has one name in all versions before 1.0, and a different answer in each."""
_OLD_PUSH = {"tasks/pushNotification/set": PUSH_CREATE, "tasks/pushNotification/get": PUSH_GET}
"""Names of 0.1 that some agents of 0.2 still use."""
MAX_VERSION_LENGTH = 10
_PUSHES = "tasks/pushNotificationConfig/"


class DialectRefused(Exception):
    """No dialect serves this call. `dialect` is the one to answer `error` in."""

    def __init__(self, dialect: Dialect, error: A2AError) -> None:
        super().__init__(str(error))
        self.dialect = dialect
        self.error = error


class ChosenDialect(NamedTuple):
    dialect: Dialect
    op: Op
    certain: bool = True
    """False if the call fits several versions. Then the task's origin decides; see `by_origin`."""


def choose_for_rpc(
    version: str,
    method: str,
    params: bytes = b"",
    *,
    mount: str = "",
    home: str = "",
    pushes: bool = False,
    allowed: Collection[str] | None = None,
) -> ChosenDialect:
    """The dialect and the operation of a JSON-RPC call. Raises `DialectRefused`.

    `version` is the `A2A-Version` header, empty when there is none. `mount` names the one dialect that an endpoint
    speaks; `home` the one that takes the calls which do not say what they are. `pushes`: the agent sends notifications,
    also to callers whose dialect has none: they configure them in that of 0.3, whose wire is theirs. `allowed` are the
    versions (or dialects) that the agent speaks; None means all.
    """
    label = version_of(version)
    if mount:
        return _check_allowed(_choose_mounted(mount, label, method), allowed)
    may_be_home = bool(home) and label in ("", "1.0")
    if may_be_home and pushes and method.startswith(_PUSHES):
        label = ""
    elif may_be_home and _speaks(home, method):
        chosen = _choose_mounted(home, label, method)
        certain = bool(label) or chosen.op not in _SHARED
        return _check_allowed(chosen._replace(certain=certain), allowed)
    return _check_allowed(_choose_neutral(label, method, params, allowed), allowed)


@lru_cache(256)
def choose_for_rpc_cached(
    version: str, method: str, mount: str, allowed: tuple[str, ...] | None
) -> ChosenDialect:
    """`choose_for_rpc` for a method that has a name of 1.0 (`OPS`), where neither the params nor `home` make a difference.

    The caller chooses the version, so give it only up to `MAX_VERSION_LENGTH`: else it would fill the cache's memory.
    """
    return choose_for_rpc(version, method, mount=mount, allowed=allowed)


def _check_allowed(chosen: ChosenDialect, allowed: Collection[str] | None) -> ChosenDialect:
    if allowed is not None and not speaks(chosen.dialect, allowed):
        raise DialectRefused(chosen.dialect, _unsupported(chosen.dialect.family, allowed))
    return chosen


def check_version_first(version: str, home: str, *, only: bool = False) -> None:
    """Check the version before the body is read, if the `home` dialect does so. Raises `DialectRefused`.

    `only`: the endpoint speaks no other dialect, and takes its version by the letter.
    """
    dialect = DIALECTS[home]
    if only and dialect.checks_version_first and version not in ("", dialect.version, dialect.version[:-2]):
        raise DialectRefused(dialect, _unsupported(version, (dialect.version,)))
    if dialect.checks_version_first and (label := version_of(version)) not in ("", *VERSIONS):
        raise DialectRefused(dialect, _unsupported(label, VERSIONS))


def choose_for_rest(version: str, family: str, *, allowed: Collection[str] | None = None) -> Dialect:
    """The dialect of an HTTP+JSON call; its path has the `family`, `1.0` or `0.3`. Raises `DialectRefused`."""
    label = version_of(version)
    dialect = of_paths(family)
    # 0.2.6 described the paths that 0.3 has.
    fitting = ("1.0",) if family == "1.0" else ("0.3", "0.2")
    if allowed is not None and not speaks(dialect, allowed):
        raise DialectRefused(dialect, _unsupported(family, allowed))
    if label and label not in fitting:
        supported = VERSIONS if label not in VERSIONS else fitting
        raise DialectRefused(dialect, _unsupported(label, supported, allowed))
    return dialect


def of_paths(version: str) -> Dialect:
    """The dialect of the HTTP+JSON paths, and of the gRPC service, of a version."""
    return DIALECTS["1.0" if version == "1.0" else "0.3-proto"]


def speaks(dialect: Dialect, allowed: Collection[str]) -> bool:
    return dialect.name in allowed or dialect.family in allowed


def before_body(version: str, *, mount: str = "", allowed: Collection[str] | None = None) -> Dialect:
    """The dialect in which to refuse a call whose body was not read: that of its header, or the only one of the agent."""
    if mount:
        return DIALECTS[mount]
    label = version_of(version)
    if label in DIALECTS:
        return DIALECTS[label]
    if not label and allowed is not None and len(offered := [v for v in VERSIONS if v in allowed]) == 1:
        return DIALECTS[offered[0]]
    return DIALECTS["1.0" if label.startswith("1.") else "0.3"]


def by_origin(origin: str, allowed: Collection[str] | None = None, *, home: str = "") -> Dialect:
    """The dialect for a call that only the task's origin can place; where that does not help, the newest before 1.0.

    If `home` is another dialect, only tasks of 0.1 and of the draft use their own, because they cannot be read otherwise.
    """
    dialect = DIALECTS.get(origin)
    if home and (dialect is None or dialect.family != "0.1"):
        return DIALECTS[home]
    if dialect is None or origin in ("1.0", "0.3-proto") or not (allowed is None or speaks(dialect, allowed)):
        return DIALECTS[default_version(allowed)]
    return dialect


def default_version(allowed: Collection[str] | None) -> str:
    """The version of a call from before 1.0 without a version: the newest that the agent speaks."""
    return next((v for v in VERSIONS[1:] if allowed is None or v in allowed), "0.3")


def _choose_mounted(mount: str, label: str, method: str) -> ChosenDialect:
    dialect = DIALECTS[mount]
    expected = version_of(dialect.version) or dialect.family
    if label and label != expected:
        raise DialectRefused(dialect, _unsupported(label, (expected,)))
    return _find(dialect, method)


def _choose_neutral(label: str, method: str, params: bytes, allowed: Collection[str] | None) -> ChosenDialect:
    newest, otherwise = DIALECTS["1.0"], default_version(allowed)
    if label and label not in VERSIONS:
        raise DialectRefused(newest, _unsupported(label, VERSIONS, allowed))
    if "/" not in method:
        if method not in OPS and not method[:1].isupper() and label != "1.0":
            raise DialectRefused(DIALECTS["0.3"], MethodNotFound(f"there is no method {method[:80]!r}"))
        # If the agent does not speak 1.0, the method is the error, not the header.
        if label not in ("1.0", "") and (allowed is None or "1.0" in allowed):
            raise DialectRefused(newest, _unsupported(label, ("1.0",), allowed))
        return _find(newest, method)
    if label == "1.0":  # only Arbiter's clients send 1.0 with these methods
        if allowed is None or "arbiter" in allowed:
            return _find(DIALECTS["arbiter"], method)
        if "1.0" not in allowed:
            raise DialectRefused(newest, _unsupported(label, allowed))
        return _find(newest, method)
    op = _OPS["0.3"].get(method)
    if op in _SHARED:
        assert op is not None
        return ChosenDialect(DIALECTS[label or otherwise], op, certain=bool(label))
    if op is None and method in _OPS["0.1"]:
        if method in _OLD_PUSH and (label == "0.2" or _TASK_ID.search(params)):
            return ChosenDialect(DIALECTS["0.2"], _OLD_PUSH[method])
        _veto(label, ("0.1",), allowed)
        return _find(DIALECTS["draft" if _FILE_DATA.search(params) else "0.1"], method)
    _veto(label, ("0.3", "0.2"), allowed)
    if _is_typed(params):
        return _find(DIALECTS["0.2-type"], method)
    return _find(DIALECTS[label or ("0.2" if otherwise == "0.2" else "0.3")], method)


def _speaks(name: str, method: str) -> bool:
    """True if a dialect has a method, or an error of its own for it."""
    return method in _OPS[name] or (DIALECTS[name].refuses_push and method.startswith(_PUSHES))


def _find(dialect: Dialect, method: str) -> ChosenDialect:
    op = _OPS[dialect.name].get(method)
    if op is not None:
        return ChosenDialect(dialect, op)
    if dialect.refuses_push and method in _OPS["0.3"] and "pushNotification" in method:
        raise DialectRefused(dialect, UnsupportedOperation("push notifications are not supported"))
    raise DialectRefused(dialect, MethodNotFound(f"there is no method {method[:80]!r}"))


def _veto(label: str, versions: Collection[str], allowed: Collection[str] | None) -> None:
    """Refuse a header that contradicts the method, if the agent speaks a version of the method."""
    if label and label not in versions and (allowed is None or any(v in allowed for v in versions)):
        raise DialectRefused(DIALECTS["0.3"], _unsupported(label, versions, allowed))


def _unsupported(
    label: str, versions: Collection[str], allowed: Collection[str] | None = None
) -> VersionNotSupported:
    """`versions` would do, as far as the agent speaks them."""
    supported = ", ".join(v for v in VERSIONS if v in versions and (allowed is None or v in allowed))
    return VersionNotSupported(
        f"A2A version {label[:40]!r} is not supported here; supported: {supported}",
        metadata={"supported": supported},
    )


_TASK_ID = re.compile(rb'"(?:taskId|task_id)"\s*:')
_FILE_DATA = re.compile(rb'"file"\s*:\s*\{[^{}]*"data"\s*:')
_TYPE = re.compile(rb'"type"\s*:')


def _is_typed(params: bytes) -> bool:
    """True if parts or the message have `type` instead of `kind`: the transitional form of 0.2."""
    if _TYPE.search(params) is None:
        return False
    try:
        message = msgspec.json.decode(params)["message"]
        if "kind" in message or "type" in message:
            return "kind" not in message
        parts = message["parts"]
        return any("type" in part for part in parts) and not any("kind" in part for part in parts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return False


def for_card(document: Any, *, found_at: str = "") -> list[tuple[Interface, Dialect]]:
    """An agent's interfaces, best first, from its card. Raises `InvalidAgentResponse`.

    A card that says no version gets two: try 0.2, and 0.1 when the agent does not know the method.
    """
    card, era = read_card(document, found_at=found_at)
    unsure = era in ("0.2", "0.1") and not document.get("protocolVersion")
    out: list[tuple[Interface, Dialect]] = []
    for interface in card.supported_interfaces:
        for name in _for_interface(interface, unsure=unsure):
            if name in DIALECTS:
                out.append((interface, DIALECTS[name]))
    return out


def _for_interface(interface: Interface, *, unsure: bool) -> tuple[str, ...]:
    version = version_of(interface.protocol_version)
    if version.startswith("1."):
        return ("1.0",)
    if interface.protocol_binding.upper() != JSONRPC:
        # 0.2 has the protobuf of 0.3 from 0.2.2 on; before, there was JSON-RPC only.
        return ("0.3-proto",) if version in ("0.3", "0.2") else ()
    return ("0.2", "0.1") if unsure else (version,)
