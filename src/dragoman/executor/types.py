"""The SDK's types: its constructors in every spelling it has had, giving values of our model.

Versions of the SDK differ in how members are spelled (`contextId`, `context_id`) and in how parts are wrapped
(`Part(root=TextPart(...))`, `part.root.text`). Both are understood, in what is made and in what is read.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from msgspec.structs import asdict

from dragoman.model import content, task
from dragoman.model.card import AgentCard as Card
from dragoman.model.card import Capabilities, Provider, Skill
from dragoman.model.ids import new_id, timestamp
from dragoman.model.task import ArtifactUpdate, StatusUpdate, TaskStatus

__all__ = ["TaskStatus"]

T = TypeVar("T", content.Message, task.Task)


class TaskState:
    """`TaskState.input_required`, and as 1.0 spells it."""

    submitted = SUBMITTED = task.TaskState.SUBMITTED
    working = WORKING = task.TaskState.WORKING
    completed = COMPLETED = task.TaskState.COMPLETED
    failed = FAILED = task.TaskState.FAILED
    canceled = CANCELED = task.TaskState.CANCELED
    input_required = INPUT_REQUIRED = task.TaskState.INPUT_REQUIRED
    rejected = REJECTED = task.TaskState.REJECTED
    auth_required = AUTH_REQUIRED = task.TaskState.AUTH_REQUIRED
    unknown = UNSPECIFIED = task.TaskState.UNSPECIFIED


class Role:
    user = USER = content.Role.USER
    agent = AGENT = content.Role.AGENT


class _Spoken:
    """A value whose members can be read as the SDK spells them."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
        if snake == name:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self, snake)


class SpokenPart(content.Part, _Spoken, frozen=True):
    @property
    def root(self) -> SpokenPart:
        return self


class SpokenMessage(content.Message, _Spoken, frozen=True):
    pass


class SpokenTask(task.Task, _Spoken, frozen=True):
    pass


def as_spoken(value: T) -> T:
    """`value`, for code that spells its members as the SDK does."""
    members = {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, task.Task):
        return cast(T, SpokenTask(**members))
    parts = tuple(SpokenPart(**{n: getattr(p, n) for n in p.__struct_fields__}) for p in value.parts)
    return cast(T, SpokenMessage(**{**members, "parts": parts}))


def Part(root: content.Part | None = None, **members: Any) -> content.Part:
    """`Part(root=TextPart(text="hi"))`, `Part(TextPart(...))` or `Part(text="hi")`."""
    return root if root is not None else content.Part(**members)


def TextPart(text: str, *, metadata: dict[str, Any] | None = None, **kind: str) -> content.Part:
    return content.Part(text=text, metadata=metadata or {})


def DataPart(data: Any, *, metadata: dict[str, Any] | None = None, **kind: str) -> content.Part:
    return content.Part(data=data, metadata=metadata or {})


def FilePart(file: content.Part, *, metadata: dict[str, Any] | None = None, **kind: str) -> content.Part:
    return content.Part(**{**_set(file), "metadata": metadata or {}})


def FileWithBytes(bytes: str, *, name: str = "", mimeType: str = "", mime_type: str = "") -> content.Part:
    """`bytes` is base64, as in the SDK."""
    return content.Part(raw=base64.b64decode(bytes), filename=name, media_type=mimeType or mime_type)


def FileWithUri(uri: str, *, name: str = "", mimeType: str = "", mime_type: str = "") -> content.Part:
    return content.Part(url=uri, filename=name, media_type=mimeType or mime_type)


def _set(part: content.Part) -> dict[str, Any]:
    return {name: value for name, value in asdict(part).items() if name != "metadata"}


def Message(
    role: content.Role,
    parts: Sequence[content.Part],
    *,
    messageId: str = "",
    message_id: str = "",
    contextId: str = "",
    context_id: str = "",
    taskId: str = "",
    task_id: str = "",
    metadata: dict[str, Any] | None = None,
    **more: Any,
) -> content.Message:
    return content.Message(
        message_id=messageId or message_id or new_id(),
        role=role,
        parts=tuple(parts),
        context_id=contextId or context_id,
        task_id=taskId or task_id,
        metadata=metadata or {},
    )


