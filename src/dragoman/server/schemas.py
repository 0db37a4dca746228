"""The JSON Schemas of what A2A says over HTTP+JSON, for the OpenAPI document.

Those of 1.0 are the model's own, under the protocol's names; added is what a caller must know beyond types: a part has
exactly one content, a message at least one part. Those of 0.3 are written out, under the same names with the version
behind.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.model import ops
from dragoman.model.card import AgentCard
from dragoman.model.content import Message, Role
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState

Document = dict[str, Any]

_NAMES = {
    "ApiKeyScheme": "APIKeySecurityScheme",
    "Capabilities": "AgentCapabilities",
    "Configuration": "SendMessageConfiguration",
    "Extension": "AgentExtension",
    "HttpAuthScheme": "HTTPAuthSecurityScheme",
    "Interface": "AgentInterface",
    "MutualTlsScheme": "MutualTlsSecurityScheme",
    "OAuth2Scheme": "OAuth2SecurityScheme",
    "OpenIdConnectScheme": "OpenIdConnectSecurityScheme",
    "Provider": "AgentProvider",
    "PushConfig": "TaskPushNotificationConfig",
    "PushConfigPage": "ListTaskPushNotificationConfigsResponse",
    "SendMessage": "SendMessageRequest",
    "Signature": "AgentCardSignature",
    "Skill": "AgentSkill",
    "StatusUpdate": "TaskStatusUpdateEvent",
    "ArtifactUpdate": "TaskArtifactUpdateEvent",
    "TaskPage": "ListTasksResponse",
}
"""What the protocol calls our types, where we are shorter."""

_EVENTS = {
    "task": "Task",
    "message": "Message",
    "statusUpdate": "TaskStatusUpdateEvent",
    "artifactUpdate": "TaskArtifactUpdateEvent",
}
_ANSWERS = {"task": "Task", "message": "Message"}

_TEXT, _YES, _ANY_OBJECT = {"type": "string"}, {"type": "boolean"}, {"type": "object"}


def ref(name: str, version: str = "1.0") -> Document:
    return {"$ref": f"#/components/schemas/{name if version == '1.0' else f'{name}_{version}'}"}


def schemas() -> Document:
    """All of them, by name."""
    return {**_newest(), **{f"{name}_0.3": schema for name, schema in _v0_3().items()}}


def _object(required: str = "", **properties: Document) -> Document:
    out: Document = {"type": "object", "properties": properties}
    return {**out, "required": required.split()} if required else out


def _list(of: Document) -> Document:
    return {"type": "array", "items": of}


def _one_of(members: dict[str, str], version: str = "1.0") -> Document:
    properties = {member: ref(name, version) for member, name in members.items()}
    return {
        "type": "object",
        "properties": properties,
        "oneOf": [{"required": [member]} for member in members],
    }


def _newest() -> Document:
    types = [ops.SendMessage, Task, Message, StatusUpdate, ArtifactUpdate, ops.TaskPage, ops.PushConfig]
    _, components = msgspec.json.schema_components(
        [*types, ops.PushConfigPage, AgentCard], ref_template="#/components/schemas/{name}"
    )
    out = {_NAMES.get(name, name): _plain(schema) for name, schema in components.items()}
    for name, schema in out.items():
        schema["title"] = name
    for name in ("SendMessageRequest", "ListTasksResponse"):
        out[name].pop("description", None)
    out["Part"]["oneOf"] = [{"required": [member]} for member in ("text", "raw", "url", "data")]
    out["Message"]["properties"]["parts"]["minItems"] = 1
    out["Message"]["properties"]["messageId"]["minLength"] = 1
    out["SendMessageConfiguration"]["properties"]["historyLength"]["minimum"] = 0
    out["SendMessageResponse"] = _one_of(_ANSWERS)
    out["StreamResponse"] = _one_of(_EVENTS)
    out["CancelTaskRequest"] = _object(metadata=_ANY_OBJECT)
    out["Nothing"] = _object()
    detail = {**_object("@type"), "properties": {"@type": _TEXT, "reason": _TEXT, "domain": _TEXT}}
    error = _object(
        "code status message",
        code={"type": "integer", "description": "The HTTP status."},
        status={"type": "string", "description": "The gRPC status."},
        message=_TEXT,
        details=_list(detail),
    )
    out["Error"] = _object("error", error=error)
    return out


def _plain(schema: Any) -> Any:
    """A schema without what only Python's side of the model needs: null for absent, and defaults."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "anyOf" in schema:
        return _plain(schema["anyOf"][0])
    out: Document = {}
    for member, value in schema.items():
        if member == "$ref":
            name = value.rpartition("/")[2]
            out[member] = f"#/components/schemas/{_NAMES.get(name, name)}"
        elif member == "properties":
            out[member] = {name: _plain(each) for name, each in value.items()}
        elif member != "default" and value != []:
            out[member] = _plain(value)
    return out


