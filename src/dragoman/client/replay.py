"""Hearing each thing once from a peer that cannot continue a stream where it broke.

Two means. The peer's own picture of the task is compared with ours (`missed`), and a stream that begins again is held
against what was already heard (`Replay`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby

from msgspec.structs import replace

from dragoman.model.content import Part
from dragoman.model.fold import Fold
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

_MOMENT = len("2026-01-01T00:00:00.000Z")


def missed(fold: Fold, now: Task, heard: Iterable[TaskStatus] = ()) -> list[Event]:
    """What happened between what we know and `now`, as events; applied to the fold, they lead to `now`.

    `now` may be an old picture: a report that was `heard` is not told again.
    """
    events: list[Event] = []
    for artifact in now.artifacts:
        growing = fold.artifacts.get(artifact.artifact_id)
        rest = artifact.parts if growing is None else rest_of(artifact.parts, growing.parts)
        append = growing is not None and rest is not None
        if rest is None:  # not what we heard, plus more: another artifact under the same name
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
        or now.status.state is TaskState.SUBMITTED  # no task goes back there
        or any(one_report(old, now.status) for old in heard)
    ):
        events.append(StatusUpdate(task_id=now.id, context_id=now.context_id, status=now.status))
    return events


class Replay:
    """Reads a stream that a peer began anew, against what `fold` already knows, and passes on only what is new.

    Peers differ: 1.0 begins with the task as it is, some say nothing of the past, and some repeat every event from the
    first (`heard` are the reports they may repeat). Where that is the rule (`repeats`) reports that read the same are the
    same; elsewhere only those that can be told apart from others are, and what is `heard` meanwhile counts, too.
    """

    def __init__(self, fold: Fold, heard: Collection[TaskStatus] = (), *, repeats: bool = False) -> None:
        self._fold = fold
        self._heard = tuple(heard) if repeats else heard
        self._same = same_status if repeats else one_report
        self._ahead: TaskStatus | None = None
        """The last report in the peer's own picture of the task, which the stream may come to."""
        self._grounded = False
        """The stream showed the task as it is."""
        self._repeated: dict[str, _Repetition] = {}
        """Artifacts that this stream began again, as far as it has got."""
        self._shown: set[str] = set()
        """Artifacts whose every part we have: the stream showed them, or they began in it."""

    def follows(self, event: Event) -> bool:
        """Whether the event continues what this stream has shown. If not, something may be missing before it, and only
        the peer's own picture of the task can tell."""
        if isinstance(event, StatusUpdate):
            return self._grounded or not event.status.state.over
        if isinstance(event, ArtifactUpdate) and event.append:
            return event.artifact.artifact_id in self._shown or event.artifact.artifact_id in self._repeated
        return True

    def catch_up(self, event: Event, now: Task) -> list[Event]:
        """What is new in an event that does not follow, and in the peer's picture of the task."""
        news = missed(self._fold, now, self._heard)
        for new in news:
            if isinstance(new, ArtifactUpdate):  # now it is ahead of the stream
                self._shown.discard(new.artifact.artifact_id)
                self._repeated.pop(new.artifact.artifact_id, None)
        reports = [new for new in news if isinstance(new, StatusUpdate)]
        if self._ahead is not None and same_status(self._ahead, now.status):
            return [new for new in news if new not in reports]
        if not reports:
            return news + (self.read(event) if isinstance(event, StatusUpdate) else [])
        told = isinstance(event, StatusUpdate) and same_status(event.status, now.status)
        self._ahead = None if told else now.status
        return news

    def read(self, event: Event) -> list[Event]:
        """What is new in an event."""
        if isinstance(event, Task):
            self._grounded = True
            self._shown.update(artifact.artifact_id for artifact in event.artifacts)
            return missed(self._fold, event, self._heard)
        if isinstance(event, StatusUpdate):
            return [] if self._known(event.status) else [event]
        if isinstance(event, ArtifactUpdate):
            return self._artifact(event)
        seen = self._fold.message
        return [] if seen is not None and seen.message_id == event.message_id else [event]

    def _known(self, status: TaskStatus) -> bool:
        if self._ahead is not None and same_status(self._ahead, status):
            self._ahead = None
            return True
        now = self._fold.status
        if now is not None and (same_status(now, status) or _earlier(status, now)):
            return True
        return any(self._same(old, status) for old in self._heard)

    def _artifact(self, event: ArtifactUpdate) -> list[Event]:
        id = event.artifact.artifact_id
        growing = self._fold.artifacts.get(id)
        if not event.append and (growing is None or id in self._shown):
            self._shown.add(id)
            return [event]
        if not event.append and growing is not None:
            self._repeated[id] = _Repetition(growing.parts)
        elif id not in self._repeated:
            return [event]
        repetition = self._repeated[id]
        new = repetition.read(event.artifact.parts)
        if new is None or repetition.complete():
            del self._repeated[id]
            self._shown.add(id)
        if new is None:  # it is another text this time
            whole = replace(event.artifact, parts=tuple(repetition.told))
            return [replace(event, artifact=whole, append=False)]
        return [replace(event, artifact=replace(event.artifact, parts=new), append=True)] if new else []


class _Repetition:
    """Parts told again, held against those that are known. How text was cut makes no difference."""

    def __init__(self, known: Iterable[Part]) -> None:
        self._known = _joined(known)
        self._part = 0
        self._offset = 0
        self.told: list[Part] = []

    def complete(self) -> bool:
        """Everything known was told again."""
        return self._part == len(self._known)

    def read(self, parts: Iterable[Part]) -> tuple[Part, ...] | None:
        """The parts that are new. None when they contradict what is known."""
        new: list[Part] = []
        for part in parts:
            self.told.append(part)
            if part.text == "":
                continue
            if self.complete():
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
                        if not self.complete():
                            return None
                        new.append(replace(part, text=part.text[left:]))
        return tuple(new)


def rest_of(whole: Iterable[Part], start: Iterable[Part]) -> tuple[Part, ...] | None:
    """What `whole` has beyond `start`; None if it does not begin with it."""
    repetition = _Repetition(start)
    rest = repetition.read(whole)
    return rest if repetition.complete() else None


def _joined(parts: Iterable[Part]) -> list[Part]:
    """Neighbouring texts as one; empty ones left out."""
    out: list[Part] = []
    for bare, group in groupby((part for part in parts if part.text != ""), _likeness):
        if bare is None:
            out += group
        else:
            out.append(replace(bare, text="".join(part.text or "" for part in group)))
    return out


def _likeness(part: Part) -> Part | None:
    """Texts that could be one text have the same."""
    return None if part.text is None else replace(part, text="")


def one_report(one: TaskStatus, other: TaskStatus) -> bool:
    """Beyond doubt the same report: it has an id or a moment of its own."""
    named = one.message is not None and bool(one.message.message_id)
    return (named or bool(one.timestamp)) and one.timestamp == other.timestamp and same_status(one, other)


def _earlier(one: TaskStatus, other: TaskStatus) -> bool:
    """It was made before the other, as far as their moments tell."""
    comparable = len(one.timestamp) == len(other.timestamp) == _MOMENT
    return comparable and one.timestamp < other.timestamp


def same_status(one: TaskStatus, other: TaskStatus) -> bool:
    """The same report, though it may have been told in another way: the oldest peers give messages no id."""
    if one.state is not other.state or (one.message is None) != (other.message is None):
        return False
    if one.message is not None and other.message is not None:
        if one.message.parts != other.message.parts:
            return False
        if one.message.message_id == other.message.message_id:
            return True
        return not one.timestamp or not other.timestamp or one.timestamp == other.timestamp
    return True
