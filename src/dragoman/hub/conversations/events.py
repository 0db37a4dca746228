"""A task's log as the events of the native API.

The id of an event is the number of its record, so a client that reconnects with the last id misses nothing and gets nothing
twice. `request_received` is the first message of the task, `done` its end; between them are the notes of the agent
(`agents/event_writer.py`) and the text of its answer. An agent that is code writes no notes: its artifacts become events.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from dragoman.engine.follow import Reader, Readers
from dragoman.engine.protocols import Head, TaskInfo
from dragoman.engine.records import Mail, Note, Record
from dragoman.engine.snapshot import Snapshot
from dragoman.hub.models import Usage
from dragoman.hub.store.conversations import Conversations
from dragoman.hub.store.requests import StoredRequest
from dragoman.hub.store.tenants import Tenant
from dragoman.model.content import Message, Part
from dragoman.model.questions import questions_in
from dragoman.model.task import ArtifactUpdate, StatusUpdate, TaskState

PREVIEW_CHARACTERS = 200
"""Characters of the message in `request_received`."""

_encode = msgspec.json.Encoder().encode


class HubEvent(NamedTuple):
    kind: str
    payload: dict[str, Any]
    seq: int = 0
    """The number of its record. Only the last event of a record has it; 0: the others."""

    @property
    def frame(self) -> bytes:
        id = b"id: %d\n" % self.seq if self.seq else b""
        return b"%bevent: %b\ndata: %b\n\n" % (id, self.kind.encode(), _encode(self.payload))


class EventFrames:
    """Encodes events; `done` ends the stream."""

    def batch(self, batch: Sequence[HubEvent]) -> tuple[bytes, bool]:
        return b"".join([event.frame for event in batch]), any(event.kind == "done" for event in batch)


async def events(
    readers: Readers, head: Head, event_reader: HubEventReader, since: int = 0
) -> AsyncIterator[list[HubEvent]]:
    """The events after `since`, up to `done`, as they happen."""
    with Reader(readers, head, 0) as reader:
        ended = False
        while not ended:
            records = await reader.next()
            batch = [event for record in records for event in event_reader.read(record) if record.seq > since]
            waits = records[-1].kind == "ask" and records[-1].seq >= head.seq  # else it has been answered
            if waits:
                batch += event_reader.waiting(records[-1])
            ended = waits or any(record.terminal for record in records)
            if batch:
                yield batch


class HubEventReader:
    """Turns the records of one log, from its start, into events."""

    def __init__(self, tenant: Tenant, stored: StoredRequest, *, code: bool = False) -> None:
        self._tenant, self._stored, self._code = tenant, stored, code
        self._text = f"{stored.request_id}-text-0"
        self._mail: Mail | None = None
        self._files = 0
        self._used = Usage()
        """Tokens of the agent itself, for a request that ends without a sum."""
        self._texts: dict[str, list[str]] = {}
        """The text by artifact, in pieces."""
        self._streams: dict[int, str] = {}
        """The open streams, and their agents."""

    def read(self, record: Record) -> list[HubEvent]:
        """The events of a record. Only the last one has the record's number."""
        events = self._read(record)
        return [HubEvent(kind, payload) for kind, payload in events[:-1]] + [
            HubEvent(kind, payload, record.seq) for kind, payload in events[-1:]
        ]

    def _read(self, record: Record) -> list[tuple[str, dict[str, Any]]]:
        body = record.body
        match body:
            case Mail() if self._mail is None:
                self._mail = body
                return [("request_received", self._request_payload(body))]
            case Note():
                if body.name == "file":
                    self._files += int(body.data.get("size", 0))
                elif body.name == "token_usage" and body.data["stream_id"] == 0:
                    self._used += Usage(
                        input_tokens=body.data["input_tokens"], output_tokens=body.data["output_tokens"]
                    )
                elif body.name == "stream_start":
                    self._streams[body.data["stream_id"]] = body.data["agent"]
                elif body.name == "stream_end":
                    self._streams.pop(body.data["stream_id"], None)
                return [(body.name, body.data)]
            case ArtifactUpdate():
                return self._artifact(body)
            case StatusUpdate() if record.terminal:
                return self._end_events(
                    body.status.state, body.status.message, body.metadata, body.status.timestamp
                )
            case StatusUpdate():
                return self._status(record, body)
            case Message() if record.kind == "reply":
                return self._end_events(TaskState.COMPLETED, body, {}, "")
        return []

    def waiting(self, record: Record) -> list[HubEvent]:
        """The last events of a request that waits for input."""
        assert isinstance(record.body, StatusUpdate)
        question = record.body.status.message
        error = {"error": "the agent asks for an answer", "error_code": record.body.status.state.word}
        text = question.text if question is not None else ""
        done = self._done_payload(False, text, {}, record.body.status.timestamp) | error
        return [
            *(HubEvent(kind, payload) for kind, payload in self._stream_ends(False)),
            HubEvent("done", done),
        ]

    # -- payloads ----------------------------------------------------------------------------------------------

    def _request_payload(self, mail: Mail) -> dict[str, Any]:
        text = mail.message.text
        out = {
            "request_id": self._stored.request_id,
            "agent": self._stored.agent_id,
            "tenant_id": self._tenant.id,
            "tenant": self._tenant.name,
            "message": text if len(text) <= PREVIEW_CHARACTERS else text[:PREVIEW_CHARACTERS] + "…",
        }
        channel = mail.metadata.get("x-arbiter.channel")
        return {**out, "channel": channel} if channel else out

    def _artifact(self, update: ArtifactUpdate) -> list[tuple[str, dict[str, Any]]]:
        artifact = update.artifact
        if artifact.artifact_id == self._text:
            return self._delta(self._text, artifact.text, replaces=not update.append and bool(self._texts))
        if not self._code:
            return []  # a note has the same
        out = []
        for part in artifact.parts:
            if part.text is not None:
                out += self._delta(artifact.artifact_id, part.text)
            elif part.data is not msgspec.UNSET:
                out.append(("data", {**self._agent_fields, "name": artifact.name, "data": part.data}))
            else:
                out.append(("file", self._file(part, artifact.name)))
        return out

    def _delta(self, id: str, text: str, *, replaces: bool = False) -> list[tuple[str, dict[str, Any]]]:
        if not text and not replaces:
            return []
        if replaces:
            self._texts.clear()
        self._texts.setdefault(id, []).append(text)
        return [("text", {**self._agent_fields, "delta": text, **({"replaces": True} if replaces else {})})]

    def _file(self, part: Part, name: str) -> dict[str, Any]:
        path = part.filename or name
        if part.raw is None:
            return {**self._agent_fields, "path": path, "size": 0, "url": part.url}
        self._files += len(part.raw)
        try:
            encoding, content = "utf-8", part.raw.decode()
        except UnicodeDecodeError:
            encoding, content = "base64", msgspec.to_builtins(part.raw)
        return {
            **self._agent_fields,
            "path": path,
            "size": len(part.raw),
            "encoding": encoding,
            "content": content,
        }

    def _status(self, record: Record, update: StatusUpdate) -> list[tuple[str, dict[str, Any]]]:
        out: list[tuple[str, dict[str, Any]]] = []
        if self._code and not self._streams:
            self._streams[0] = self._stored.agent_id
            out.append(("stream_start", self._agent_fields))
        text = update.status.message.text if update.status.message is not None else ""
        if text and record.kind == "ask":
            assert update.status.message is not None
            asked: dict[str, Any] = {"message": text, "state": update.status.state.word}
            for question in questions_in(update.status.message.metadata)[:1]:
                asked |= {"approval": question.approval, "details": question.details}
            out.append(("question", {**self._agent_fields, **asked}))
        elif text:
            out.append(("progress", {**self._agent_fields, "message": text}))
        return out

    def _end_events(
        self, state: TaskState, message: Message | None, metadata: dict[str, Any], at: str
    ) -> list[tuple[str, dict[str, Any]]]:
        ok = state is TaskState.COMPLETED
        received = "\n".join("".join(pieces) for pieces in self._texts.values())
        text = message.text if message is not None else received
        out = self._stream_ends(ok)
        end = self._done_payload(ok, text if ok else received, metadata, at)
        if not ok:
            error, code = _failure(state, text, metadata)
            out.append(("error", {"message": error, "reason": code}))
            end |= {"error": error, "error_code": code}
        return [*out, ("done", end)]

    def _stream_ends(self, ok: bool) -> list[tuple[str, dict[str, Any]]]:
        """`stream_end` for streams that are still open: of code agents, and of stopped ones."""
        open = [("stream_end", {"agent": a, "stream_id": n, "ok": ok}) for n, a in self._streams.items()]
        return open[::-1]

    def _done_payload(self, ok: bool, content: str, metadata: dict[str, Any], at: str) -> dict[str, Any]:
        end = {
            "ok": ok,
            "content": content,
            "input_tokens": metadata.get("x-arbiter.input_tokens", self._used.input_tokens),
            "output_tokens": metadata.get("x-arbiter.output_tokens", self._used.output_tokens),
            "files_bytes": self._files,
            "tenant_id": self._tenant.id,
            "request_id": self._stored.request_id,
            "duration_ms": _milliseconds_between(self._mail.at if self._mail else "", at),
        }
        if self._stored.conversation_id:
            end["conversation_id"] = self._stored.conversation_id
        if metadata.get("x-arbiter.stop_reason") == "max_tokens":
            end["truncated"] = True
        if metadata.get("x-arbiter.gate_approved"):
            end["gate_approved"] = True
        return end

    @property
    def _agent_fields(self) -> dict[str, Any]:
        return {"agent": self._stored.agent_id, "stream_id": 0, "depth": 0}


