"""Messages, artifacts, tasks and push configs in the JSON of the versions before 1.0.

Reading accepts every form: `kind` or `type` or neither, bytes under `data`, a bare `text`. Writing is exact: a `JsonForm` says
which form.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.dialects.reading import (
    Malformed,
    an_object,
    flag,
    identifier,
    mapping,
    needed,
    needed_object,
    read_base64,
    sequence,
    strings,
    text,
    under,
)
from dragoman.model.content import NOTHING, Artifact, Message, Part, Role
from dragoman.model.ids import timestamp
from dragoman.model.ops import AuthenticationInfo, PushConfig
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

BOXED = "data_part_compat"
"""Part metadata: `data` is not an object, and sits inside one under `value`. The official Python SDK does the same."""
REFERENCE = "a2a.fileReference"
"""Part metadata: a file part that had neither bytes nor an address, only a name."""
MEDIA_TYPE, FILENAME = "a2a.mediaType", "a2a.filename"
"""Part metadata: what 1.0 says of any part, and older versions only of files."""
EXTENSIONS, REFERENCE_TASK_IDS = "a2a.extensions", "a2a.referenceTaskIds"
"""Metadata of messages and artifacts: members of 1.0 that some older versions do not have."""


class JsonForm(Struct, frozen=True, kw_only=True):
    """How a version before 1.0 writes content."""

    tag: str = "kind"
    """The member with the type of an object; empty for none."""
    content: str = "parts"
    """Where a message has its parts."""
    named: bool = True
    """Messages and artifacts have ids."""
    related: bool = True
    """Messages name other tasks."""
    arrays: bool = False
    """Data may be an array; otherwise only an object."""
    references: bool = False
    """A file part may do without content."""
    plain_files: bool = False
    """The bytes of a `text/plain` file are the text itself, not base64 of it. Bytes that are not text are `application/octet-stream`,
    with the media type in the metadata."""

    def read_part(self, document: dict[str, Any], path: str) -> Part:
        return _read_part(document, path, self)

    def write_part(self, part: Part) -> dict[str, Any]:
        return _write_part(part, self)

    def role(self, role: Role) -> str:
        return role.word

    def state(self, state: TaskState) -> str:
        return "unknown" if state is TaskState.UNSPECIFIED else state.word

    def take_lists(self, metadata: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
        """The metadata of a message, and its extensions and references if this version has them only there."""
        if self.named and self.related:
            return metadata, [(), ()]
        if self.named:
            metadata, (references,) = take_lists(metadata, REFERENCE_TASK_IDS)
            return metadata, [(), references]
        return take_lists(metadata, EXTENSIONS, REFERENCE_TASK_IDS)

    def type_member(self, kind: str) -> dict[str, Any]:
        """The first member of an object: some readers find its type there."""
        return {self.tag: kind} if self.tag else {}


# --- reading


def read_parts(
    document: dict[str, Any], path: str, form: JsonForm, *, member: str = "parts"
) -> tuple[Part, ...]:
    items = sequence(document, member, path)
    path = under(path, member)
    return tuple(
        [form.read_part(an_object(item, f"{path}[{n}]"), f"{path}[{n}]") for n, item in enumerate(items)]
    )


def _read_part(document: dict[str, Any], path: str, form: JsonForm) -> Part:
    kind = document.get("kind") or document.get("type")
    if kind is None:
        found = [word for word in ("text", "file", "data") if document.get(word) is not None]
        if not found and "data" in document:
            found = ["data"]  # null is data, too
        if len(found) > 1:
            raise Malformed(path, "must have exactly one of text, file and data")
        kind = found[0] if found else None
    metadata = mapping(document, "metadata", path)
    if kind == "text":
        if type(document.get("text")) is not str:
            raise Malformed(under(path, "text"), "must be a string")
        return take_labels(Part(text=document["text"], metadata=metadata))
    if kind == "file":
        return _read_file(needed_object(document, "file", path), metadata, under(path, "file"), form)
    if kind == "data":
        if "data" not in document:
            raise Malformed(under(path, "data"), "is missing")
        return unbox(document["data"], metadata)
    if kind is None:
        raise Malformed(path, "must have one of text, file and data")
    raise Malformed(under(path, "kind"), f"has the unknown value {str(kind)[:40]!r}")


def unbox(data: Any, metadata: dict[str, Any]) -> Part:
    if metadata.get(BOXED) is True and type(data) is dict and data.keys() == {"value"}:
        others = {name: each for name, each in metadata.items() if name != BOXED}
        return take_labels(Part(data=data["value"], metadata=others or NOTHING))
    return take_labels(Part(data=data, metadata=metadata))


def box(part: Part) -> Part:
    """The part with its data as an object; other data is wrapped in one."""
    if type(part.data) is dict:
        return part
    return replace(part, data={"value": part.data}, metadata={**part.metadata, BOXED: True})


def take_labels(part: Part) -> Part:
    """The part with its media type and filename, if `add_labels` put them into the metadata."""
    metadata = part.metadata
    if MEDIA_TYPE not in metadata and FILENAME not in metadata:
        return part
    rest = dict(metadata)
    media_type, filename = rest.pop(MEDIA_TYPE, part.media_type), rest.pop(FILENAME, part.filename)
    if type(media_type) is not str or type(filename) is not str:
        return part
    return replace(part, media_type=media_type, filename=filename, metadata=rest or NOTHING)


def add_labels(part: Part) -> dict[str, Any]:
    """The metadata of a text or data, with its media type and filename: older versions have no other place for them."""
    if not part.media_type and not part.filename:
        return part.metadata
    labels = {MEDIA_TYPE: part.media_type, FILENAME: part.filename}
    return {**part.metadata, **{name: label for name, label in labels.items() if label}}


def take_lists(metadata: dict[str, Any], *names: str) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
    """The metadata without these members, and the lists of text in them: the inverse of `add_lists`."""
    if not metadata or not any(name in metadata for name in names):
        return metadata, [()] * len(names)
    rest = dict(metadata)
    found: list[tuple[str, ...]] = []
    for name in names:
        items = metadata.get(name)
        good = type(items) is list and all(type(item) is str for item in items)
        found.append(tuple(rest.pop(name)) if good else ())
    return rest or NOTHING, found


def add_lists(metadata: dict[str, Any], *lists: tuple[str, tuple[str, ...]]) -> dict[str, Any]:
    """The metadata with lists of text for which a version has no member, under the names given."""
    more = {name: list(items) for name, items in lists if items}
    return {**metadata, **more} if more else metadata


_PLAIN = "text/plain"
_BYTES = ("bytes", "fileWithBytes", "data")
_URI = ("uri", "fileWithUri")
"""The members of a file's content, the most precise name first: examples have `data`, HTTP+JSON of 0.3 the others."""


