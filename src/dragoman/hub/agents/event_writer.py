"""Tell what happens while an agent thinks: to peers, and to readers of the native API.

The first agent's turn tells peers through artifacts (`<task>-text-0`, `<task>-tool-<n>`, `<task>-file-<n>`,
`<task>-sub-<n>`) and native readers through notes in the log: every event of the native catalogue but `text` of the first
agent, which the text artifact has, and `request_received`, `error` and `done`, which the API makes.

An agent that another one of this hub asked tells the asker instead: its events become data parts of one artifact,
`<task>-events`, and the asker passes them on. That artifact is only ever added to, so after a crash on either side each
event is told once.

A model that is asked again after a crash may say something else than what was told already. Then what it says now takes
the place of all text before it: in the text artifact as ever, in events with `replaces`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import msgspec

from dragoman.engine.recorded import ArtifactWriter
from dragoman.engine.records import ArtifactInProgress
from dragoman.engine.turn import Turn, record_of
from dragoman.model.content import Part

STREAMS = 1000
"""Stream ids of the agents that stream `n` asks begin at `n * STREAMS + 1`."""
EVENTS = 100_000
"""The numbers of what stream `n` did begin at `n * EVENTS`: the same however streams interleave."""


class EventWriter:
    def __init__(
        self, turn: Turn, agent: str, *, depth: int = 0, stream_id: int = 0, relayed: bool = False
    ) -> None:
        self._turn, self._agent, self._depth, self._stream = turn, agent, depth, stream_id
        self.counts: dict[str, int] = {}
        """How many of each kind were told; part of what a recorded command left behind."""
        self._later = "" if turn.n == 1 else f"-{turn.n}"
        """What a later turn adds to the ids of its artifacts: they stand beside those of the first."""
        self._text: ArtifactWriter | None = None
        self._relay: ArtifactWriter | None = None
        self._held: list[tuple[str, dict[str, Any]]] | None = None
        """Events that wait until it is clear what of them may leave."""
        self._known: Counter[bytes] = Counter()
        self._line: list[str] = []
        """Of text in events: what has come of a line."""
        self._said = self._gap = False
        self._old = ""
        """Text in events from before a crash, as long as this run has not said all of it again."""
        self._again = 0
        """How many characters of it this run has said again."""
        if relayed:
            self._relay = turn.artifact("x-arbiter.events", id=events_id(turn.task_id) + self._later)
            self._remember([part.data for part in self._relay.keep()])
        told = self._told()
        self._unsaid = len(self._old) + sum(
            len(part.text or "") for part in (told.parts if told is not None else ())
        )
        """Characters of text from before a crash that this run has not said again."""

    @property
    def _text_id(self) -> str:
        return f"{self._turn.task_id}-text-0{self._later}"

    @property
    def relayed(self) -> bool:
        return self._relay is not None

    def lost(self) -> int:
        """How much text was told before a crash of a reply that is not on record. Asked once, when it is asked for again."""
        lost, self._unsaid = max(0, self._unsaid), 0
        return lost

    def next_stream(self) -> int:
        """The id of the next stream that this one begins."""
        self.counts["stream"] = n = self.counts.get("stream", 0) + 1
        return self._stream * STREAMS + n

    async def emit(self, kind: str, /, **payload: Any) -> None:
        """An event of this agent's own."""
        payload |= {"agent": self._agent, "stream_id": self._stream}
        if kind not in _WITHOUT_DEPTH:
            payload["depth"] = self._depth
        await self.forward(kind, payload)

    async def forward(self, kind: str, payload: dict[str, Any]) -> None:
        """An event as it is; perhaps another agent's."""
        if self._held is not None:
            self._held.append((kind, payload))
            return
        if self._relay is not None:
            event = {"kind": kind, "data": payload}
            raw = msgspec.json.encode(event)
            if self._known[raw] > 0:
                self._known[raw] -= 1
            else:
                await self._relay.write(Part(data=event))
            return
        if (part := ARTIFACTS.get(kind)) is not None:
            await self._artifact(kind, part, payload)
        await self._turn.note(kind, payload)

    def hold(self) -> None:
        """Keep events back from now on, until `release`."""
        self._held = []

    async def release(self, *, without: Collection[str] = ()) -> None:
        """Tell what was kept back, but for some kinds."""
        held, self._held = self._held, None
        for kind, payload in held or ():
            if kind not in without:
                await self.forward(kind, payload)

    async def text(self, delta: str) -> None:
        """What the agent says, as it says it."""
        if not delta:
            return
        if self._gap:
            delta = "\n\n" + delta
        self._said, self._gap = True, False
        self._unsaid -= len(delta)
        if self._relay is None:
            await self._writer().write(delta)
            return
        # Whole lines, because they are the same however the model cuts its answer into pieces.
        *lines, rest = delta.split("\n")
        for line in lines:
            await self._relayed_text("".join(self._line) + line + "\n")
            self._line = []
        self._line += [rest] if rest else []

    async def pause(self) -> None:
        """The model has finished a reply; another may follow."""
        if self._line:
            line, self._line = "".join(self._line), []
            await self._relayed_text(line)
        self._gap = self._said

    async def close(self) -> None:
        """Nothing more will be said. What was told before a crash and is not said by now was never said."""
        if self._relay is not None:
            if self._old:
                await self.emit("text", delta=self._old[: self._again], replaces=True)
            return
        if self._text is None and self._told() is not None:
            await self._writer().write("")
        if self._text is not None:
            self._text.finish()
            self._text.close()

    def _told(self) -> ArtifactInProgress | None:
        """The text of this turn that is on record."""
        known = record_of(self._turn).snapshot.artifacts.get(self._text_id)
        return known if known is not None and known.turn == self._turn.n else None

    def _writer(self) -> ArtifactWriter:
        if self._text is None:
            self._text = self._turn.artifact("response", id=self._text_id, description="What the agent says.")
        return self._text

    async def _relayed_text(self, delta: str) -> None:
        """Text as an event, unless it is on record; if it differs from that, all of it, in its place."""
        if not self._old:
            await self.emit("text", delta=delta)
            return
        old, at = self._old, self._again
        self._again += len(delta)
        if self._again < len(old) and old.startswith(delta, at):
            return
        self._old, self._again = "", 0
        if not delta.startswith(old[at:]):
            await self.emit("text", delta=old[:at] + delta, replaces=True)
        elif more := delta[len(old) - at :]:
            await self.emit("text", delta=more)

    def _remember(self, told: list[dict[str, Any]]) -> None:
        """Events that were told before a crash."""
        text: list[str] = []
        for event in told:
            payload = event["data"]
            if event["kind"] == "text" and payload["stream_id"] == self._stream:
                if payload.get("replaces"):
                    text.clear()
                text.append(payload["delta"])
            else:
                self._known[msgspec.json.encode(event)] += 1
        self._old = "".join(text)

    async def _artifact(self, kind: str, word: str, payload: dict[str, Any]) -> None:
        stream = n = payload["stream_id"]
        if kind != "sub_agent_response":
            count = f"{kind}/{stream}"
            seen = self.counts[count] = self.counts.get(count, -1) + 1
            n = seen if stream == self._stream else stream * EVENTS + seen
        name, description, part = kind, "", _part(kind, payload)
        if kind == "file":
            name = payload["path"]
        elif kind == "sub_agent_response":
            description = f"{payload['agent']} (depth {payload['depth']})"
        writer = self._turn.artifact(
            name, id=f"{self._turn.task_id}-{word}-{n}{self._later}", description=description
        )
        await writer.write(part, last=True)


def events_id(task: str) -> str:
    """The artifact in which the agent of `task` tells its events to the agent that asked."""
    return f"{task}-events"


ARTIFACTS = {"tool_call": "tool", "file": "file", "sub_agent_response": "sub"}
"""Events that are artifacts, too, and the word for each in their ids."""
ANSWERS = frozenset({"text", "sub_agent_response"})
"""Events that hold what an agent answers."""
_WITHOUT_DEPTH = frozenset({"text", "advisor", "escalation", "stream_end", "intent"})


def _part(kind: str, payload: dict[str, Any]) -> Part:
    if kind == "file":
        return Part(raw=payload["content"].encode(), filename=payload["path"], media_type="text/plain")
    members = ("tool", "ok", "interrupted") if kind == "tool_call" else ("agent", "depth", "content")
    return Part(
        data={name: payload[name] for name in members if name in payload},
        metadata={f"x-arbiter.{kind}": True},
    )