def Artifact(
    parts: Sequence[content.Part],
    *,
    artifactId: str = "",
    artifact_id: str = "",
    name: str = "",
    description: str = "",
    metadata: dict[str, Any] | None = None,
    **more: Any,
) -> content.Artifact:
    return content.Artifact(
        artifact_id=artifactId or artifact_id or new_id(),
        parts=tuple(parts),
        name=name,
        description=description,
        metadata=metadata or {},
    )


def new_agent_text_message(text: str, context_id: str = "", task_id: str = "") -> content.Message:
    return new_agent_parts_message((content.Part(text=text),), context_id, task_id)


def new_agent_parts_message(
    parts: Sequence[content.Part], context_id: str = "", task_id: str = ""
) -> content.Message:
    return content.Message(
        message_id=new_id(), role=Role.AGENT, parts=tuple(parts), context_id=context_id, task_id=task_id
    )


def new_text_artifact(name: str, text: str, description: str = "") -> content.Artifact:
    return Artifact((content.Part(text=text),), name=name, description=description)


def new_data_artifact(name: str, data: Any, description: str = "") -> content.Artifact:
    return Artifact((content.Part(data=data),), name=name, description=description)


def new_task(request: content.Message) -> task.Task:
    """A fresh task for a message, as the SDK's samples put it on the queue first."""
    status = TaskStatus(state=TaskState.submitted, timestamp=timestamp())
    return SpokenTask(
        id=request.task_id or new_id(), context_id=request.context_id, status=status, history=(request,)
    )


def TaskStatusUpdateEvent(
    status: TaskStatus, *, metadata: dict[str, Any] | None = None, final: bool = False, **ids: str
) -> StatusUpdate:
    """The SDK's constructor. The ids of task and context, and `final`, are the engine's to know."""
    return StatusUpdate(task_id="", context_id="", status=status, metadata=metadata or {})


def TaskArtifactUpdateEvent(
    artifact: content.Artifact,
    *,
    append: bool = False,
    lastChunk: bool = False,
    last_chunk: bool = False,
    metadata: dict[str, Any] | None = None,
    **ids: str,
) -> ArtifactUpdate:
    """The SDK's constructor, in both spellings."""
    return ArtifactUpdate(
        task_id="",
        context_id="",
        artifact=artifact,
        append=append,
        last_chunk=lastChunk or last_chunk,
        metadata=metadata or {},
    )


def AgentSkill(
    id: str,
    name: str,
    description: str = "",
    tags: Sequence[str] = (),
    examples: Sequence[str] = (),
    inputModes: Sequence[str] = (),
    outputModes: Sequence[str] = (),
    input_modes: Sequence[str] = (),
    output_modes: Sequence[str] = (),
) -> Skill:
    return Skill(
        id=id,
        name=name,
        description=description,
        tags=tuple(tags),
        examples=tuple(examples),
        input_modes=tuple(inputModes or input_modes),
        output_modes=tuple(outputModes or output_modes),
    )


def AgentCapabilities(
    streaming: bool = True, pushNotifications: bool = False, stateTransitionHistory: bool = False, **more: Any
) -> Capabilities:
    return Capabilities(streaming=streaming, push_notifications=pushNotifications)


def AgentAuthentication(schemes: Sequence[str] = (), credentials: str = "") -> tuple[str, ...]:
    """0.1's list of scheme names. `public` means none."""
    return tuple(scheme for scheme in schemes if scheme != "public")


def AgentCard(
    name: str,
    description: str = "",
    url: str = "",
    version: str = "1.0.0",
    capabilities: Capabilities | None = None,
    skills: Sequence[Skill] = (),
    defaultInputModes: Sequence[str] = (),
    defaultOutputModes: Sequence[str] = (),
    default_input_modes: Sequence[str] = (),
    default_output_modes: Sequence[str] = (),
    authentication: Sequence[str] = (),
    provider: Provider | None = None,
    **more: Any,
) -> Card:
    """The SDK's constructor, in both spellings. `url` is ignored: the server knows where it is reached."""
    if authentication:
        raise TypeError("a card does not authenticate anybody: declare `auth=` on the agent instead")
    return Card(
        name=name,
        description=description,
        version=version,
        provider=provider,
        capabilities=capabilities or Capabilities(streaming=True),
        skills=tuple(skills),
        default_input_modes=_modes(defaultInputModes or default_input_modes),
        default_output_modes=_modes(defaultOutputModes or default_output_modes),
    )


def _modes(modes: Sequence[str]) -> tuple[str, ...]:
    return tuple("text/plain" if mode == "text" else mode for mode in modes) or ("text/plain",)
