"""What can be asked of an agent, and of whom: the operations, `Call`, `Scope` and `Service`.

Anything you can talk to is a `Service`: the engine here, a client of an agent elsewhere, the hub, a bridge. It has two
methods. A unary operation is `call`; a streaming one is `stream`, which yields *batches*: everything that was ready, so
that whoever writes it out can write it together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Sequence
from typing import Any, ClassVar, NoReturn, Protocol, Self, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.errors import InvalidParams
from dragoman.model.card import AgentCard
from dragoman.model.content import NOTHING, Message, Role, Wire
from dragoman.model.ids import read_timestamp
from dragoman.model.task import ArtifactUpdate, Event, Task, TaskState

R = TypeVar("R", covariant=True)

_encoder = msgspec.json.Encoder()


MAX_PAGE_SIZE = 100
MAX_ID_LENGTH = 512
"""Characters in the id of a task or a context, which every event repeats."""
MAX_PARTS = 1000
"""Parts in a message. Each costs far more than its bytes: here, in the log, and for readers of the task."""
TOO_MANY_PARTS = f"must not be more than {MAX_PARTS}"
MAX_MODES = 1000
"""Output modes that a sender accepts. Each is compared with those of the skill."""


_EMPTY, _NEGATIVE = "must not be empty", "must not be negative"
_ID, _TASK_ID, _HISTORY = ("id", "id"), ("task_id", "taskId"), ("history_length", "historyLength")


def refuse(path: str, why: str) -> NoReturn:
    """Raise `InvalidParams` for the member at `path`."""
    raise InvalidParams(f"{path} {why}", fields=((path, why),))


def refuse_page_token() -> NoReturn:
    refuse("pageToken", "is not from a page of this list")


class Request(Wire, frozen=True, kw_only=True):
    """An operation and its parameters. `tenant` is a routing label; it authorises nothing."""

    tenant: str = ""
    needed: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Members that must not be empty, and their names in JSON."""
    natural: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Members that must not be negative."""

    def check(self) -> Self:
        """The request, if it keeps the rules that all versions share, beyond the types of members. Raises `InvalidParams`."""
        for member, name in self.natural:
            if (getattr(self, member) or 0) < 0:
                refuse(name, _NEGATIVE)
        for member, name in self.needed:
            if not getattr(self, member):
                refuse(name, _EMPTY)
        return self


class AuthenticationInfo(Wire, frozen=True, kw_only=True):
    scheme: str
    credentials: str = ""
    others: tuple[str, ...] = ()
    """What a caller from before 1.0 listed after the first scheme: it reads them again, and nobody else does."""


class PushConfig(Wire, frozen=True, kw_only=True):
    """Where to send news of a task, and how to prove it is us (1.0's TaskPushNotificationConfig)."""

    url: str
    id: str = ""
    task_id: str = ""
    token: str = ""
    authentication: AuthenticationInfo | None = None
    tenant: str = ""


class Configuration(Wire, frozen=True, kw_only=True):
    accepted_output_modes: tuple[str, ...] = ()
    task_push_notification_config: PushConfig | None = None
    history_length: int | None = None
    return_immediately: bool = False


class SendMessage(Request, frozen=True, kw_only=True):
    """-> Task | Message. Streamed, it is SendStreamingMessage."""

    message: Message
    configuration: Configuration = Configuration()
    metadata: dict[str, Any] = NOTHING

    def check(self) -> Self:
        message, configuration = self.message, self.configuration
        if len(message.task_id) > MAX_ID_LENGTH:
            refuse("message.taskId", f"is longer than {MAX_ID_LENGTH} characters")
        if len(message.context_id) > MAX_ID_LENGTH:
            refuse("message.contextId", f"is longer than {MAX_ID_LENGTH} characters")
        if not message.message_id:
            refuse("message.messageId", _EMPTY)
        if message.role is Role.UNSPECIFIED:
            refuse("message.role", "must be given")
        if not message.parts:
            refuse("message.parts", _EMPTY)
        if len(message.parts) > MAX_PARTS:
            refuse("message.parts", TOO_MANY_PARTS)
        for n, part in enumerate(message.parts):
            if part.contents != 1:
                refuse(f"message.parts[{n}]", "must have exactly one of text, raw, url and data")
        if configuration.history_length is not None and configuration.history_length < 0:
            refuse("configuration.historyLength", _NEGATIVE)
        if len(configuration.accepted_output_modes) > MAX_MODES:
            refuse("configuration.acceptedOutputModes", f"must not be more than {MAX_MODES}")
        config = configuration.task_push_notification_config
        if config is not None and not config.url:
            refuse("configuration.taskPushNotificationConfig.url", _EMPTY)
        return self


class GetTask(Request, frozen=True, kw_only=True):
    """-> Task"""

    id: str
    history_length: int | None = None
    needed = (_ID,)
    natural = (_HISTORY,)


class ListTasks(Request, frozen=True, kw_only=True):
    """-> TaskPage"""

    context_id: str = ""
    status: TaskState = TaskState.UNSPECIFIED
    page_size: int | None = None
    page_token: str = ""
    history_length: int | None = None
    status_timestamp_after: str = ""
    include_artifacts: bool = False
    natural = (_HISTORY,)

    def check(self) -> Self:
        Request.check(self)
        if self.page_size is not None and not 1 <= self.page_size <= MAX_PAGE_SIZE:
            refuse("pageSize", f"must be from 1 to {MAX_PAGE_SIZE}")
        if not self.status_timestamp_after:
            return self
        try:
            return replace(self, status_timestamp_after=read_timestamp(self.status_timestamp_after))
        except ValueError:
            refuse("statusTimestampAfter", "is not an ISO 8601 timestamp")


class TaskPage(Struct, frozen=True, kw_only=True, rename="camel"):
    """We write all four members always; the last page has an empty token. Some peers leave out what is empty or zero."""

    tasks: tuple[Task, ...] = ()
    next_page_token: str = ""
    page_size: int = 0
    total_size: int = 0


class CancelTask(Request, frozen=True, kw_only=True):
    """-> Task"""

    id: str
    metadata: dict[str, Any] = NOTHING
    needed = (_ID,)


class SubscribeToTask(Request, frozen=True, kw_only=True):
    """Stream only: the task as it is, then what happens to it."""

    id: str
    needed = (_ID,)


class ResumeTask(SubscribeToTask, frozen=True, kw_only=True):
    """`SubscribeToTask` by a reader that has `known` already: a client passes on only what is new. Not on any wire."""

    known: Task


class CreatePushConfig(Request, frozen=True, kw_only=True):
    """-> PushConfig, with an id"""

    config: PushConfig

    def check(self) -> Self:
        if not self.config.task_id:
            refuse("taskId", _EMPTY)
        if not self.config.url:
            refuse("url", _EMPTY)
        return self


class GetPushConfig(Request, frozen=True, kw_only=True):
    """-> PushConfig. An empty id means any one of them (versions before 1.0)."""

    task_id: str
    id: str = ""
    needed = (_TASK_ID,)


class ListPushConfigs(Request, frozen=True, kw_only=True):
    """-> PushConfigPage"""

    task_id: str
    page_size: int | None = None
    page_token: str = ""
    needed = (_TASK_ID,)
    natural = (("page_size", "pageSize"),)


class PushConfigPage(Wire, frozen=True, kw_only=True):
    configs: tuple[PushConfig, ...] = ()
    next_page_token: str = ""


class DeletePushConfig(Request, frozen=True, kw_only=True):
    """-> None"""

    task_id: str
    id: str
    needed = (_TASK_ID, _ID)


class GetExtendedCard(Request, frozen=True, kw_only=True):
    """-> AgentCard"""


class GetOrigin(Request, frozen=True, kw_only=True):
    """-> str: the dialect a task was created in, `""` if nobody knows. Not on any wire; it breaks ties between them."""

    id: str


class ExtensionCall(Request, frozen=True, kw_only=True):
    """-> a JSON value: a method that an extension of the agent adds."""

    method: str
    params: dict[str, Any] = {}


Result = Task | Message | TaskPage | PushConfig | PushConfigPage | AgentCard | str | None


class Op(Struct, frozen=True):
    """One row of the operation table: 1.0's method name, the request type, whether it streams."""

    name: str
    request: type[Request]
    streams: bool = False


SEND = Op("SendMessage", SendMessage)
STREAM = Op("SendStreamingMessage", SendMessage, streams=True)
GET = Op("GetTask", GetTask)
LIST = Op("ListTasks", ListTasks)
CANCEL = Op("CancelTask", CancelTask)
SUBSCRIBE = Op("SubscribeToTask", SubscribeToTask, streams=True)
PUSH_CREATE = Op("CreateTaskPushNotificationConfig", CreatePushConfig)
PUSH_GET = Op("GetTaskPushNotificationConfig", GetPushConfig)
PUSH_LIST = Op("ListTaskPushNotificationConfigs", ListPushConfigs)
PUSH_DELETE = Op("DeleteTaskPushNotificationConfig", DeletePushConfig)
EXTENDED_CARD = Op("GetExtendedAgentCard", GetExtendedCard)
EXTENSION = Op("CallExtension", ExtensionCall)
"""Not in the table of operations: an agent's extensions say which methods there are."""

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        SEND,
        STREAM,
        GET,
        LIST,
        CANCEL,
        SUBSCRIBE,
        PUSH_CREATE,
        PUSH_GET,
        PUSH_LIST,
        PUSH_DELETE,
        EXTENDED_CARD,
    )
}


