"""A version of the protocol: how its documents read and write.

Dialects are symmetric, so client and server share them: a server reads requests and writes results, a client the other
way round. They do no I/O and keep no state; what a stream needs to remember lives in the `EventWriter` made for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from dragoman.dialects import errors
from dragoman.errors import A2AError
from dragoman.model.content import Part
from dragoman.model.ops import STREAM, Op, Request, StreamResponse
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


class Dialect(Protocol):
    """The defaults are those of 0.3; a dialect sets what differs."""

    name: str
    """`1.0`, `0.3`, `0.2`, `0.2-type`, `0.1`, `draft`, `arbiter`: also stored as a task's origin."""
    family: str
    """The version of A2A that the dialect belongs to."""
    version: str
    """The `A2A-Version` that a client of this dialect sends; empty if it sends none."""

    methods: ClassVar[dict[Op, str]]
    """The JSON-RPC methods of its operations."""
    is_current: bool = False
    """It is the newest version of A2A."""

    # What callers of this dialect expect of the operations.
    names_tasks: bool = False
    """Clients choose the ids of new tasks."""
    names_configs: bool = False
    """Clients choose the ids of new push configs."""
    gets_configs_by_id: bool = False
    """A request for a push config has to name its id. In the other versions it need not: a task has only one, or any is an answer."""
    always_waits: bool = False
    """A send cannot ask to be answered before the task stops."""
    strict_cancel: bool = True
    """Canceling a canceled task is an error."""
    cancel_error_is_invalid_request: bool = False
    """That error is `InvalidRequest`: such an error does not mean that the peer speaks another version."""
    subscribes_to_finished: bool = True
    """A subscription to a finished task sends the task; in 1.0 it is an error."""
    subscription_repeats: bool = False
    """A subscription sends all events again, from the first."""
    resumable: bool = True
    """A stream can continue after an event without sending the task first."""
    ends_on_interrupt: bool = True
    """A subscription ends when the task asks for input (1.0 keeps it open)."""
    signs_cards: bool = False
    """The extended card has signatures."""
    extended_card_has_one_error: bool = True
    """An agent without an extended card answers `ExtendedCardNotConfigured` for every reason."""
    extended_card_path: str = ""
    """The page with the extended card, below the endpoint; empty if an operation returns the card."""

    # How its documents travel.
    rest_version: str = "0.3"
    """The key of its paths in `paths.PATHS`."""
    model_json: bool = False
    """Documents are the model's own JSON."""
    extensions_header: bytes = b"x-a2a-extensions"
    sse_event: str = ""
    """The `event:` line of each event of a JSON-RPC stream; empty for none."""
    subscribe_errors_as_events: bool = False
    """Clients read nothing but an event stream in answer to a subscription, even if it is an error."""
    requires_jsonrpc_member: bool = False
    """A request without `"jsonrpc": "2.0"` is refused."""
    refuses_push: bool = False
    """It knows the methods of push configs, and has an error of its own for them."""
    checks_version_first: bool = False
    """A server checks `A2A-Version` before it reads the body, so the refusal has no id."""

    def method(self, op: Op) -> str:
        """The JSON-RPC method name; empty if the version does not have the operation."""
        return self.methods.get(op, "")

    def read_request(self, op: Op, params: bytes) -> Request:
        """Parameters (raw JSON, empty when absent) to a request. Raises `InvalidParams`."""
        ...

    def check_strictly(self, params: bytes) -> None:
        """Check what only an agent that speaks no other dialect insists on. Raises `InvalidParams`."""
        return

    def write_request(self, op: Op, request: Request) -> bytes: ...

    def read_result(self, op: Op, result: Any) -> Any:
        """A decoded JSON `result` to the model. Raises `InvalidAgentResponse`."""
        ...

    def write_result(self, op: Op, result: Any, request: Request | None = None) -> bytes:
        """A result as JSON. `request` is what was asked: some versions repeat parts of it in the answer."""
        ...

    def write_parts(self, parts: Sequence[Part]) -> bytes:
        """The JSON array of parts in an artifact or a message of the history."""
        ...

    def writer(self, request: Request | None = None) -> EventWriter: ...

    def read_event(self, document: Any) -> Event:
        """An event of a stream (already decoded from JSON). Raises `InvalidAgentResponse`."""
        event: Event = self.read_result(STREAM, document)
        return event

    def read_error(self, error: Any, *, http: int = 200) -> A2AError:
        return errors.read_error(error, self.name, http=http)

    def write_error(self, error: A2AError) -> dict[str, Any]:
        """The JSON-RPC `error` member: code, message, data."""
        return errors.write_error(error, self.name)

    def refuse_strictly(self, error: A2AError, status: int, body: bytes) -> tuple[int, bytes]:
        """The HTTP status and the body of an error from an agent that speaks no other dialect."""
        return status, body