def _read_file(file: dict[str, Any], metadata: dict[str, Any], path: str, form: JsonForm) -> Part:
    filename, media_type = text(file, "name", path), text(file, "mimeType", path)
    uri = next((name for name in _URI if name in file), "")
    member = next((name for name in _BYTES if name in file), "")
    if uri and member and member != "data":
        raise Malformed(path, "must not have both bytes and uri")
    if uri:
        url = text(file, uri, path)
        return Part(url=url, filename=filename, media_type=media_type, metadata=metadata)
    if file.get(member) is None:
        reference = {name: file[name] for name in ("name", "mimeType") if name in file}
        return Part(data={"file": reference}, metadata={**metadata, REFERENCE: True})
    content = text(file, member, path)
    if form.plain_files and media_type == _PLAIN:
        raw = content.encode()
    else:
        try:
            raw = read_base64(content)
        except ValueError:
            raise Malformed(under(path, member), "is not base64") from None
    part = Part(raw=raw, filename=filename, media_type=media_type, metadata=metadata)
    return take_labels(part) if form.plain_files else part


_ROLES: dict[Any, Role] = {**{role.word: role for role in Role}, **{role.value: role for role in Role}}


def read_message(document: Any, path: str, form: JsonForm, *, default: Role = Role.UNSPECIFIED) -> Message:
    """A message. One that has no id (0.1 knows none) gets one that its content gives, always the same."""
    document = an_object(document, path)
    stated = document.get("role")
    role = default if stated is None else _ROLES.get(stated) if type(stated) is str else None
    if role is None:
        raise Malformed(under(path, "role"), "must be user or agent")
    member = form.content if form.content in document else "parts"
    metadata, (extensions, references) = form.take_lists(mapping(document, "metadata", path))
    return Message(
        message_id=identifier(document, "messageId", path),
        role=role,
        parts=read_parts(document, path, form, member=member),
        context_id=identifier(document, "contextId", path),
        task_id=identifier(document, "taskId", path),
        metadata=metadata,
        extensions=strings(document, "extensions", path) or extensions,
        reference_task_ids=strings(document, "referenceTaskIds", path) or references,
    )


