"""Make a peer's JSON document regular before it is read.

Peers write `context_id` for `contextId`, `null` for an absent member, 3 for `TASK_STATE_COMPLETED`, `"10"` for 10,
base64 without padding and moments without a zone. One pass over the decoded document puts all of that right, in every
version. What belongs to the user (`metadata`, `data`, `params` ...) is never touched.

Anything it cannot put right is left as it is: whoever reads the document then says what is wrong with it, and where.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from typing import Any

from dragoman.model.content import Role
from dragoman.model.ids import read_timestamp
from dragoman.model.task import TaskState

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
_LOOKS_SNAKE = re.compile(rf'_(?:{"|".join(_ENDINGS)})"\s*:'.encode())

_OPAQUE = frozenset({"metadata", "data", "params", "header", "scopes"})
"""The user's own documents."""
_KEYED_BY_USER = frozenset({"securitySchemes", "schemes", "security"})
"""Maps from names somebody chose to objects of ours."""


def looks_snake(raw: bytes) -> bool:
    """Whether a member of ours may be spelled `like_this` somewhere. Cheap; errs on the side of yes."""
    return _LOOKS_SNAKE.search(raw) is not None


def larger_than(most: int, value: Any) -> bool:
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


def tidy(value: Any) -> Any:
    """The document with every known member in its proper spelling."""
    if type(value) is list:
        return [tidy(item) if type(item) in _NESTED else item for item in value]
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
            out[name] = _tidy_map(item)
        elif (mend := _MEND.get(name)) is not None and type(item) is not dict:
            out[name] = mend(item)
        else:
            out[name] = tidy(item)
    return out


def _tidy_map(value: Any) -> Any:
    if type(value) is list:
        return [_tidy_map(item) for item in value]
    if type(value) is dict:
        return {name: tidy(item) for name, item in value.items() if item is not None}
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
