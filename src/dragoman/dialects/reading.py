"""Read a peer's JSON: make it regular, then take its members out, one kind of value at a time.

Peers write `context_id` for `contextId`, `null` for an absent member, 3 for `TASK_STATE_COMPLETED`, `"10"` for 10, base64
without padding and times without a zone. `normalize` corrects all of that in one pass over a decoded document, in every
version. The user's own documents (`metadata`, `data`, `params` ...) are never changed. What cannot be corrected stays, and
is refused when it is read.

The readers (`text`, `number`, `mapping` ...) take a normalized object, the name of a member and the object's path. They
return a value of the right type or raise `Malformed` with the path of the member.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.errors import InvalidParams
from dragoman.model.content import NOTHING, Role
from dragoman.model.ids import read_timestamp
from dragoman.model.ops import Request, refuse
from dragoman.model.task import TaskState

MAX_MEMBERS = 10_000
"""Members and items that a request in the versions before 1.0, or in a lenient spelling, has outside `metadata` and `data`:
these are read one by one, in Python.
"""


def check_as(request: Request, names: Mapping[str, str]) -> Request:
    """`request.check()` for a version with other names of some members: errors have its names."""
    try:
        return request.check()
    except InvalidParams as error:
        for path, why in error.fields:
            for ours, theirs in names.items():
                if path.startswith(ours):
                    refuse(theirs + path.removeprefix(ours), why)
        raise


class Malformed(Exception):
    """A member is not what it should be."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path
        self.why = why