class Scope(Struct, frozen=True, gc=False):
    """Whose tasks these are. A task outside a scope cannot be named from inside it.

    It is made in one place, from the authenticated principal and the path, never from a request's body.
    """

    tenant: str = ""
    agent: str = ""
    owner: str = ""


class Principal(Struct, frozen=True, kw_only=True, gc=False):
    """Who is calling. `id` is empty for an anonymous caller."""

    id: str = ""
    tenant: str = ""
    scopes: frozenset[str] = frozenset()
    claims: dict[str, Any] = {}
    generation: int | None = None
    """Which of its successive tokens the caller showed, where that is counted. Calls made on its behalf carry it along."""
    owner: str = ""
    """Whose tasks the caller works with; empty: its own."""


class Call(Struct, frozen=True, kw_only=True, gc=False):
    """Everything about a request that is not its parameters."""

    scope: Scope = Scope()
    principal: Principal = Principal()
    dialect: str = "1.0"
    """The tongue of the caller; stored with a new task as its origin."""
    names_tasks: bool = False
    """The caller chooses the ids of new tasks (0.1 and the draft)."""
    strict_cancel: bool = False
    """Canceling a canceled task is an error (every version before 1.0)."""
    reads_finished: bool = False
    """Subscribing to a finished task gives the task, not an error (every version before 1.0)."""
    idempotency_key: str = ""
    extensions: tuple[str, ...] = ()
    after: int | None = None
    """Resume a stream after this event (`Last-Event-ID`)."""
    answers: int | None = None
    """The last record of the task when the caller saw the question. If mail came after it, the message is refused."""
    deadline: float | None = None
    """When the caller stops waiting, in `time.time()` seconds."""
    trace: dict[str, str] = {}
    """W3C trace context: `traceparent`, `tracestate`."""
    depth: int = 0
    """How many agents stand between this call and the first caller, as the caller says."""
    inside: bool = False
    """From a task that runs in this process and waits for the answer. No request of the network says so."""
    credentials: dict[str, str] = field(default_factory=dict)
    """Request headers that carried credentials; for agents that ask to pass them on. Never logged, never stored."""