def with_id(message: Message) -> Message:
    """The message, with an id made from its content if it has none."""
    if message.message_id:
        return message
    digest = blake2b(msgspec.json.encode((message.role, message.parts)), digest_size=12).hexdigest()
    return replace(message, message_id=f"message-{digest}")


def read_artifact(document: Any, path: str, form: JsonForm, *, position: int = 0) -> Artifact:
    document = an_object(document, path)
    index = document.get("index")
    place = index if type(index) is int else position
    metadata = mapping(document, "metadata", path)
    extensions: tuple[str, ...] = ()
    if not form.named:
        metadata, (extensions,) = take_lists(metadata, EXTENSIONS)
    return Artifact(
        artifact_id=identifier(document, "artifactId", path)
        or f"artifact-{place}",  # 0.1 has places, not ids
        parts=read_parts(document, path, form),
        name=text(document, "name", path),
        description=text(document, "description", path),
        metadata=metadata,
        extensions=strings(document, "extensions", path) or extensions,
    )


# --- writing


def without_empty(**members: Any) -> dict[str, Any]:
    """The members that are not empty."""
    return {name: value for name, value in members.items() if value}


def _write_part(part: Part, form: JsonForm) -> dict[str, Any]:
    metadata = part.metadata
    out: dict[str, Any]
    if part.text is not None:
        out, metadata = {form.tag: "text", "text": part.text}, add_labels(part)
    elif part.raw is not None or part.url is not None:
        if form.plain_files and part.media_type == _PLAIN and not _is_text(part.raw):
            metadata = {**metadata, MEDIA_TYPE: _PLAIN}
            part = replace(part, media_type="application/octet-stream")
        out = {form.tag: "file", "file": _write_file(part, form)}
    elif (
        form.references
        and metadata.get(REFERENCE) is True
        and type(part.data) is dict
        and "file" in part.data
    ):
        out = {form.tag: "file", "file": part.data["file"]}
        metadata = {name: value for name, value in metadata.items() if name != REFERENCE}
    else:
        boxed = part if form.arrays and type(part.data) is list else box(part)
        out, metadata = {form.tag: "data", "data": boxed.data}, add_labels(boxed)
    if metadata:
        out["metadata"] = metadata
    return out


def _is_text(raw: bytes | None) -> bool:
    try:
        return raw is None or raw.decode() is not None
    except UnicodeDecodeError:
        return False


def _write_file(part: Part, form: JsonForm) -> dict[str, Any]:
    out = without_empty(name=part.filename, mimeType=part.media_type)
    if part.raw is None:
        out["uri"] = part.url
    elif form.plain_files and part.media_type == _PLAIN:
        out["bytes"] = part.raw.decode()
    else:
        out["bytes"] = part.raw
    return out


def write_message(message: Message, form: JsonForm) -> dict[str, Any]:
    out: dict[str, Any] = form.type_member("message") if form.named else {}
    out["role"] = form.role(message.role)
    out[form.content] = [form.write_part(part) for part in message.parts]
    if form.named:
        out["messageId"] = message.message_id
        out |= without_empty(
            contextId=message.context_id,
            taskId=message.task_id,
            extensions=message.extensions,
            referenceTaskIds=form.related and message.reference_task_ids,
        )
    metadata = message.metadata
    if not form.named:
        metadata = add_lists(metadata, (EXTENSIONS, message.extensions))
    if not form.named or not form.related:
        metadata = add_lists(metadata, (REFERENCE_TASK_IDS, message.reference_task_ids))
    return {**out, **without_empty(metadata=metadata)}


