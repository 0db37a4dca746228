"""A version of the protocol: how its documents read and write.

Dialects are symmetric, so client and server share them: a server reads requests and writes results, a client the other
way round. They do no I/O and keep no state; what a stream needs to remember lives in the `EventWriter` made for it.
"""

from __future__ import annotations

from typing import Any, Protocol

from dragoman.errors import A2AError
from dragoman.model.ops import Op, Request, StreamResponse
from dragoman.model.task import Event


class EventWriter(Protocol):
    """Writes one stream.

    `fail(error)`, if it has that, gives the documents that end a stream which broke. `openings`, if it has them, say that
    an event's own JSON is this dialect's too: it stands after the opening of its type, and before a brace.
    """

    def write(self, response: StreamResponse, *, last: bool) -> list[bytes]:
        """The JSON documents (the JSON-RPC `result`s) for one event, in order; there may be none, or several.

        `last`: the stream ends with this event; versions that mark that (`final`) mark it.
        """
        ...


class EventReader(Protocol):
    """Reads one stream."""

    def read(self, result: Any) -> list[Event]:
        """The events in one JSON document (already decoded from JSON)."""
        ...


class Dialect(Protocol):
    name: str
    """`1.0`, `0.3`, `0.2`, `0.2-type`, `0.1`, `draft`, `arbiter`: also what is stored as a task's origin."""
    version: str
    """The `A2A-Version` a client of this dialect sends; empty when it sends none."""
    names_tasks: bool
    """Clients choose the ids of new tasks."""
    names_configs: bool
    """Clients choose the ids of new push configs."""
    strict_cancel: bool
    """Canceling a canceled task is an error."""
    resumable: bool
    """A stream can be continued after an event without repeating the task first."""
    ends_on_interrupt: bool
    """A subscription, too, ends when the task asks for input (1.0 keeps it open)."""

    def method(self, op: Op) -> str:
        """The JSON-RPC method name; empty if the version does not have the operation."""
        ...

    def read_request(self, op: Op, params: bytes) -> Request:
        """Parameters (raw JSON, empty when absent) to a request. Raises `InvalidParams`."""
        ...

    def write_request(self, op: Op, request: Request) -> bytes: ...

    def read_result(self, op: Op, result: Any) -> Any:
        """A decoded JSON `result` to the model. Raises `InvalidAgentResponse`."""
        ...

    def write_result(self, op: Op, result: Any, request: Request | None = None) -> bytes:
        """A result as JSON. `request` is what was asked: some versions repeat parts of it in the answer."""
        ...

    def writer(self, request: Request | None = None) -> EventWriter: ...

    def reader(self) -> EventReader: ...

    def read_error(self, error: Any, *, http: int = 200) -> A2AError: ...

    def write_error(self, error: A2AError) -> dict[str, Any]:
        """The JSON-RPC `error` member: code, message, data."""
        ...