def _v0_3() -> Document:
    """What 0.3 has, as the JSON of its protobuf definition."""

    def old(name: str) -> Document:
        return ref(name, "0.3")

    file = _object(fileWithUri=_TEXT, fileWithBytes=_TEXT, mimeType=_TEXT, name=_TEXT)
    part = _object(text=_TEXT, file=file, data=_object(data=_ANY_OBJECT), metadata=_ANY_OBJECT)
    states = [state.value.replace("CANCELED", "CANCELLED") for state in TaskState]
    named = {"taskId": _TEXT, "contextId": _TEXT, "metadata": _ANY_OBJECT}
    said = {**named, "messageId": _TEXT, "extensions": _list(_TEXT)}
    login = _object(schemes=_list(_TEXT), credentials=_TEXT)
    config = _object("url", id=_TEXT, url=_TEXT, token=_TEXT, authentication=login)
    stored = _object("pushNotificationConfig", name=_TEXT, pushNotificationConfig=config)
    return {
        "Part": {**part, "oneOf": [{"required": [member]} for member in ("text", "file", "data")]},
        "Message": _object(
            "messageId role content",
            role={"enum": [role.value for role in Role]},
            content=_list(old("Part")),
            **said,
        ),
        "Artifact": _object(
            "artifactId parts",
            artifactId=_TEXT,
            name=_TEXT,
            description=_TEXT,
            parts=_list(old("Part")),
            metadata=_ANY_OBJECT,
            extensions=_list(_TEXT),
        ),
        "TaskStatus": _object("state", state={"enum": states}, message=old("Message"), timestamp=_TEXT),
        "Task": _object(
            "id contextId status",
            id=_TEXT,
            contextId=_TEXT,
            status=old("TaskStatus"),
            artifacts=_list(old("Artifact")),
            history=_list(old("Message")),
            metadata=_ANY_OBJECT,
        ),
        "TaskStatusUpdateEvent": _object("taskId status", status=old("TaskStatus"), final=_YES, **named),
        "TaskArtifactUpdateEvent": _object(
            "taskId artifact", artifact=old("Artifact"), append=_YES, lastChunk=_YES, **named
        ),
        "SendMessageRequest": _object(
            "message",
            message=old("Message"),
            configuration=_object(
                acceptedOutputModes=_list(_TEXT),
                pushNotification=config,
                historyLength={"type": "integer", "minimum": 0},
                blocking=_YES,
            ),
            metadata=_ANY_OBJECT,
        ),
        "SendMessageResponse": _one_of(_ANSWERS, "0.3"),
        "StreamResponse": _one_of(_EVENTS, "0.3"),
        "CancelTaskRequest": _object(),
        "TaskPushNotificationConfig": {
            "oneOf": [stored, _object("config", configId=_TEXT, config=stored)],
        },
        "ListTaskPushNotificationConfigsResponse": _object(configs=_list(stored), nextPageToken=_TEXT),
        "AgentCard": {
            **_object("name url version"),
            "properties": {"name": _TEXT, "url": _TEXT, "version": _TEXT},
        },
        "Nothing": _object(),
        "Error": _object("code message", code={"type": "integer"}, message=_TEXT, data={}),
    }