def read_params(params: bytes) -> dict[str, Any]:
    """The parameters of a call as a normalized object. Raises `InvalidParams`."""
    try:
        document = normalize_request(msgspec.json.decode(params)) if params else {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidParams(f"params are not JSON: {error}") from None
    except RecursionError:
        raise InvalidParams("params are nested too deeply") from None
    if document is None:
        return {}
    if type(document) is not dict:
        refuse("params", "must be an object")
    return document


def normalize_request(document: Any) -> Any:
    """Raises `InvalidParams` if there is too much to read."""
    if has_more_than(MAX_MEMBERS, document):
        raise InvalidParams(f"the request has more than {MAX_MEMBERS} members and items")
    return normalize(document)


def under(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def text(document: dict[str, Any], name: str, path: str) -> str:
    """A string; empty when absent."""
    value = document.get(name, "")
    if type(value) is not str:
        raise Malformed(under(path, name), "must be a string")
    return value


def identifier(document: dict[str, Any], name: str, path: str) -> str:
    """A string, or a number that should have been one."""
    value = document.get(name, "")
    if type(value) is str:
        return value
    return str(value) if type(value) is int else text(document, name, path)


def needed(document: dict[str, Any], name: str, path: str) -> str:
    """An identifier that must be there."""
    value = identifier(document, name, path)
    if not value:
        raise Malformed(under(path, name), "is missing")
    return value


def task_id_of(document: dict[str, Any]) -> str:
    """The task a call is about: `id`, though some say `taskId`."""
    return identifier(document, "id", "") or identifier(document, "taskId", "") or needed(document, "id", "")


def flag(document: dict[str, Any], name: str, path: str) -> bool:
    value = document.get(name, False)
    if type(value) is not bool:
        raise Malformed(under(path, name), "must be true or false")
    return value


def number(document: dict[str, Any], name: str, path: str) -> int | None:
    value = document.get(name)
    if value is not None and type(value) is not int:
        raise Malformed(under(path, name), "must be a whole number")
    return value


def mapping(document: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    """An object; empty when absent."""
    value = document.get(name)
    if value is None:
        return NOTHING
    return an_object(value, under(path, name)) or NOTHING


def an_object(value: Any, path: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise Malformed(path or "it", "must be an object")
    return value


def needed_object(document: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    if name not in document:
        raise Malformed(under(path, name), "is missing")
    return an_object(document[name], under(path, name))


def sequence(document: dict[str, Any], name: str, path: str) -> list[Any]:
    """A list; empty when absent."""
    value = document.get(name)
    if value is None:
        return []
    if type(value) is not list:
        raise Malformed(under(path, name), "must be a list")
    return value


def strings(document: dict[str, Any], name: str, path: str) -> tuple[str, ...]:
    """A list of strings; one string stands for a list of it."""
    value = document.get(name)
    if type(value) is str:
        return (value,)
    values = sequence(document, name, path)
    if any(type(item) is not str for item in values):
        raise Malformed(under(path, name), "must be a list of strings")
    return tuple(values)


_NAMES = re.findall(
    r"\w+",
    """
    messageId taskId contextId sessionId referenceTaskIds mediaType mimeType artifactId lastChunk historyLength
    acceptedOutputModes pushNotification pushNotificationConfig pushNotificationConfigId taskPushNotificationConfig
    returnImmediately pageSize pageToken nextPageToken totalSize statusTimestampAfter includeArtifacts statusUpdate
    artifactUpdate fileWithUri fileWithBytes configId
    supportedInterfaces protocolBinding protocolVersion documentationUrl iconUrl pushNotifications extendedAgentCard
    stateTransitionHistory securitySchemes securityRequirements defaultInputModes defaultOutputModes inputModes
    outputModes preferredTransport additionalInterfaces supportsAuthenticatedExtendedCard bearerFormat
    apiKeySecurityScheme httpAuthSecurityScheme oauth2SecurityScheme openIdConnectSecurityScheme mtlsSecurityScheme
    oauth2MetadataUrl openIdConnectUrl authorizationUrl deviceAuthorizationUrl tokenUrl refreshUrl pkceRequired
    authorizationCode clientCredentials deviceCode
""",
)


def snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda capital: "_" + capital.group().lower(), name)


_CAMEL = {snake(name): name for name in _NAMES}

_ENDINGS = sorted({name.rpartition("_")[2] for name in _CAMEL})
SNAKE_MEMBER = re.compile(rf'_(?:{"|".join(_ENDINGS)})"\s*:'.encode())

_OPAQUE = frozenset({"metadata", "data", "params", "header", "scopes"})
"""The user's own documents."""
_KEYED_BY_USER = frozenset({"securitySchemes", "schemes", "security"})
"""Maps whose keys are chosen by users, and whose values are objects of A2A."""


def looks_snake(raw: bytes) -> bool:
    """Whether a member of ours may be spelled `like_this` somewhere. Cheap; errs on the side of yes."""
    return b"_" in raw and SNAKE_MEMBER.search(raw) is not None


def has_more_than(most: int, value: Any) -> bool:
    """Whether a document has more than so many members and items, outside the user's own documents."""
    inside = [value]
    while inside:
        value = inside.pop()
        if type(value) is dict:
            most -= len(value)
            if most < 0:
                return True
            for name, item in value.items():
                if type(item) in _NESTED and name not in _OPAQUE:
                    inside.append(item)
        elif type(value) is list:
            most -= len(value)
            if most < 0:
                return True
            inside += [item for item in value if type(item) in _NESTED]
    return False


_NESTED = (dict, list)


def normalize(value: Any) -> Any:
    """The document with every known member in its proper spelling."""
    if type(value) is list:
        return [normalize(item) if type(item) in _NESTED else item for item in value]
    if type(value) is not dict:
        return value
    out: dict[str, Any] = {}
    for name, item in value.items():
        if "_" in name:
            name, spelled = _CAMEL.get(name, name), name
            if name is not spelled and value.get(name) is not None:
                continue
        if name in _OPAQUE:
            if item is not None or name == "data":
                out[name] = item
        elif item is None:
            continue
        elif name in _KEYED_BY_USER:
            out[name] = _normalize_map(item)
        elif (mend := _MEND.get(name)) is not None and type(item) is not dict:
            out[name] = mend(item)
        else:
            out[name] = normalize(item) if type(item) in _NESTED else item
    return out


def _normalize_map(value: Any) -> Any:
    if type(value) is list:
        return [_normalize_map(item) for item in value]
    if type(value) is dict:
        return {name: normalize(item) for name, item in value.items() if item is not None}
    return value


def _number(value: Any) -> Any:
    if type(value) is str and value.removeprefix("-").isdecimal() and len(value) < 16:
        return int(value)
    if type(value) is float and value.is_integer():
        return int(value)
    return value


_ROLES = list(Role)
_STATES = list(TaskState)  # both in the order of their protobuf numbers


def _role(value: Any) -> Any:
    value = _number(value)
    return _ROLES[value].value if type(value) is int and 0 <= value < len(_ROLES) else value


def _state(value: Any) -> Any:
    value = _number(value)
    if type(value) is int and 0 <= value < len(_STATES):
        return _STATES[value].value
    return TaskState.CANCELED.value if value == "TASK_STATE_CANCELLED" else value


def _moment(value: Any) -> Any:
    try:
        return read_timestamp(value) if type(value) is str else value
    except ValueError:
        return value


def _base64(value: Any) -> Any:
    if type(value) is not str:
        return value
    value = value.translate(_URL_SAFE)
    return value + "=" * (-len(value) % 4)


_URL_SAFE = str.maketrans("-_", "+/", " \t\r\n=")

_MEND = {
    "historyLength": _number,
    "pageSize": _number,
    "totalSize": _number,
    "role": _role,
    "state": _state,
    "status": _state,
    "timestamp": _moment,
    "statusTimestampAfter": _moment,
    "raw": _base64,
}


def read_base64(text: str) -> bytes:
    """Base64 in any of its spellings: url-safe, unpadded, with line breaks. Raises ValueError."""
    try:
        return a2b_base64(text, strict_mode=True)
    except ValueError:
        return a2b_base64(_base64(text), strict_mode=True)
