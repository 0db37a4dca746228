"""The HTTP+JSON binding of an agent as an OpenAPI 3.1 document.

Paths and parameters come from the table in `dialects/paths.py`. The schemas of 1.0 are the model's own, under the protocol's
names, with the rules that types do not express: a part has exactly one content, a message at least one part. Those of 0.3
are written out, with the version after their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.dialects import cards
from dragoman.dialects.paths import PATHS, QUERY, Path
from dragoman.model import ops
from dragoman.model.card import AgentCard
from dragoman.model.content import Message, Role
from dragoman.model.ops import Op
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState

JSON, A2A_JSON, EVENTS = "application/json", "application/a2a+json", "text/event-stream"

_WORDS: dict[Op, tuple[str, str]] = {
    ops.SEND: (
        "Send a message",
        "Answers when the task is over: finished, or asking for something. With `returnImmediately` it answers at once.",
    ),
    ops.STREAM: (
        "Send a message and follow the answer",
        "The task as it is, then each change to it as it happens. The id of an event continues the stream after it.",
    ),
    ops.GET: ("Get a task", "A task of another caller is as unknown as one that never was."),
    ops.LIST: ("List tasks", "Latest change first, a page at a time."),
    ops.CANCEL: ("Cancel a task", "Answers when it is canceled. A task that is finished cannot be canceled."),
    ops.SUBSCRIBE: (
        "Follow a task",
        "The task as it is, then what happens to it. With `Last-Event-ID`, only what came after that event.",
    ),
    ops.PUSH_CREATE: ("Have news of a task sent to a URL", ""),
    ops.PUSH_GET: ("Get where news of a task is sent", ""),
    ops.PUSH_LIST: ("List where news of a task is sent", ""),
    ops.PUSH_DELETE: ("Stop sending news of a task to a URL", ""),
    ops.EXTENDED_CARD: ("Get the card for authenticated callers", ""),
}
_OF_QUERY = {
    "configId": "The id that the new one gets, if the body does not say it.",
    "contextId": "Only tasks of this conversation.",
    "historyLength": "How many messages of the history at most; 0 for none.",
    "includeArtifacts": "With what the tasks produced.",
    "pageSize": "How many at most.",
    "pageToken": "`nextPageToken` of the page before.",
    "status": "Only tasks in this state.",
    "statusTimestampAfter": "Only tasks that changed at this moment or later.",
}
_TYPES = {str: "string", int: "integer", bool: "boolean"}

_RESULTS = {
    ops.SEND: "SendMessageResponse",
    ops.STREAM: "StreamResponse",
    ops.GET: "Task",
    ops.LIST: "ListTasksResponse",
    ops.CANCEL: "Task",
    ops.SUBSCRIBE: "StreamResponse",
    ops.PUSH_CREATE: "TaskPushNotificationConfig",
    ops.PUSH_GET: "TaskPushNotificationConfig",
    ops.PUSH_LIST: "ListTaskPushNotificationConfigsResponse",
    ops.PUSH_DELETE: "Nothing",
    ops.EXTENDED_CARD: "AgentCard",
}
_BODIES = {
    ops.SEND: "SendMessageRequest",
    ops.STREAM: "SendMessageRequest",
    ops.PUSH_CREATE: "TaskPushNotificationConfig",
    ops.CANCEL: "CancelTaskRequest",
}


def document(card: AgentCard, url: str, versions: Iterable[str], methods: Iterable[str] = ()) -> Document:
    """The document for an agent that is seen at `url` and speaks `versions`. `methods` are those of its extensions."""
    paths: Document = {}
    for version in versions:
        for path in PATHS.get(version, ()):
            place = paths.setdefault(_address(path), {"parameters": _in_path(path)})
            for verb in path.verbs:
                place[verb.lower()] = _operation(path, verb)
    for method in methods:
        paths[f"/extensions/{method}"] = {"parameters": [], "post": _method(method)}
    tenant = {
        "tenant": {"default": "tenant", "description": "A routing label, for agents that have tenants."}
    }
    out: Document = {
        "openapi": "3.1.0",
        "info": {
            "title": card.name,
            "description": card.description,
            "version": card.version or "1.0.0",
        },
        "servers": [{"url": url}, {"url": f"{url}/{{tenant}}", "variables": tenant}],
        "paths": paths,
        "components": {"schemas": schemas(), "parameters": _headers(), "responses": _errors()},
    }
    if card.security_schemes:
        schemes = cards.write_legacy_schemes(card.security_schemes)
        for scheme in schemes.values():
            scheme.pop("oauth2MetadataUrl", None)
        out["components"]["securitySchemes"] = schemes
        out["security"] = cards.write_legacy_requirements(card.security_requirements)
    return out


def _address(path: Path) -> str:
    """The template as OpenAPI has it: an id for each star of a resource's name."""

    def spread(found: re.Match[str]) -> str:
        form = found[2]
        if form is None:
            return found[0]
        names = ["{taskId}", "{id}"] if form.count("*") == 2 or found[1] == "parent" else ["{id}"]
        for name in names[: form.count("*")]:
            form = form.replace("*", name, 1)
        return form

    return re.sub(r"\{(\w+)(?:=([^}]*))?\}", spread, path.template)


