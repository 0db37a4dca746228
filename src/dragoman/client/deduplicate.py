"""Pass on each event once from a peer that cannot continue a broken stream where it broke.

There are two ways. `missed_events` compares the peer's current task with what we know. `ReplayFilter` compares a stream
that starts again with what was already received: the stream may repeat an artifact from its first chunk
(`RepeatedParts`), or continue somewhere inside what the peer's task has already shown (`StreamPosition`). How the peer
cuts text into chunks makes no difference.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import dropwhile, groupby, islice

import msgspec
from msgspec.structs import replace

from dragoman.model.content import Message, Part, Role
from dragoman.model.fold import Fold
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

_TIMESTAMP_LENGTH = len("2026-01-01T00:00:00.000Z")
_MAX_POSITIONS = 200
"""In a text that repeats itself a stream can be at many positions. Only the first ones are tracked."""


def missed_events(
    fold: Fold, now: Task, received: Iterable[TaskStatus] = (), followed: Collection[str] = ()
) -> list[Event]:
    """The events that lead from what we know to `now`.

    `now` may be out of date, so a status in `received` is not reported again. Nothing was missed of artifacts that are
    `followed`. If `now` contradicts what we know of one, `now` is wrong: some servers store chunks twice.
    """
    events: list[Event] = []
    for artifact in now.artifacts:
        growing = fold.artifacts.get(artifact.artifact_id)
        rest = (
            artifact.parts if growing is None else parts_after_with_duplicates(artifact.parts, growing.parts)
        )
        append = growing is not None and rest is not None
        if rest is None and artifact.artifact_id in followed:
            continue
        if rest is None:  # not a continuation: another artifact with the same id
            rest = artifact.parts
        if rest or not append:
            events.append(
                ArtifactUpdate(
                    task_id=now.id,
                    context_id=now.context_id,
                    artifact=replace(artifact, parts=rest),
                    append=append,
                )
            )
    if fold.status is None or not (
        same_status(fold.status, now.status)
        or now.status.state is TaskState.SUBMITTED  # no task goes back to this state
        or any(_identical_status(old, now.status) for old in received)
    ):
        events.append(StatusUpdate(task_id=now.id, context_id=now.context_id, status=now.status))
    return events


class ReplayFilter:
    """Removes from a stream that started again what `fold` already contains.

    Peers differ. 1.0 starts with the current task, some send nothing of the past, and some repeat every event from the
    first; `received` are the statuses that they may repeat. Where repeating is the rule (`repeats`), statuses that read
    the same are the same. Elsewhere only statuses with an id or a timestamp are compared, and statuses that arrive
    meanwhile count as received too.
    """

    def __init__(self, fold: Fold, received: Collection[TaskStatus] = (), *, repeats: bool = False) -> None:
        self._fold = fold
        self._received = tuple(received) if repeats else received
        self._same = same_status if repeats else _identical_status
        self._status_ahead: TaskStatus | None = None
        """The status of the peer's task. The stream may still send it."""
        self._history_ahead: Counter[tuple[str, str]] = Counter()
        """Agent messages in the history of the peer's task that were not received."""
        self._saw_task = False
        """The stream has sent the current task."""
        self._repeated: dict[str, RepeatedParts] = {}
        """Artifacts that this stream is repeating from their first chunk."""
        self._followed: set[str] = set()
        """Artifacts of which the stream sends only new chunks."""
        self._positions: dict[str, StreamPosition] = {}
        """Positions of the stream in artifacts of which the peer's task has shown more."""
        self._before = {id: tuple(growing.parts) for id, growing in fold.artifacts.items()}
        """Parts that earlier streams have sent."""

    def is_continuous(self, event: Event) -> bool:
        """True if the event continues what this stream has sent.

        If not, something may be missing before it, and only the peer's current task can tell.
        """
        if isinstance(event, StatusUpdate):
            return self._saw_task or not event.status.state.settled
        if not isinstance(event, ArtifactUpdate):
            return True
        id, chunk = event.artifact.artifact_id, _as_text(event.artifact.parts)
        if event.append and not chunk:
            return True  # it only marks the artifact as complete
        if id in self._positions:
            return event.append and self._positions[id].contains(chunk) is not None
        return not event.append or id in self._followed or id in self._repeated

    def catch_up(self, event: Event, now: Task) -> list[Event]:
        """What is new in an event that is not continuous, and in the peer's current task."""
        news = self._compare_task(now)
        if isinstance(event, ArtifactUpdate):
            if not event.append:
                self._restart_artifact(event.artifact.artifact_id, now)
            self._advance(event.artifact.artifact_id, _as_text(event.artifact.parts))
        statuses = [new for new in news if isinstance(new, StatusUpdate)]
        if self._saw_task or (self._status_ahead is not None and same_status(self._status_ahead, now.status)):
            return [new for new in news if new not in statuses]
        if not statuses:
            return news + (self.read(event) if isinstance(event, StatusUpdate) else [])
        sent = isinstance(event, StatusUpdate) and same_status(event.status, now.status)
        self._status_ahead = None if sent else now.status
        return news

    def read(self, event: Event) -> list[Event]:
        """What is new in a continuous event."""
        if isinstance(event, Task):
            self._saw_task = True
            return self._compare_task(event)
        if isinstance(event, StatusUpdate):
            return [] if self._is_known(event.status) else [event]
        if isinstance(event, ArtifactUpdate):
            return self._read_artifact(event)
        seen = self._fold.message
        return [] if seen is not None and seen.message_id == event.message_id else [event]

    def _is_known(self, status: TaskStatus) -> bool:
        if self._status_ahead is not None and same_status(self._status_ahead, status):
            self._status_ahead = None
            return True
        now = self._fold.status
        if now is not None and (same_status(now, status) or _is_earlier(status, now)):
            return True
        if status.message is not None and self._was_in_history(status.message):
            return True
        return any(self._same(old, status) for old in self._received)

    def _was_in_history(self, message: Message) -> bool:
        """True if the message precedes the status of the peer's task.

        A message without an id matches one that reads the same, once for each, and only while the stream is behind the
        peer's task.
        """
        key = _message_key(message)
        if not self._history_ahead[key] or not (message.message_id or self._status_ahead is not None):
            return False
        self._history_ahead[key] -= 1
        return True

    def _unreceived_history(self, now: Task) -> Counter[tuple[str, str]]:
        statuses = {id(each): each for each in (*self._received, self._fold.status) if each is not None}
        history = Counter(_message_key(message) for message in now.history if message.role is Role.AGENT)
        return history - Counter(_message_key(each.message) for each in statuses.values() if each.message)

    def _compare_task(self, now: Task) -> list[Event]:
        """What the peer's task has beyond ours. Also updates the positions of the stream in it."""
        self._history_ahead = self._unreceived_history(now)
        for artifact in now.artifacts:
            id = artifact.artifact_id
            task_text = self._text_beyond(id, artifact.parts)
            if id in self._positions:
                self._positions[id].task_text = task_text
            elif id in self._followed:
                known = self._fold.artifacts[id].parts
                if parts_after(artifact.parts, known):
                    self._followed.discard(id)
                    self._positions[id] = StreamPosition(task_text, [len(self._text_beyond(id, known))])
            elif parts_after(artifact.parts, self._before.get(id, ())) == ():
                self._followed.add(id)
            else:
                self._positions[id] = StreamPosition(task_text)
        return missed_events(self._fold, now, self._received, self._followed)

    def _text_beyond(self, id: str, parts: Sequence[Part]) -> str:
        """What an artifact has beyond what earlier streams have sent."""
        rest = parts_after_with_duplicates(parts, self._before.get(id, ()))
        return _as_text(parts if rest is None else rest)

    def _restart_artifact(self, id: str, now: Task) -> None:
        """The stream sends an artifact from its first chunk: the same one, or another with the same id."""
        self._before.pop(id, None)
        for artifact in now.artifacts:
            if artifact.artifact_id == id:
                self._positions[id] = StreamPosition(_as_text(artifact.parts), [0])

    def _advance(self, id: str, chunk: str) -> None:
        """Move past a chunk that the peer's task has already shown."""
        if id in self._positions and not self._positions[id].advance(chunk):
            del self._positions[id]
            self._followed.add(id)

    def _read_artifact(self, event: ArtifactUpdate) -> list[Event]:
        id = event.artifact.artifact_id
        growing = self._fold.artifacts.get(id)
        chunk = _as_text(event.artifact.parts)
        if event.append and not chunk and id not in self._repeated:
            return [event]
        if event.append and id in self._positions:
            known = self._positions[id].contains(chunk)
            self._advance(id, chunk)
            return [] if known else [event]
        if not event.append and (growing is None or id in self._followed):
            self._followed.add(id)
            return [event]
        if not event.append and growing is not None:
            self._repeated[id] = RepeatedParts(growing.parts)
        elif id not in self._repeated:
            return [event]
        repeated = self._repeated[id]
        new = repeated.read(event.artifact.parts)
        if new is None or repeated.is_complete():
            del self._repeated[id]
            self._followed.add(id)
        if new is None:  # the text differs this time
            whole = replace(event.artifact, parts=tuple(repeated.received))
            return [replace(event, artifact=whole, append=False)]
        return [replace(event, artifact=replace(event.artifact, parts=new), append=True)] if new else []