class StreamResponse:
    """One event of a stream, with its place in the task's log.

    Readers of the same event share the object, so each dialect encodes it once.
    """

    __slots__ = ("_encoded", "event", "raw", "seq")

    def __init__(self, event: Event, seq: int = 0, raw: bytes = b"") -> None:
        self.event = event
        self.seq = seq
        """0 when the event has no place of its own in the log: nothing can be resumed after it."""
        self.raw = raw
        """The event's own JSON, which is 1.0's; empty until `encode`."""
        self._encoded: dict[Any, bytes] | None = None

    def encode(self) -> bytes:
        """Encode the event now. Raises TypeError or ValueError if it holds something that has no JSON form."""
        raw = self.raw = _encoder.encode(self.event)
        return raw

    @property
    def encoded(self) -> dict[Any, bytes]:
        """The event in other tongues."""
        if self._encoded is None:
            self._encoded = {}
        return self._encoded

    def __repr__(self) -> str:
        return f"StreamResponse({self.seq}, {self.event!r})"


Batch = Sequence[StreamResponse]


def ends_stream(event: Event, pauses: Container[TaskState] = ()) -> bool:
    """True if a stream of events ends with this one: an answer, the end of a task, or one of the states `pauses`."""
    kind = type(event)
    if kind is ArtifactUpdate:
        return False
    if kind is Message:
        return True
    state = event.status.state  # type: ignore[union-attr]
    return state.terminal or state in pauses


def trim_history(task: Task, history_length: int | None) -> Task:
    """The task with at most the last `history_length` messages; None keeps them all."""
    if history_length is None or len(task.history) <= history_length:
        return task
    return replace(task, history=task.history[len(task.history) - history_length :])


class Service(Protocol):
    """Something that can be talked to."""

    async def call(self, call: Call, request: Request) -> Any:
        """Perform a unary operation. Raises `A2AError`."""
        ...

    def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        """Perform a streaming operation. An error known before the first event is raised by the first `anext`.

        Closing the iterator stops the reading, never the task.
        """
        ...
