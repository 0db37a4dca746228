"""The SDK's types. Their constructors take the spelling of every version (`contextId`, `context_id`), and return values of
`dragoman.model`."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from msgspec.structs import replace

from dragoman.executor.missing import find_in_package
from dragoman.executor.sdk_aliases import (
    LEGACY,
    SdkMeta,
    SdkPart,
    SdkType,
    members,
    read_as,
    read_each,
    snake_case,
    to_sdk,
)
from dragoman.model import card, content, task
from dragoman.model.ids import new_id
from dragoman.model.task import ArtifactUpdate, StatusUpdate

_KIND = ("kind", "type")
_IDS = ("task_id", "context_id", "kind", "final")
"""Members of updates that are ignored: the engine knows them."""
_WHO = ("authentication", "security_schemes", "security", "security_requirements")

AGENT_CARD_WELL_KNOWN_PATH = "/.well-known/agent-card.json"
PREV_AGENT_CARD_WELL_KNOWN_PATH = "/.well-known/agent.json"
EXTENDED_AGENT_CARD_PATH = "/agent/authenticatedExtendedCard"
DEFAULT_RPC_URL = "/"
HTTP_EXTENSION_HEADER = "A2A-Extensions"
VERSION_HEADER = "A2A-Version"
PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3 = "1.0", "0.3"
PROTOCOL_VERSION_CURRENT = PROTOCOL_VERSION_1_0


class TaskState(metaclass=SdkMeta):
    """The states by their names in every version: `TaskState.input_required`, `TaskState("input-required")`."""

    made = task.TaskState

    submitted = SUBMITTED = TASK_STATE_SUBMITTED = task.TaskState.SUBMITTED
    working = WORKING = TASK_STATE_WORKING = task.TaskState.WORKING
    completed = COMPLETED = TASK_STATE_COMPLETED = task.TaskState.COMPLETED
    failed = FAILED = TASK_STATE_FAILED = task.TaskState.FAILED
    canceled = CANCELED = TASK_STATE_CANCELED = TASK_STATE_CANCELLED = task.TaskState.CANCELED
    input_required = INPUT_REQUIRED = TASK_STATE_INPUT_REQUIRED = task.TaskState.INPUT_REQUIRED
    rejected = REJECTED = TASK_STATE_REJECTED = task.TaskState.REJECTED
    auth_required = AUTH_REQUIRED = TASK_STATE_AUTH_REQUIRED = task.TaskState.AUTH_REQUIRED
    unknown = UNSPECIFIED = TASK_STATE_UNSPECIFIED = task.TaskState.UNSPECIFIED

    def __new__(cls, value: str) -> Any:
        for state in task.TaskState:
            if value in (state, state.word):
                return state
        raise ValueError(f"there is no state {value!r:.80}")

    @staticmethod
    def Name(state: task.TaskState) -> str:
        """The method of protobuf enums."""
        return str(state.value)


class Role(metaclass=SdkMeta):
    made = content.Role

    user = USER = ROLE_USER = content.Role.USER
    agent = AGENT = ROLE_AGENT = content.Role.AGENT
    ROLE_UNSPECIFIED = content.Role.UNSPECIFIED

    def __new__(cls, value: str) -> Any:
        return content.Role(value)

    @staticmethod
    def Name(role: content.Role) -> str:
        return str(role.value)


ROLE_UNSPECIFIED, ROLE_USER, ROLE_AGENT = Role.ROLE_UNSPECIFIED, Role.ROLE_USER, Role.ROLE_AGENT
TASK_STATE_UNSPECIFIED = TaskState.TASK_STATE_UNSPECIFIED
TASK_STATE_SUBMITTED = TaskState.TASK_STATE_SUBMITTED
TASK_STATE_WORKING = TaskState.TASK_STATE_WORKING
TASK_STATE_COMPLETED = TaskState.TASK_STATE_COMPLETED
TASK_STATE_FAILED = TaskState.TASK_STATE_FAILED
TASK_STATE_CANCELED = TASK_STATE_CANCELLED = TaskState.TASK_STATE_CANCELED
TASK_STATE_INPUT_REQUIRED = TaskState.TASK_STATE_INPUT_REQUIRED
TASK_STATE_REJECTED = TaskState.TASK_STATE_REJECTED
TASK_STATE_AUTH_REQUIRED = TaskState.TASK_STATE_AUTH_REQUIRED
TERMINAL_TASK_STATES = {
    TASK_STATE_COMPLETED,
    TASK_STATE_FAILED,
    TASK_STATE_CANCELED,
    TASK_STATE_REJECTED,
}
INTERRUPTED_TASK_STATES = {TASK_STATE_INPUT_REQUIRED, TASK_STATE_AUTH_REQUIRED}


class Part(SdkType):
    made = content.Part

    def __new__(cls, root: Any = None, **given: Any) -> Any:
        if root is not None:
            return read_as(Part, root)
        return to_sdk(content.Part(**members(content.Part, given)))

    @classmethod
    def model_validate(cls, value: Any, **how: Any) -> Any:
        """A part, or its JSON in any version."""
        if not isinstance(value, Mapping) or isinstance(value, content.Part):
            return super().model_validate(value)
        members = {name: each for name, each in value.items() if name not in _KIND}
        if "root" in members:
            return cls.model_validate(members["root"])
        if isinstance(file := members.pop("file", None), Mapping):
            kind: Any = FileWithUri if "uri" in file else FileWithBytes
            return FilePart(file=kind(**file), **members)
        return super().model_validate(members)


class _OneOf(SdkMeta):
    """A kind of part. `isinstance` is true for parts with one of the members `holds`."""

    holds: tuple[str, ...]

    def __instancecheck__(cls, value: Any) -> bool:
        empty = content.Part()
        return isinstance(value, content.Part) and any(
            getattr(value, name) is not getattr(empty, name) for name in cls.holds
        )


class TextPart(SdkType, metaclass=_OneOf):
    holds = ("text",)

    def __new__(cls, text: str, **given: Any) -> Any:
        return to_sdk(content.Part(text=text, **members(content.Part, given, _KIND)))


class DataPart(SdkType, metaclass=_OneOf):
    holds = ("data",)

    def __new__(cls, data: Any, **given: Any) -> Any:
        return to_sdk(content.Part(data=data, **members(content.Part, given, _KIND)))


class FilePart(SdkType, metaclass=_OneOf):
    holds = ("raw", "url")

    def __new__(cls, file: content.Part, **given: Any) -> Any:
        return replace(file, **members(content.Part, given, _KIND))


class FileWithBytes(SdkType, metaclass=_OneOf):
    """`bytes` is base64, as in the SDK."""

    holds = ("raw",)

    def __new__(
        cls, bytes: str, *, name: str | None = "", mimeType: str | None = "", mime_type: str | None = ""
    ) -> Any:
        media_type = mimeType or mime_type or ""
        return SdkPart(raw=base64.b64decode(bytes), filename=name or "", media_type=media_type)


class FileWithUri(SdkType, metaclass=_OneOf):
    holds = ("url",)

    def __new__(
        cls, uri: str, *, name: str | None = "", mimeType: str | None = "", mime_type: str | None = ""
    ) -> Any:
        return SdkPart(url=uri, filename=name or "", media_type=mimeType or mime_type or "")


class Message(SdkType):
    made = content.Message
    also = ("kind",)

    def __new__(cls, role: content.Role | str, parts: Sequence[Any], **given: Any) -> Any:
        given = {"message_id": new_id()} | members(content.Message, given, cls.also)
        return to_sdk(content.Message(role=Role(role), parts=tuple(read_each(Part, parts)), **given))


class Artifact(SdkType):
    made = content.Artifact

    def __new__(cls, parts: Sequence[Any], **given: Any) -> Any:
        given = {"artifact_id": new_id()} | members(content.Artifact, given)
        return to_sdk(content.Artifact(parts=tuple(read_each(Part, parts)), **given))


class Task(SdkType):
    made = task.Task
    also = ("kind",)

    def __new__(cls, id: str, status: Any, **given: Any) -> Any:
        given = members(task.Task, given, cls.also)
        for name, kind in (("history", Message), ("artifacts", Artifact)):
            given[name] = tuple(read_each(kind, given.get(name)))
        return to_sdk(task.Task(id=id, status=read_as(TaskStatus, status), **given))


class TaskStatus(SdkType):
    made = task.TaskStatus

    def __new__(cls, state: task.TaskState | str, message: Any = None, **given: Any) -> Any:
        members(task.TaskStatus, given)  # the time is that of its record
        return to_sdk(task.TaskStatus(state=TaskState(state), message=read_as(Message, message)))


class TaskStatusUpdateEvent(SdkType):
    made = StatusUpdate
    also = _IDS

    def __new__(cls, status: Any, **given: Any) -> Any:
        given = members(StatusUpdate, given, cls.also)
        return to_sdk(StatusUpdate(task_id="", context_id="", status=read_as(TaskStatus, status), **given))


class TaskArtifactUpdateEvent(SdkType):
    made = ArtifactUpdate
    also = _IDS

    def __new__(cls, artifact: Any, **given: Any) -> Any:
        given = members(ArtifactUpdate, given, cls.also)
        return to_sdk(
            ArtifactUpdate(task_id="", context_id="", artifact=read_as(Artifact, artifact), **given)
        )


Event = Message | Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent
"""The events of a queue; for annotations, and for `isinstance`."""


class TransportProtocol(str, Enum):
    JSONRPC = jsonrpc = "JSONRPC"
    HTTP_JSON = http_json = "HTTP+JSON"
    GRPC = grpc = "GRPC"


class AgentSkill(SdkType):
    made = card.Skill
    also = ("security",)

    def __new__(cls, id: str, name: str, **given: Any) -> Any:
        return to_sdk(card.Skill(id=id, name=name, **members(card.Skill, given, cls.also)))


class AgentExtension(SdkType):
    made = card.Extension

    def __new__(cls, uri: str = "", **given: Any) -> Any:
        return to_sdk(card.Extension(uri=uri, **members(card.Extension, given)))


class AgentCapabilities(SdkType):
    made = card.Capabilities
    also = ("state_transition_history",)

    def __new__(cls, streaming: bool | None = True, **given: Any) -> Any:
        given = {"push_notifications": False} | members(card.Capabilities, given, cls.also)
        given["extensions"] = tuple(read_each(AgentExtension, given.get("extensions")))
        return to_sdk(card.Capabilities(streaming=streaming is not False, **given))


class AgentProvider(SdkType):
    made = card.Provider

    def __new__(cls, organization: str, url: str | None = "") -> Any:
        return to_sdk(card.Provider(organization=organization, url=url or ""))


class AgentInterface(SdkType):
    made = card.Interface
    also = ("transport",)

    def __new__(cls, url: str, **given: Any) -> Any:
        given = {"protocol_binding": given.pop("transport", "JSONRPC"), "protocol_version": ""} | members(
            card.Interface, given, cls.also
        )
        return to_sdk(card.Interface(url=url, **given))


def AgentAuthentication(schemes: Sequence[str] = (), credentials: str = "") -> tuple[str, ...]:
    """0.1's list of scheme names. `public` means none."""
    return tuple(scheme for scheme in schemes if scheme != "public")