class RepeatedParts:
    """Compares parts that are sent again, from the first, with the `known` ones."""

    def __init__(self, known: Iterable[Part]) -> None:
        self._known = _join_texts(known)
        self._part = 0
        self._offset = 0
        self.received: list[Part] = []

    def is_complete(self) -> bool:
        """True if all known parts were sent again."""
        return self._part == len(self._known)

    def read(self, parts: Iterable[Part]) -> tuple[Part, ...] | None:
        """The parts that are new. None if they contradict what is known."""
        new: list[Part] = []
        for part in parts:
            self.received.append(part)
            if part.text == "":
                continue
            if self.is_complete():
                new.append(part)
                continue
            known = self._known[self._part]
            if part.text is None or known.text is None:
                if part != known:
                    return None
                self._part += 1
            elif replace(part, text="") != replace(known, text=""):
                return None
            else:
                left = len(known.text) - self._offset
                if not known.text.startswith(part.text[:left], self._offset):
                    return None
                self._offset += len(part.text)
                if len(part.text) >= left:
                    self._part, self._offset = self._part + 1, 0
                    if len(part.text) > left:
                        if not self.is_complete():
                            return None
                        new.append(replace(part, text=part.text[left:]))
        return tuple(new)


def parts_after(whole: Iterable[Part], start: Iterable[Part]) -> tuple[Part, ...] | None:
    """The parts of `whole` beyond `start`. None if `whole` does not begin with `start`."""
    repeated = RepeatedParts(start)
    rest = repeated.read(whole)
    return rest if repeated.is_complete() else None