def _in_path(path: Path) -> list[Document]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"\{(\w+)\}", _address(path))
    ]


def _operation(path: Path, verb: str) -> Document:
    op, newest = path.op, path.version == "1.0"
    summary, description = _WORDS[op]
    name = op.name if newest else f"{op.name}_{path.version}"
    out: Document = {
        "operationId": name if verb == path.verbs[0] else f"{name}_{verb}",
        "summary": summary,
        "tags": [f"A2A {path.version}"],
        "parameters": [*_refs(op, newest), *map(_in_query, path.query)],
        "responses": {
            "200": {"description": "Done.", "content": _content(path)},
            "default": {"$ref": f"#/components/responses/{'Error' if newest else 'Error_0.3'}"},
        },
    }
    if description:
        out["description"] = description
    if not newest:
        out["deprecated"] = True
    if verb == "POST":
        out["requestBody"] = {
            "required": op in (ops.SEND, ops.STREAM, ops.PUSH_CREATE),
            "content": _as_json(ref(_BODIES.get(op, "Nothing"), path.version), path.version),
        }
    return out


def _method(name: str) -> Document:
    """A method that an extension adds."""
    anything: Document = {JSON: {"schema": {}}}
    return {
        "operationId": re.sub(r"\W", "_", name),
        "summary": f"Call {name}.",
        "tags": ["Extensions"],
        "parameters": [],
        "requestBody": {"required": False, "content": {JSON: {"schema": {"type": "object"}}}},
        "responses": {
            "200": {"description": "Done.", "content": anything},
            "default": {"$ref": "#/components/responses/Error"},
        },
    }


def _content(path: Path) -> Document:
    result = ref(_RESULTS[path.op], path.version)
    if path.op.streams:
        data = {"type": "string", "contentMediaType": JSON, "contentSchema": result}
        event = {
            "type": "object",
            "properties": {"id": {"type": "string"}, "data": data},
            "required": ["data"],
        }
        return {EVENTS: {"schema": {**event, "description": "One event; there is one for all that happens."}}}
    return _as_json(result, path.version)


def _as_json(schema: Document, version: str) -> Document:
    return {kind: {"schema": schema} for kind in ((JSON, A2A_JSON) if version == "1.0" else (JSON,))}


def _refs(op: Op, newest: bool) -> list[Document]:
    names = ["Version", "Extensions"] if newest else ["OldExtensions"]
    if op in (ops.SEND, ops.STREAM):
        names.append("IdempotencyKey")
    if op.streams:
        names.append("LastEventId")
    return [{"$ref": f"#/components/parameters/{name}"} for name in names]


def _headers() -> Document:
    def header(name: str, description: str, **schema: Any) -> Document:
        return {
            "name": name,
            "in": "header",
            "description": description,
            "schema": {"type": "string", **schema},
        }

    return {
        "Version": header("A2A-Version", "The version of the protocol.", enum=["1.0"]),
        "Extensions": header("A2A-Extensions", "URIs of extensions to use, separated by commas."),
        "OldExtensions": header("X-A2A-Extensions", "URIs of extensions to use, separated by commas."),
        "IdempotencyKey": header(
            "Idempotency-Key", "A send that is repeated with the same key is done once.", maxLength=256
        ),
        "LastEventId": header("Last-Event-ID", "The id of the last event that was read."),
    }


def _in_query(name: str) -> Document:
    schema: Document = {"type": _TYPES[QUERY[name]]}
    if name == "status":
        schema = ref("TaskState")
    elif name == "statusTimestampAfter":
        schema["format"] = "date-time"
    elif name == "historyLength":
        schema["minimum"] = 0
    elif name == "pageSize":
        schema |= {"minimum": 1, "maximum": 100}
    return {"name": name, "in": "query", "description": _OF_QUERY[name], "schema": schema}


def _errors() -> Document:
    about = {"Error": "What went wrong: `details` has the reason.", "Error_0.3": "What went wrong."}
    return {
        name: {"description": words, "content": _as_json(ref("Error", version), version)}
        for (name, words), version in zip(about.items(), PATHS, strict=True)
    }


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
    members = {**named, "messageId": _TEXT, "extensions": _list(_TEXT)}
    login = _object(schemes=_list(_TEXT), credentials=_TEXT)
    config = _object("url", id=_TEXT, url=_TEXT, token=_TEXT, authentication=login)
    stored = _object("pushNotificationConfig", name=_TEXT, pushNotificationConfig=config)
    return {
        "Part": {**part, "oneOf": [{"required": [member]} for member in ("text", "file", "data")]},
        "Message": _object(
            "messageId role content",
            role={"enum": [role.value for role in Role]},
            content=_list(old("Part")),
            **members,
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
