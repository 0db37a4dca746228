"""Hearing each thing once from a peer that cannot continue a stream where it broke.

Two means. The peer's own picture of the task is compared with ours (`missed`), and a stream that begins again is held
against what was already heard (`Replay`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from dragoman.client.told import Place, Repetition, continued, rest_of, written
from dragoman.model.content import Message, Part, Role
from dragoman.model.fold import Fold
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

_MOMENT = len("2026-01-01T00:00:00.000Z")


def missed(
    fold: Fold, now: Task, heard: Iterable[TaskStatus] = (), followed: Collection[str] = ()
) -> list[Event]:
    """What happened between what we know and `now`, as events; applied to the fold, they lead to `now`.

    `now` may be an old picture: a report that was `heard` is not told again. Of artifacts that are `followed` nothing was
    missed, so that a picture which contradicts what we know is wrong: there are servers that write chunks down twice.
    """
    events: list[Event] = []
    for artifact in now.artifacts:
        growing = fold.artifacts.get(artifact.artifact_id)
        rest = artifact.parts if growing is None else continued(artifact.parts, growing.parts)
        append = growing is not None and rest is not None
        if rest is None and artifact.artifact_id in followed:
            continue
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
        self._passed: Counter[tuple[str, str]] = Counter()
        """What was said before that, by the history of the picture, and has not been heard."""
        self._grounded = False
        """The stream showed the task as it is."""
        self._repeated: dict[str, Repetition] = {}
        """Artifacts that this stream began again, as far as it has got."""
        self._followed: set[str] = set()
        """Artifacts of which the stream tells nothing but news: they began in it, or it has come to where we are."""
        self._places: dict[str, Place] = {}
        """Where the stream is in artifacts of which the peer's picture has shown more than it."""
        self._before = {id: tuple(growing.parts) for id, growing in fold.artifacts.items()}
        """What other streams have told."""

    def follows(self, event: Event) -> bool:
        """Whether the event continues what this stream has shown. If not, something may be missing before it, and only
        the peer's own picture of the task can tell."""
        if isinstance(event, StatusUpdate):
            return self._grounded or not event.status.state.over
        if not isinstance(event, ArtifactUpdate):
            return True
        id, chunk = event.artifact.artifact_id, written(event.artifact.parts)
        if event.append and not chunk:
            return True  # it only says that the artifact is complete
        if id in self._places:
            return event.append and self._places[id].knows(chunk) is not None
        return not event.append or id in self._followed or id in self._repeated

    def catch_up(self, event: Event, now: Task) -> list[Event]:
        """What is new in an event that does not follow, and in the peer's picture of the task."""
        news = self._missed(now)
        if isinstance(event, ArtifactUpdate):
            if not event.append:
                self._begun_again(event.artifact.artifact_id, now)
            self._step(event.artifact.artifact_id, written(event.artifact.parts))
        reports = [new for new in news if isinstance(new, StatusUpdate)]
        if self._grounded or (self._ahead is not None and same_status(self._ahead, now.status)):
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
            return self._missed(event)
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
        if status.message is not None and self._has_passed(status.message):
            return True
        return any(self._same(old, status) for old in self._heard)

    def _has_passed(self, message: Message) -> bool:
        """It was said before what the picture has told. A message without an id is taken for one that reads the same,
        once for each, and only while the stream is behind the picture."""
        name = _name(message)
        if not self._passed[name] or not (message.message_id or self._ahead is not None):
            return False
        self._passed[name] -= 1
        return True

    def _unheard(self, now: Task) -> Counter[tuple[str, str]]:
        heard = {id(status): status for status in (*self._heard, self._fold.status) if status is not None}
        said = Counter(_name(message) for message in now.history if message.role is Role.AGENT)
        return said - Counter(_name(status.message) for status in heard.values() if status.message)

    def _missed(self, now: Task) -> list[Event]:
        """What the peer's picture has beyond ours; and keep where the stream is in it."""
        self._passed = self._unheard(now)
        for artifact in now.artifacts:
            id = artifact.artifact_id
            shown = self._beyond(id, artifact.parts)
            if id in self._places:
                self._places[id].shown = shown
            elif id in self._followed:
                told = self._fold.artifacts[id].parts
                if rest_of(artifact.parts, told):
                    self._followed.discard(id)
                    self._places[id] = Place(shown, [len(self._beyond(id, told))])
            elif rest_of(artifact.parts, self._before.get(id, ())) == ():
                self._followed.add(id)
            else:
                self._places[id] = Place(shown)
        return missed(self._fold, now, self._heard, self._followed)

    def _beyond(self, id: str, parts: Sequence[Part]) -> str:
        """What is in an artifact beyond what other streams have told."""
        rest = continued(parts, self._before.get(id, ()))
        return written(parts if rest is None else rest)

    def _begun_again(self, id: str, now: Task) -> None:
        """The stream tells an artifact from the first, be it another one or the same."""
        self._before.pop(id, None)
        for artifact in now.artifacts:
            if artifact.artifact_id == id:
                self._places[id] = Place(written(artifact.parts), [0])

    def _step(self, id: str, chunk: str) -> None:
        """The stream told a chunk that the peer's picture has shown."""
        if id in self._places and not self._places[id].step(chunk):
            del self._places[id]
            self._followed.add(id)

    def _artifact(self, event: ArtifactUpdate) -> list[Event]:
        id = event.artifact.artifact_id
        growing = self._fold.artifacts.get(id)
        chunk = written(event.artifact.parts)
        if event.append and not chunk and id not in self._repeated:
            return [event]
        if event.append and id in self._places:
            known = self._places[id].knows(chunk)
            self._step(id, chunk)
            return [] if known else [event]
        if not event.append and (growing is None or id in self._followed):
            self._followed.add(id)
            return [event]
        if not event.append and growing is not None:
            self._repeated[id] = Repetition(growing.parts)
        elif id not in self._repeated:
            return [event]
        repetition = self._repeated[id]
        new = repetition.read(event.artifact.parts)
        if new is None or repetition.complete():
            del self._repeated[id]
            self._followed.add(id)
        if new is None:  # it is another text this time
            whole = replace(event.artifact, parts=tuple(repetition.told))
            return [replace(event, artifact=whole, append=False)]
        return [replace(event, artifact=replace(event.artifact, parts=new), append=True)] if new else []


def _name(message: Message) -> tuple[str, str]:
    """What a message is known by: its id, or else what it says."""
    return message.message_id, "" if message.message_id else written(message.parts)


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