def parts_after_with_duplicates(whole: Sequence[Part], start: Sequence[Part]) -> tuple[Part, ...] | None:
    """`parts_after`, also if `whole` has chunks twice. Some servers store them so (a2a-sdk 0.3)."""
    rest = parts_after(whole, start)
    if rest is not None or len(whole) <= len(start):
        return rest
    left = deque(whole)
    last: Part | None = None
    for part in start:
        while left and left[0] == last != part:
            left.popleft()
        if not left or left[0] != part:
            return None
        last = left.popleft()
    return tuple(part for part, _ in groupby(dropwhile(lambda part: part == last, left)))


def _join_texts(parts: Iterable[Part]) -> list[Part]:
    """Join texts that follow each other, and drop empty ones."""
    out: list[Part] = []
    for bare, group in groupby((part for part in parts if part.text != ""), _without_text):
        if bare is None:
            out += group
        else:
            out.append(replace(bare, text="".join(part.text or "" for part in group)))
    return out


def _without_text(part: Part) -> Part | None:
    """Equal for texts that can be joined. None for other parts."""
    return None if part.text is None else replace(part, text="")


class StreamPosition:
    """Where a stream may be in `task_text`, the text that the peer's task has beyond what its streams have sent.

    The peer's task is newer than the start of the stream, so the stream may still send what the task has shown.
    """

    def __init__(self, task_text: str, positions: Sequence[int] | None = None) -> None:
        self.task_text = task_text
        self._positions = positions
        """All possible positions. None if nothing is known yet."""

    def contains(self, chunk: str) -> bool | None:
        """True if the next chunk was shown. None if it may also be new text that reads the same."""
        inside = self._after(chunk)
        at_end = self._positions is None or len(self.task_text) in self._positions
        return None if inside and at_end else bool(inside)

    def advance(self, chunk: str) -> bool:
        """Move past a chunk of it. False once the stream reaches the end of `task_text`, or contradicts it."""
        self._positions = self._after(chunk)
        return bool(self._positions) and self._positions != [len(self.task_text)]

    def _after(self, chunk: str) -> list[int]:
        if self._positions is not None:
            starts: Iterable[int] = self._positions
        else:
            starts = islice(_occurrences(chunk, self.task_text), _MAX_POSITIONS)
        return [start + len(chunk) for start in starts if self.task_text.startswith(chunk, start)]


def _occurrences(chunk: str, text: str) -> Iterator[int]:
    at = text.find(chunk)
    while at >= 0:
        yield at
        at = text.find(chunk, at + 1)


def _as_text(parts: Iterable[Part]) -> str:
    """Parts as one text, so that one sequence of parts can be searched in another."""
    return "".join(
        part.text
        if part.text is not None and part == Part(text=part.text)
        else f"\ue000{msgspec.json.encode(part).decode()}\ue001"
        for part in parts
    )


def _message_key(message: Message) -> tuple[str, str]:
    """Identifies a message: its id, or its content if it has none."""
    return message.message_id, "" if message.message_id else _as_text(message.parts)


def _identical_status(one: TaskStatus, other: TaskStatus) -> bool:
    """True if both are certainly the same status: the status has a message id or a timestamp."""
    named = one.message is not None and bool(one.message.message_id)
    return (named or bool(one.timestamp)) and one.timestamp == other.timestamp and same_status(one, other)


def _is_earlier(one: TaskStatus, other: TaskStatus) -> bool:
    comparable = len(one.timestamp) == len(other.timestamp) == _TIMESTAMP_LENGTH
    return comparable and one.timestamp < other.timestamp


def same_status(one: TaskStatus, other: TaskStatus) -> bool:
    """True if both are the same status, possibly written differently: the oldest peers give messages no id."""
    if one.state is not other.state or (one.message is None) != (other.message is None):
        return False
    if one.message is not None and other.message is not None:
        if one.message.parts != other.message.parts:
            return False
        if one.message.message_id == other.message.message_id:
            return True
        return not one.timestamp or not other.timestamp or one.timestamp == other.timestamp
    return True
