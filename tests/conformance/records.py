"""Mail and output in the smallest form that is still real."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from dragoman.engine.records import Child, Mail, Record, Step, TurnStarted
from dragoman.engine.snapshot import Snapshot
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.ids import new_id, timestamp
from dragoman.model.task import ArtifactUpdate, StatusUpdate, TaskState, TaskStatus


def mail(text: str = "hello", *, at: str | None = None, reply: bool = False) -> Mail:
    message = Message(message_id=new_id(), role=Role.USER, parts=(Part(text=text),))
    return Mail(message=message, at=timestamp() if at is None else at, reply=reply, origin="1.0")


def turn(n: int = 1, mail: int = 1) -> Record:
    return Record("turn", TurnStarted(n=n, mail=mail))


def status(state: TaskState, *, at: str | None = None, kind: str = "status") -> Record:
    body = TaskStatus(state=state, timestamp=timestamp() if at is None else at)
    return Record(kind, StatusUpdate(task_id="t", context_id="c", status=body))


def chunk(text: str = "chunk", *, artifact: str = "a") -> Record:
    part = Artifact(artifact_id=artifact, parts=(Part(text=text),))
    return Record("artifact", ArtifactUpdate(task_id="t", context_id="c", artifact=part, append=True))


def step(key: str = "k") -> Record:
    return Record("step", Step(key=key, value=Raw(b"1")))


def child(key: str = "k") -> Record:
    return Record("child", Child(key=key, peer="b", task="t2"))


def reply(text: str = "hi") -> Record:
    return Record("reply", Message(message_id=new_id(), role=Role.AGENT, parts=(Part(text=text),)))


def seq_of(snapshot: Snapshot | None) -> int:
    """The last record of a settled task."""
    assert snapshot is not None
    return snapshot.seq


def everything_in(snapshot: Snapshot) -> dict[str, Any]:
    """A copy of all members of a snapshot."""
    artifacts = {id: (a.artifact(), a.turn, a.before, a.closed) for id, a in snapshot.artifacts.items()}
    copied = ("mails", "history", "metadata", "status_updates", "steps", "children", "notes")
    return {
        **folded(snapshot),
        **{name: type(value)(value) for name in copied for value in [getattr(snapshot, name)]},
        "artifacts": artifacts,
        "status": snapshot.status,
        "size": snapshot.size,
        "asked": snapshot.asked,
        "answering": snapshot.answering,
        "usage": (list(snapshot.usage or ()), snapshot.used),
    }


def folded(snapshot: Snapshot) -> dict[str, Any]:
    """All that a snapshot says, in a form that can be compared."""
    return {
        "task": snapshot.task,
        "seq": snapshot.seq,
        "mail": snapshot.mail,
        "read": snapshot.read,
        "turn": snapshot.turn,
        "running": snapshot.running,
        "mails": snapshot.mails,
        "reply": snapshot.reply,
        "canceling": snapshot.canceling,
        "hidden": snapshot.hidden,
    }