def state_of(snapshot: Snapshot) -> str:
    """`running`, `input-required`, `auth-required`, `completed`, `failed` or `canceled`."""
    return _state_word(snapshot.state, done=snapshot.terminal, replied=snapshot.reply is not None)


def _state_word(state: TaskState, *, done: bool, replied: bool) -> str:
    if not done:
        return state.word if state.interrupted else "running"
    if replied:
        return "completed"
    return "failed" if state is TaskState.REJECTED else state.word


def answer_of(snapshot: Snapshot) -> tuple[str, dict[str, int]]:
    """The text of a finished request's answer, and how many tokens its models have `read` and `written`."""
    message, used = snapshot.reply or snapshot.status.message, snapshot.metadata
    text = message.text if message is not None else snapshot.task.text
    return text, {
        "read": used.get("x-arbiter.input_tokens", 0),
        "written": used.get("x-arbiter.output_tokens", 0),
    }


async def store_answer(conversations: Conversations, conversation: int, ended: Snapshot) -> None:
    """Add the answer of a request that has ended to its conversation, if there is one."""
    text, used = answer_of(ended)
    answer = text if state_of(ended) == "completed" else None
    await conversations.add_answer(int(ended.scope.tenant), conversation, ended.task_id, answer, **used)


def describe_request(stored: StoredRequest, info: TaskInfo, last: StatusUpdate | None) -> dict[str, Any]:
    """`last`: the last status of a request that failed or waits."""
    message, waits = last.status.message if last is not None else None, dict[str, Any]()
    text = message.text if message is not None else ""
    state = _state_word(info.state, done=info.done, replied=info.hidden)  # by a bare message
    if not info.done and info.state.interrupted:
        questions = questions_in(message.metadata) if message is not None else ()
        wants_yes = bool(questions) and all(question.approval for question in questions)
        waits = {"question": text, "approval": wants_yes}
        if len(questions) == 1 and questions[0].details is not None:
            waits["details"] = questions[0].details
    error = ""
    if info.done and state != "completed":
        error = _failure(info.state, text, last.metadata if last is not None else {})[0]
    return {
        **waits,
        "request_id": stored.request_id,
        "agent_id": stored.agent_id,
        "conversation_id": stored.conversation_id,
        "via": stored.via,
        "state": state,
        "started_at": stored.started_at or _seconds(info.updated),
        "completed_at": _seconds(info.updated) if info.done else 0,
        "error_message": error,
        "last_seq": info.seq,
    }


def _failure(state: TaskState, text: str, metadata: dict[str, Any]) -> tuple[str, str]:
    """The error of a request: a sentence and a code."""
    if state is TaskState.CANCELED:
        return "the request was canceled", "cancelled"
    error = metadata.get("x-arbiter.error") or text or "the agent failed"
    word = "rejected" if state is TaskState.REJECTED else "internal_error"
    return str(error), str(metadata.get("x-arbiter.error_type") or word)


def _seconds(at: str) -> int:
    return int(datetime.fromisoformat(at).timestamp()) if at else 0


def _milliseconds_between(start: str, end: str) -> int:
    if not start or not end:
        return 0
    return round((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() * 1000)