def write_artifact(artifact: Artifact, form: JsonForm) -> dict[str, Any]:
    out: dict[str, Any] = {"artifactId": artifact.artifact_id} if form.named else {}
    if artifact.name or artifact.description:
        out |= without_empty(name=artifact.name, description=artifact.description)
    out["parts"] = [form.write_part(part) for part in artifact.parts]
    metadata = artifact.metadata
    if form.named and artifact.extensions:
        out["extensions"] = artifact.extensions
    elif not form.named:
        metadata = add_lists(metadata, (EXTENSIONS, artifact.extensions))
    if metadata:
        out["metadata"] = metadata
    return out


_STATES: dict[str, TaskState] = {
    **{state.word: state for state in TaskState},
    **{state.value: state for state in TaskState},
    "cancelled": TaskState.CANCELED,
    "TASK_STATE_CANCELLED": TaskState.CANCELED,
    "unknown": TaskState.UNSPECIFIED,
}


# --- reading


def read_status(document: dict[str, Any], path: str, form: JsonForm) -> TaskStatus:
    status = needed_object(document, "status", path)
    path = under(path, "status")
    word = status.get("state")
    state = _STATES.get(word) if type(word) is str else None
    if state is None:
        raise Malformed(under(path, "state"), f"has the unknown value {str(word)[:40]!r}")
    message = None
    if "message" in status:
        message = with_id(read_message(status["message"], under(path, "message"), form, default=Role.AGENT))
    return TaskStatus(state=state, message=message, timestamp=text(status, "timestamp", path))


def read_task(document: Any, path: str, form: JsonForm) -> Task:
    document = an_object(document, path)
    artifacts, history = sequence(document, "artifacts", path), sequence(document, "history", path)
    where = under(path, "artifacts"), under(path, "history")
    return Task(
        id=needed(document, "id", path),
        context_id=identifier(document, "contextId", path) or identifier(document, "sessionId", path),
        status=read_status(document, path, form),
        artifacts=tuple(
            [read_artifact(each, f"{where[0]}[{n}]", form, position=n) for n, each in enumerate(artifacts)]
        ),
        history=tuple(
            [
                with_id(read_message(each, f"{where[1]}[{n}]", form, default=Role.AGENT))
                for n, each in enumerate(history)
            ]
        ),
        metadata=mapping(document, "metadata", path),
    )


def read_event(document: Any, path: str, form: JsonForm) -> Event:
    """A task, a message or an update, by its `kind`, else by its members."""
    document = an_object(document, path)
    kind = document.get("kind") or document.get("type") or _infer(document)
    if kind == "task":
        return read_task(document, path, form)
    if kind == "message":
        return with_id(read_message(document, path, form, default=Role.AGENT))
    if kind == "status-update":
        return StatusUpdate(
            task_id=_task_id(document, path),
            context_id=identifier(document, "contextId", path),
            status=read_status(document, path, form),
            metadata=mapping(document, "metadata", path),
        )
    if kind == "artifact-update":
        artifact = needed_object(document, "artifact", path)
        return ArtifactUpdate(
            task_id=_task_id(document, path),
            context_id=identifier(document, "contextId", path),
            artifact=read_artifact(artifact, under(path, "artifact"), form),
            append=flag(document, "append", path) or flag(artifact, "append", path),
            last_chunk=flag(document, "lastChunk", path) or flag(artifact, "lastChunk", path),
            metadata=mapping(document, "metadata", path),
        )
    raise Malformed(path or "it", "is neither a task nor a message nor an update")


def _task_id(document: dict[str, Any], path: str) -> str:
    return identifier(document, "taskId", path) or needed(document, "id", path)


def _infer(document: dict[str, Any]) -> str:
    if "artifact" in document:
        return "artifact-update"
    if "status" in document:
        return "status-update" if "taskId" in document or "final" in document else "task"
    return "message" if "parts" in document else ""


# --- writing


