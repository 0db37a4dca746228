"""The SDK's types: its constructors in every spelling it has had (`contextId`, `context_id`), giving values of our model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.executor.spoken import SpokenTask
from dragoman.model import content, task
from dragoman.model.card import AgentCard as Card
from dragoman.model.card import Capabilities, Extension, Provider, Skill
from dragoman.model.ids import new_id, timestamp
from dragoman.model.task import ArtifactUpdate, StatusUpdate, TaskStatus

__all__ = ["TaskStatus"]


class TaskState:
    """`TaskState.input_required`, and as 1.0 spells it."""

    submitted = SUBMITTED = TASK_STATE_SUBMITTED = task.TaskState.SUBMITTED
    working = WORKING = TASK_STATE_WORKING = task.TaskState.WORKING
    completed = COMPLETED = TASK_STATE_COMPLETED = task.TaskState.COMPLETED
    failed = FAILED = TASK_STATE_FAILED = task.TaskState.FAILED
    canceled = CANCELED = TASK_STATE_CANCELED = task.TaskState.CANCELED
    input_required = INPUT_REQUIRED = TASK_STATE_INPUT_REQUIRED = task.TaskState.INPUT_REQUIRED
    rejected = REJECTED = TASK_STATE_REJECTED = task.TaskState.REJECTED
    auth_required = AUTH_REQUIRED = TASK_STATE_AUTH_REQUIRED = task.TaskState.AUTH_REQUIRED
    unknown = UNSPECIFIED = TASK_STATE_UNSPECIFIED = task.TaskState.UNSPECIFIED


class Role:
    user = USER = ROLE_USER = content.Role.USER
    agent = AGENT = ROLE_AGENT = content.Role.AGENT


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
        metadata=metadata or content.NOTHING,
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
        metadata=metadata or content.NOTHING,
    )


def new_agent_text_message(text: str, context_id: str = "", task_id: str = "") -> content.Message:
    return new_agent_parts_message((content.Part(text=text),), context_id, task_id)


def new_agent_parts_message(
    parts: Sequence[content.Part], context_id: str = "", task_id: str = ""
) -> content.Message:
    return content.Message(
        message_id=new_id(), role=Role.AGENT, parts=tuple(parts), context_id=context_id, task_id=task_id
    )


def get_message_text(message: content.Message, delimiter: str = "\n") -> str:
    return delimiter.join(part.text for part in message.parts if part.text is not None)


def new_artifact(parts: Sequence[content.Part], name: str, description: str = "") -> content.Artifact:
    return Artifact(parts, name=name, description=description)


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


def completed_task(
    task_id: str,
    context_id: str,
    artifacts: Sequence[content.Artifact],
    history: Sequence[content.Message] | None = None,
) -> task.Task:
    """A task that is done, with all it produced."""
    status = TaskStatus(state=TaskState.completed, timestamp=timestamp())
    return SpokenTask(
        id=task_id,
        context_id=context_id,
        status=status,
        artifacts=tuple(artifacts),
        history=tuple(history or ()),
    )


def TaskStatusUpdateEvent(
    status: TaskStatus, *, metadata: dict[str, Any] | None = None, final: bool = False, **ids: str
) -> StatusUpdate:
    """The SDK's constructor. The ids of task and context, and `final`, are the engine's to know."""
    return StatusUpdate(task_id="", context_id="", status=status, metadata=metadata or content.NOTHING)


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
        metadata=metadata or content.NOTHING,
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
    streaming: bool = True,
    pushNotifications: bool = False,
    push_notifications: bool = False,
    extensions: Sequence[Extension] | None = None,
    **more: Any,
) -> Capabilities:
    return Capabilities(
        streaming=streaming,
        push_notifications=pushNotifications or push_notifications,
        extensions=tuple(extensions or ()),
    )


def AgentProvider(organization: str, url: str = "") -> Provider:
    return Provider(organization=organization, url=url)


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
    documentationUrl: str = "",
    documentation_url: str = "",
    iconUrl: str = "",
    icon_url: str = "",
    **more: Any,
) -> Card:
    """The SDK's constructor, in both spellings. `url` is ignored: the server knows where it is reached."""
    if authentication or any(more.get(name) for name in ("securitySchemes", "security_schemes", "security")):
        raise TypeError("a card does not authenticate anybody: declare `auth=` on the agent instead")
    return Card(
        name=name,
        description=description,
        version=version,
        provider=provider,
        documentation_url=documentationUrl or documentation_url,
        icon_url=iconUrl or icon_url,
        capabilities=capabilities or Capabilities(streaming=True),
        skills=tuple(skills),
        default_input_modes=_modes(defaultInputModes or default_input_modes),
        default_output_modes=_modes(defaultOutputModes or default_output_modes),
    )


def _modes(modes: Sequence[str]) -> tuple[str, ...]:
    return tuple("text/plain" if mode == "text" else mode for mode in modes) or ("text/plain",)