class AgentCard(SdkType):
    """A card. The server writes the addresses and versions itself: members about them can be read, and have no effect."""

    made = card.AgentCard
    also = LEGACY

    def __new__(cls, name: str, description: str = "", **given: Any) -> Any:
        if any(given[member] for member in given if snake_case(member) in _WHO):
            raise TypeError("a card does not authenticate anybody: declare `auth=` on the agent instead")
        filled: dict[str, Any] = {"version": "1.0.0"}
        filled |= members(card.AgentCard, given, (*cls.also, *_WHO, "signatures"))
        filled["capabilities"] = read_as(AgentCapabilities, filled.get("capabilities", {}))
        filled["skills"] = tuple(read_each(AgentSkill, filled.get("skills")))
        filled["supported_interfaces"] = tuple(read_each(AgentInterface, filled.get("supported_interfaces")))
        if filled.get("provider") is not None:
            filled["provider"] = read_as(AgentProvider, filled["provider"])
        for modes in ("default_input_modes", "default_output_modes"):
            filled[modes] = _modes(filled.get(modes, ()))
        made = to_sdk(card.AgentCard(name=name, description=description, **filled))
        for member, value in given.items():
            if snake_case(member) in LEGACY:
                setattr(made, snake_case(member), value)
        return made


def _modes(modes: Sequence[str]) -> tuple[str, ...]:
    return tuple("text/plain" if mode == "text" else mode for mode in modes) or ("text/plain",)


def are_modalities_compatible(
    server_output_modes: Sequence[str] | None, client_output_modes: Sequence[str] | None
) -> bool:
    """True if the two lists have a mode in common, or one of them is empty."""
    if not server_output_modes or not client_output_modes:
        return True
    return not set(server_output_modes).isdisjoint(client_output_modes)


def find_extension_by_uri(card: Any, uri: str) -> Any:
    """The extension that a card declares under a URI; None if it has none."""
    return next((each for each in card.capabilities.extensions if each.uri == uri), None)


def get_requested_extensions(values: Sequence[str]) -> set[str]:
    """The URIs in the values of a header."""
    return {uri.strip() for value in values for uri in value.split(",") if uri.strip()}


__getattr__ = find_in_package
