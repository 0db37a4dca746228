"""A record of a log as the console shows it: a line for people, and its JSON without secrets and without very long strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from dragoman.engine.records import (
    Attempt,
    Cancel,
    Child,
    Differs,
    Mail,
    Note,
    Question,
    Record,
    Step,
    TurnStarted,
)
from dragoman.model.content import Message, Part
from dragoman.model.ids import timestamp
from dragoman.model.task import ArtifactUpdate, StatusUpdate
from dragoman.model.usage import TokenUsage
from dragoman.observe.redact import has_shape, redact, redact_text, suspicious

MAX_STRING_CHARACTERS = 64 << 10
"""Characters of a string in `data`; the record itself has all of them."""
SUMMARY_CHARACTERS = 160
"""Characters of a summary."""

_encoder = msgspec.json.Encoder()


class RecordView(Struct, frozen=True, kw_only=True):
    seq: int
    time: str | None
    """When it was written, if that is known."""
    kind: str
    private: bool
    """Peers do not see it."""
    attempt: int
    summary: str
    data: Raw
    cut: int | UnsetType = UNSET
    """How many characters of long strings were left out of `data`."""


def view(record: Record, attempt: int, *, full: bool = False) -> RecordView:
    """`full`: with long strings."""
    raw = record.raw
    cut: int | UnsetType = UNSET
    if suspicious(raw) or (not full and len(raw) > MAX_STRING_CHARACTERS):
        value = redact(msgspec.json.decode(raw))
        if not full:
            value, left_out = shorten(value)
            cut = left_out or UNSET
        raw = _encoder.encode(value)
    return RecordView(
        seq=record.seq,
        time=time_of(record),
        kind=record.kind,
        private=not record.public and record.kind != "message",
        attempt=attempt,
        summary=summary(record),
        data=Raw(raw),
        cut=cut,
    )


def time_of(record: Record) -> str | None:
    """When it was written. Records of old logs have no time of their own: then the time in their body, if there is one."""
    if record.at:
        return timestamp(record.at / 1000)
    body = record.body
    if isinstance(body, Mail):
        return body.at or None
    if isinstance(body, StatusUpdate):
        return body.status.timestamp or None
    return None


def shorten(value: Any) -> tuple[Any, int]:
    """A JSON value with its long strings cut, and how many characters that left out."""
    if isinstance(value, str):
        return (
            (value[:MAX_STRING_CHARACTERS], len(value) - MAX_STRING_CHARACTERS)
            if len(value) > MAX_STRING_CHARACTERS
            else (value, 0)
        )
    if isinstance(value, dict):
        pairs = [(name, *shorten(item)) for name, item in value.items()]
        return {name: item for name, item, _ in pairs}, sum(cut for _, _, cut in pairs)
    if isinstance(value, list):
        items = [shorten(item) for item in value]
        return [item for item, _ in items], sum(cut for _, cut in items)
    return value, 0


# -- summaries -----------------------------------------------------------------------------------------------------


def summary(record: Record) -> str:
    """One line about a record."""
    body = record.body
    match body:
        case Mail():
            return one_line(describe_parts(body.message.parts))
        case Cancel():
            return one_line(f"cancel requested by {body.principal}" if body.principal else "cancel requested")
        case TokenUsage():
            text = f"{body.input_tokens} tokens in, {body.output_tokens} out"
            if body.called:
                return one_line(f"called {body.called}: {text} in all")
            return one_line(f"{body.model}: {text}" if body.model else text)
        case TurnStarted():
            return f"turn {body.n} answers message {body.mail}"
        case StatusUpdate():
            text = describe_parts(body.status.message.parts) if body.status.message else ""
            return one_line(f"{body.status.state.word}: {text}" if text else body.status.state.word)
        case ArtifactUpdate():
            text = describe_parts(body.artifact.parts)
            name = body.artifact.name or body.artifact.artifact_id
            return one_line(f"{name}: {text}" if text else name)
        case Message():
            return one_line(describe_parts(body.parts))
        case Step():
            return one_line(f"{body.key} = {_json(bytes(body.value))}")
        case Child():
            return one_line(f"{body.peer}: task {body.task}")
        case Note():
            return one_line(f"{body.name} {_json(_encoder.encode(body.data))}")
        case Attempt():
            return one_line(f"attempt {body.n} on {body.node}" if body.node else f"attempt {body.n}")
        case Question():
            return one_line(body.text or body.key)
        case Differs():
            return one_line(
                f"{body.what} {body.recorded} differs now: {body.now}"
                if body.now
                else f"{body.what} {body.recorded} is missing now"
            )


def describe_parts(parts: Sequence[Part]) -> str:
    """The text of parts, or what they are."""
    words: list[str] = []
    size = 0
    for part in parts:
        if size > SUMMARY_CHARACTERS:
            break
        words.append(_describe_part(part))
        size += len(words[-1])
    return " ".join(word for word in words if word)


def _describe_part(part: Part) -> str:
    if part.text is not None:
        return part.text[: SUMMARY_CHARACTERS * 2]
    if part.data is not UNSET:
        return _json(_encoder.encode(part.data))
    kind = f" ({part.media_type})" if part.media_type else ""
    return f"file {part.filename or 'without a name'}{kind}"


def _json(raw: bytes) -> str:
    """The beginning of JSON, without secrets."""
    if suspicious(raw):
        raw = _encoder.encode(redact(msgspec.json.decode(raw)))
    return raw[: SUMMARY_CHARACTERS * 2].decode("utf-8", "replace")


def one_line(text: str) -> str:
    """A text as one short line without control characters and without secrets."""
    return _cut_line(" ".join(redact_text(text).split()))


def _cut_line(line: str) -> str:
    line = line[: SUMMARY_CHARACTERS + 1]
    line = "".join(c if c.isprintable() else "�" for c in line) if not line.isprintable() else line
    return line if len(line) <= SUMMARY_CHARACTERS else line[: SUMMARY_CHARACTERS - 1] + "…"


def encode_frames(records: Sequence[Record], attempt: Callable[[int], int]) -> bytes:
    """Records as events of a stream. `attempt` says which attempt wrote a record.

    Most records are pieces of a text. They are searched for secrets together, and their JSON is sent without decoding it.
    """
    texts = [text for record in records if (text := _only_text(record))]
    clean = bool(texts) and not has_shape("\n".join(texts))
    return b"".join(
        [
            _encode_text(record, attempt(record.seq))
            if clean and _only_text(record)
            else b"id: %d\ndata: %b\n\n" % (record.seq, _encoder.encode(view(record, attempt(record.seq))))
            for record in records
        ]
    )


def _only_text(record: Record) -> str:
    """The text of a record that is a piece of an artifact and nothing else; empty for any other."""
    if record.kind != "artifact":
        return ""
    body: Any = record.body
    artifact = body.artifact
    parts = artifact.parts
    if len(parts) != 1 or body.metadata or artifact.metadata or artifact.description or parts[0].metadata:
        return ""
    text = parts[0].text or ""
    return text if len(text) <= MAX_STRING_CHARACTERS else ""


def _encode_text(record: Record, attempt: int) -> bytes:
    """The frame of a record that has `_only_text`, and no secret."""
    return (
        b'id: %d\ndata: {"seq":%d,"time":%b,"kind":"artifact","private":false,"attempt":%d,"summary":%b,"data":%b}\n\n'
        % (
            record.seq,
            record.seq,
            _encoder.encode(time_of(record)),
            attempt,
            _encoder.encode(_artifact_line(record.body)),
            record.raw,
        )
    )


def _artifact_line(body: Any) -> str:
    artifact = body.artifact
    text = artifact.parts[0].text[: SUMMARY_CHARACTERS * 2]
    line = " ".join(f"{artifact.name or artifact.artifact_id}: {text}".split())
    return line if len(line) <= SUMMARY_CHARACTERS and line.isprintable() else _cut_line(line)
