"""Report what an agent does, to A2A peers and to readers of the native API.

The agent that was asked reports to peers through artifacts (`<task>-text-0`, `<task>-tool-<n>`, `<task>-file-<n>`,
`<task>-sub-<n>`) and to native readers through notes in the log: every event but `text`, which is in the text artifact, and
`request_received`, `error` and `done`, which `conversations/events.py` adds.

An agent that another agent of this hub asked reports to that agent: its events become data parts of one artifact,
`<task>-events`, and the other agent forwards them. Parts are only added, so each event is forwarded once, also after a crash.

A model that is asked again after a crash may reply differently. Then the new text replaces all earlier text: in the text
artifact, and in events with `replaces`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import msgspec

from dragoman.engine.artifact_writer import ArtifactWriter
from dragoman.engine.snapshot import ArtifactInProgress
from dragoman.engine.turn import Turn, record_of
from dragoman.model.content import Part

STREAM_ID_STEP = 1000
"""Stream `n` gives the streams that it starts the ids from `n * STREAM_ID_STEP + 1` on."""
EVENT_NUMBER_STEP = 100_000
"""Stream `n` numbers its events from `n * EVENT_NUMBER_STEP` on, so the numbers do not depend on the order of streams."""


class HubEventWriter:
    def __init__(
        self, turn: Turn, agent: str, *, depth: int = 0, stream_id: int = 0, relayed: bool = False
    ) -> None:
        self._turn, self._agent, self._depth, self._stream = turn, agent, depth, stream_id
        self.counts: dict[str, int] = {}
        """Events of each kind so far; part of the recorded result of a command."""
        self._turn_suffix = "" if turn.n == 1 else f"-{turn.n}"
        """Suffix of the artifact ids of a later turn."""
        self._text: ArtifactWriter | None = None
        self._relay: ArtifactWriter | None = None
        self._waiting: list[tuple[str, dict[str, Any]]] | None = None
        """Events that wait for the gate."""
        self._earlier_events: Counter[bytes] = Counter()
        self._line: list[str] = []
        """The current line of forwarded text, in pieces."""
        self._has_text = False
        self._gap = False
        """An empty line separates the next text from the reply before."""
        self._earlier_text = ""
        """Forwarded text from before a crash, until this run has repeated all of it."""
        self._repeated = 0
        """Characters of it that this run has repeated."""
        if relayed:
            self._relay = turn.artifact("x-arbiter.events", id=events_id(turn.task_id) + self._turn_suffix)
            self._load_earlier_events([part.data for part in self._relay.keep()])
        written = self._text_in_progress()
        self._unrepeated = len(self._earlier_text) + sum(
            len(part.text or "") for part in (written.parts if written is not None else ())
        )
        """Characters from before a crash that this run has not repeated."""

    @property
    def _text_id(self) -> str:
        return f"{self._turn.task_id}-text-0{self._turn_suffix}"

    @property
    def relayed(self) -> bool:
        return self._relay is not None

    def take_unrepeated(self) -> int:
        """Characters of an unrecorded reply that were reported before a crash. Returned once."""
        lost, self._unrepeated = max(0, self._unrepeated), 0
        return lost

    def next_stream(self) -> int:
        """The id for the next delegated stream."""
        self.counts["stream"] = n = self.counts.get("stream", 0) + 1
        return self._stream * STREAM_ID_STEP + n

    async def emit(self, kind: str, /, **payload: Any) -> None:
        """Report an event of this agent."""
        payload |= {"agent": self._agent, "stream_id": self._stream}
        if kind not in _WITHOUT_DEPTH:
            payload["depth"] = self._depth
        await self.forward(kind, payload)

    async def forward(self, kind: str, payload: dict[str, Any]) -> None:
        """Report an event as it is, perhaps of another agent."""
        if self._waiting is not None:
            self._waiting.append((kind, payload))
            return
        if self._relay is not None:
            event = {"kind": kind, "data": payload}
            raw = msgspec.json.encode(event)
            if self._earlier_events[raw] > 0:
                self._earlier_events[raw] -= 1
            else:
                await self._relay.write(Part(data=event))
            return
        if (part := ARTIFACT_EVENTS.get(kind)) is not None:
            await self._write_artifact(kind, part, payload)
        await self._turn.note(kind, payload)

    def hold(self) -> None:
        """Hold events until `release`."""
        self._waiting = []

    async def release(self, *, without: Collection[str] = ()) -> None:
        """Report the held events, except some kinds."""
        held, self._waiting = self._waiting, None
        for kind, payload in held or ():
            if kind not in without:
                await self.forward(kind, payload)

    async def text(self, delta: str) -> None:
        """Report text of the reply as it is generated."""
        if not delta:
            return
        if self._gap:
            delta = "\n\n" + delta
        self._has_text, self._gap = True, False
        self._unrepeated -= len(delta)
        if self._relay is None:
            await self._text_writer().write(delta)
            return
        # Whole lines are the same however the model splits its reply.
        *lines, rest = delta.split("\n")
        for line in lines:
            await self._relay_text("".join(self._line) + line + "\n")
            self._line = []
        self._line += [rest] if rest else []

    async def pause(self) -> None:
        """The reply is complete; another may follow."""
        if self._line:
            line, self._line = "".join(self._line), []
            await self._relay_text(line)
        self._gap = self._has_text

    async def close(self) -> None:
        """End the report. Text from before a crash that was not repeated is removed."""
        if self._relay is not None:
            if self._earlier_text:
                await self.emit("text", delta=self._earlier_text[: self._repeated], replaces=True)
            return
        if self._text is None and self._text_in_progress() is not None:
            await self._text_writer().write("")
        if self._text is not None:
            self._text.finish()
            self._text.close()

    def _text_in_progress(self) -> ArtifactInProgress | None:
        """The recorded text of this turn."""
        known = record_of(self._turn).journal.snapshot.artifacts.get(self._text_id)
        return known if known is not None and known.turn == self._turn.n else None

    def _text_writer(self) -> ArtifactWriter:
        if self._text is None:
            self._text = self._turn.artifact("response", id=self._text_id, description="What the agent says.")
        return self._text

    async def _relay_text(self, delta: str) -> None:
        """Report text as an event, unless it is recorded; if it differs from the record, replace all of it."""
        if not self._earlier_text:
            await self.emit("text", delta=delta)
            return
        old, at = self._earlier_text, self._repeated
        self._repeated += len(delta)
        if self._repeated < len(old) and old.startswith(delta, at):
            return
        self._earlier_text, self._repeated = "", 0
        if not delta.startswith(old[at:]):
            await self.emit("text", delta=old[:at] + delta, replaces=True)
        elif more := delta[len(old) - at :]:
            await self.emit("text", delta=more)

    def _load_earlier_events(self, events: list[dict[str, Any]]) -> None:
        """Load the events from before a crash."""
        text: list[str] = []
        for event in events:
            payload = event["data"]
            if event["kind"] == "text" and payload["stream_id"] == self._stream:
                if payload.get("replaces"):
                    text.clear()
                text.append(payload["delta"])
            else:
                self._earlier_events[msgspec.json.encode(event)] += 1
        self._earlier_text = "".join(text)

    async def _write_artifact(self, kind: str, word: str, payload: dict[str, Any]) -> None:
        """Report an event as an artifact `<task>-<word>-<number>`."""
        stream = n = payload["stream_id"]
        if kind != "sub_agent_response":
            count = f"{kind}/{stream}"
            seen = self.counts[count] = self.counts.get(count, -1) + 1
            n = seen if stream == self._stream else stream * EVENT_NUMBER_STEP + seen
        name, description, part = kind, "", _part(kind, payload)
        if kind == "file":
            name = payload["path"]
        elif kind == "sub_agent_response":
            description = f"{payload['agent']} (depth {payload['depth']})"
        writer = self._turn.artifact(
            name, id=f"{self._turn.task_id}-{word}-{n}{self._turn_suffix}", description=description
        )
        await writer.write(part, last=True)


def events_id(task: str) -> str:
    """The id of the artifact with the events of a delegated task."""
    return f"{task}-events"


ARTIFACT_EVENTS = {"tool_call": "tool", "file": "file", "sub_agent_response": "sub"}
"""Events that are also artifacts, and the word in their ids."""
ANSWER_EVENTS = frozenset({"text", "sub_agent_response"})
"""Events that contain an answer."""
_WITHOUT_DEPTH = frozenset({"text", "advisor", "escalation", "stream_end", "intent"})


def _part(kind: str, payload: dict[str, Any]) -> Part:
    if kind == "file":
        return Part(raw=payload["content"].encode(), filename=payload["path"], media_type="text/plain")
    members = ("tool", "ok", "interrupted") if kind == "tool_call" else ("agent", "depth", "content")
    return Part(
        data={name: payload[name] for name in members if name in payload},
        metadata={f"x-arbiter.{kind}": True},
    )