def write_status(status: TaskStatus, form: JsonForm) -> dict[str, Any]:
    message = status.message and write_message(status.message, form)
    return {"state": form.state(status.state), **without_empty(message=message, timestamp=status.timestamp)}


def write_task(task: Task, form: JsonForm) -> dict[str, Any]:
    out = {**form.type_member("task"), "id": task.id, "contextId": task.context_id}
    out["status"] = write_status(task.status, form)
    return out | without_empty(
        artifacts=[write_artifact(artifact, form) for artifact in task.artifacts],
        history=[write_message(message, form) for message in task.history],
        metadata=task.metadata,
    )


def write_event(event: Event, form: JsonForm, *, last: bool) -> dict[str, Any]:
    if isinstance(event, Task):
        return write_task(event, form)
    if isinstance(event, Message):
        return write_message(event, form)
    ids = {"taskId": event.task_id, "contextId": event.context_id}
    out: dict[str, Any]
    if isinstance(event, StatusUpdate):
        out = {**form.type_member("status-update"), **ids}
        out["status"] = write_status(event.status, form)
        out["final"] = last
    else:
        out = {**form.type_member("artifact-update"), **ids}
        out["artifact"] = write_artifact(event.artifact, form)
        out["append"] = event.append
        out["lastChunk"] = event.last_chunk
    if event.metadata:
        out["metadata"] = event.metadata
    return out


def task_of(answer: Message, asked: Message | None) -> Task:
    """A completed task around a bare message, for versions in which every answer is a task."""
    task_id = answer.task_id or (asked.task_id if asked else "") or answer.message_id
    context_id = answer.context_id or (asked.context_id if asked else "")
    return Task(
        id=task_id,
        context_id=context_id or task_id,
        status=TaskStatus(state=TaskState.COMPLETED, message=answer, timestamp=timestamp()),
        history=(asked, answer) if asked else (answer,),
    )


def status_of(task: Task) -> StatusUpdate:
    """A task's status, as an update."""
    return StatusUpdate(
        task_id=task.id, context_id=task.context_id, status=task.status, metadata=task.metadata
    )


def read_config(document: dict[str, Any], path: str, *, task_id: str = "") -> PushConfig:
    authentication = mapping(document, "authentication", path)
    schemes = strings(authentication, "schemes", under(path, "authentication"))
    scheme = schemes[0] if schemes else text(authentication, "scheme", under(path, "authentication"))
    credentials = text(authentication, "credentials", under(path, "authentication"))
    url = text(document, "url", path)
    if not url:
        raise Malformed(under(path, "url"), "is missing")
    return PushConfig(
        id=identifier(document, "id", path),
        task_id=task_id,
        url=url,
        token=text(document, "token", path),
        # Some peers write an empty list of schemes for no authentication.
        authentication=AuthenticationInfo(scheme=scheme, credentials=credentials, others=schemes[1:])
        if scheme or credentials
        else None,
    )


def read_task_config(document: Any, path: str) -> PushConfig:
    """`{taskId, pushNotificationConfig}`; 0.1 and some later agents write `id`."""
    document = an_object(document, path)
    task_id = identifier(document, "taskId", path) or identifier(document, "id", path)
    config = needed_object(document, "pushNotificationConfig", path)
    return read_config(config, under(path, "pushNotificationConfig"), task_id=task_id)


def read_task_configs(document: Any, path: str) -> tuple[PushConfig, ...]:
    """A list of them, bare or under `configs`."""
    if type(document) is dict:
        document = sequence(document, "configs", path)
    if type(document) is not list:
        raise Malformed(path or "it", "must be a list")
    return tuple([read_task_config(each, f"{path}[{n}]") for n, each in enumerate(document)])


def write_config(config: PushConfig, *, named: bool = True, secrets: bool = True) -> dict[str, Any]:
    out = {"url": config.url, **without_empty(id=named and config.id, token=config.token)}
    if config.authentication is not None:
        out["authentication"] = {"schemes": [config.authentication.scheme, *config.authentication.others]}
        if config.authentication.credentials and secrets:
            out["authentication"]["credentials"] = config.authentication.credentials
    return out
