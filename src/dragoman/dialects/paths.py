"""HTTP+JSON: where each operation lives, and what of a request goes into the address.

A template is a path with members of the request in it: `/tasks/{id}:cancel`. 0.3 puts whole resource names there,
`{name=tasks/*}`, in which each star is an id. What a template does not take goes into the query of a GET or a DELETE,
and into the body of a POST. Server, client and the OpenAPI document read the same table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from msgspec import Struct

from dragoman.model import ops
from dragoman.model.ops import Op

QUERY: dict[str, type] = {
    "configId": str,
    "contextId": str,
    "historyLength": int,
    "includeArtifacts": bool,
    "pageSize": int,
    "pageToken": str,
    "status": str,
    "statusTimestampAfter": str,
    "tenant": str,
}
"""Every member that can be in a query, and its type."""

_VARIABLE = re.compile(r"\{(\w+)(?:=([^}]*))?\}")


class Path(Struct, frozen=True, kw_only=True):
    op: Op
    template: str
    verbs: tuple[str, ...] = ("GET",)
    """A client tries the first one first."""
    query: tuple[str, ...] = ()
    version: str = "1.0"
    repeated: tuple[str, ...] = ()
    """Members in the template that a client writes into the body as well, because servers look for them there."""

    @property
    def variables(self) -> dict[str, str]:
        """The members in the template, and the form each has: `*`, or `tasks/*`."""
        return {name: form or "*" for name, form in _VARIABLE.findall(self.template)}

    def pattern(self) -> re.Pattern[str]:
        """Matches paths in which the ids are still percent-encoded."""
        pieces = _VARIABLE.split(self.template)
        out = re.escape(pieces[0])
        for name, form, rest in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            inner = re.escape(form or "*").replace(r"\*", "[^/]+")
            out += f"(?P<{name}>{inner})" + re.escape(rest)
        return re.compile(out)

    def fill_template(self, members: Mapping[str, Any]) -> str:
        """The path for a request with these members. Raises ValueError if one does not fit."""
        path = self.template
        for name, form in self.variables.items():
            value = str(members.get(name, ""))
            ids = re.fullmatch(re.escape(form).replace(r"\*", "(.+)"), value)
            if ids is None:
                raise ValueError(f"{name} is {value!r}, which is not {form}")
            filled = form
            for id in ids.groups():
                filled = filled.replace("*", quote(id, safe=""), 1)
            path = re.sub(r"\{" + name + r"(=[^}]*)?\}", lambda _, filled=filled: filled, path)  # type: ignore[misc]
        return path


_LIST = (
    "contextId",
    "status",
    "pageSize",
    "pageToken",
    "historyLength",
    "statusTimestampAfter",
    "includeArtifacts",
)
_PUSH = "/tasks/{taskId}/pushNotificationConfigs"

V1_0 = (
    Path(op=ops.SEND, template="/message:send", verbs=("POST",)),
    Path(op=ops.STREAM, template="/message:stream", verbs=("POST",)),
    Path(op=ops.LIST, template="/tasks", query=_LIST),
    Path(op=ops.CANCEL, template="/tasks/{id}:cancel", verbs=("POST",)),
    Path(op=ops.SUBSCRIBE, template="/tasks/{id}:subscribe", verbs=("POST", "GET")),
    Path(op=ops.GET, template="/tasks/{id}", query=("historyLength",)),
    Path(op=ops.PUSH_CREATE, template=_PUSH, verbs=("POST",)),
    Path(op=ops.PUSH_LIST, template=_PUSH, query=("pageSize", "pageToken")),
    Path(op=ops.PUSH_GET, template=_PUSH + "/{id}"),
    Path(op=ops.PUSH_DELETE, template=_PUSH + "/{id}", verbs=("DELETE",)),
    Path(op=ops.EXTENDED_CARD, template="/extendedAgentCard"),
)
"""An action comes before the plain task: an id may end in anything."""


def _v0_3(op: Op, template: str, verbs: tuple[str, ...] = ("GET",), query: tuple[str, ...] = ()) -> Path:
    return Path(op=op, template="/v1" + template, verbs=verbs, query=query, version="0.3")


_CONFIG = "/{name=tasks/*/pushNotificationConfigs/*}"

V0_3 = (
    _v0_3(ops.SEND, "/message:send", ("POST",)),
    _v0_3(ops.STREAM, "/message:stream", ("POST",)),
    _v0_3(ops.CANCEL, "/{name=tasks/*}:cancel", ("POST",)),
    _v0_3(ops.SUBSCRIBE, "/{name=tasks/*}:subscribe", ("GET", "POST")),
    _v0_3(ops.GET, "/{name=tasks/*}", query=("historyLength",)),
    Path(
        op=ops.PUSH_CREATE,
        template="/v1/{parent=tasks/*}/pushNotificationConfigs",
        verbs=("POST",),
        query=("configId",),
        version="0.3",
        repeated=("parent",),  # a2a-sdk 0.3
    ),
    _v0_3(ops.PUSH_LIST, "/{parent=tasks/*}/pushNotificationConfigs", query=("pageSize", "pageToken")),
    _v0_3(ops.PUSH_GET, _CONFIG),
    _v0_3(ops.PUSH_DELETE, _CONFIG, ("DELETE",)),
    _v0_3(ops.EXTENDED_CARD, "/card"),
)

PATHS: dict[str, Sequence[Path]] = {"1.0": V1_0, "0.3": V0_3}


class FoundPath(NamedTuple):
    """The operations of a path, by verb, and the members in the path."""

    paths: Mapping[str, Path]
    values: Mapping[str, str]
    tenant: str = ""


class _Place(NamedTuple):
    pattern: re.Pattern[str]
    verbs: dict[str, Path]


def _places(paths: Iterable[Path]) -> dict[str, _Place]:
    places: dict[str, _Place] = {}
    for path in paths:
        place = places.setdefault(path.template, _Place(path.pattern(), {}))
        place.verbs.update(dict.fromkeys(path.verbs, path))
    return places


_PLACES = {version: _places(paths) for version, paths in PATHS.items()}
_OLDER = "/v1/"


def find(path: str) -> FoundPath | None:
    """What a path means. Its version is that of the paths found; 1.0 may have a tenant before everything else."""
    if path.startswith(_OLDER):
        return _find(path, "0.3")
    found = _find(path, "1.0")
    if found is None and (second := path.find("/", 1)) > 0:
        found = _find(path[second:], "1.0")
        if found is not None:
            return found._replace(tenant=unquote(path[1:second]))
    return found


def _find(path: str, version: str) -> FoundPath | None:
    places = _PLACES[version]
    if (place := places.get(path)) is not None and not place.pattern.groups:
        return FoundPath(place.verbs, {})
    for place in places.values():
        if place.pattern.groups and (matched := place.pattern.fullmatch(path)) is not None:
            return FoundPath(
                place.verbs, {name: unquote(value) for name, value in matched.groupdict().items()}
            )
    return None


_BY_OP = {(version, path.op): path for version, paths in PATHS.items() for path in paths}


def path_of(version: str, op: Op) -> Path | None:
    """Where an operation lives; None if the version does not have it."""
    return _BY_OP.get((version, op))
