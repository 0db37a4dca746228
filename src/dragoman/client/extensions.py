"""Extensions on the client's side: `connect(url, extensions=[TimestampClient()])`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.model.content import Artifact, Message
from dragoman.model.ids import timestamp
from dragoman.model.ops import Batch, Call, SendMessage, StreamResponse
from dragoman.model.task import Event


class ClientExtension:
    """What a client does for an extension. Set `uri`, and override what it needs. It is asked for with every message."""

    uri: str = ""

    def on_send(self, request: SendMessage) -> SendMessage:
        """Before a message is sent. Returns it, or another one."""
        return request

    def on_event(self, event: Event) -> Event:
        """For each event of a stream, and for each task or message that answers a request."""
        return event


def uris_of(extensions: Sequence[str | ClientExtension]) -> tuple[str, ...]:
    return tuple(each if isinstance(each, str) else each.uri for each in extensions)


def prepare(
    extensions: Sequence[str | ClientExtension], call: Call, request: SendMessage
) -> tuple[Call, SendMessage]:
    """A call and a message that ask for `extensions`."""
    if not extensions:
        return call, request
    asked = tuple(dict.fromkeys((*call.extensions, *uris_of(extensions))))
    for each in extensions:
        if isinstance(each, ClientExtension):
            request = each.on_send(request)
    message = request.message
    named = tuple(dict.fromkeys((*message.extensions, *uris_of(extensions))))
    return replace(call, extensions=asked), replace(request, message=replace(message, extensions=named))


def read_event(extensions: Sequence[str | ClientExtension], event: Any) -> Any:
    for each in extensions:
        if isinstance(each, ClientExtension):
            event = each.on_event(event)
    return event


def read_batch(extensions: Sequence[str | ClientExtension], batch: Batch) -> Batch:
    return [StreamResponse(read_event(extensions, each.event), each.seq) for each in batch]


class TimestampClient(ClientExtension):
    """Asks for timestamps, and adds them to messages that are sent: the timestamp extension of the A2A samples."""

    uri = "https://github.com/a2aproject/a2a-samples/samples/extensions/timestamp/v1"
    key = uri.removeprefix("https://") + "/timestamp"

    def on_send(self, request: SendMessage) -> SendMessage:
        message = request.message
        return replace(
            request, message=replace(message, metadata={**message.metadata, self.key: timestamp()})
        )

    def time_of(self, content: Message | Artifact) -> str:
        """When a message or an artifact was made; empty if it does not say."""
        found = content.metadata.get(self.key)
        return found if isinstance(found, str) else ""
