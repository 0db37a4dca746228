"""The state machine of a task, by itself: `decide` against what the log says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dragoman.engine.protocols import LeaseLost, NewMail
from dragoman.engine.push_configs import PushRow
from dragoman.engine.records import Cancel, Child, Mail, Record
from dragoman.engine.snapshot import Snapshot
from dragoman.engine.transition import (
    Advance,
    Append,
    Claim,
    ClaimPush,
    Create,
    Decision,
    Deliver,
    Notify,
    Redeliver,
    Release,
    ReleasePush,
    Replace,
    Settle,
    TaskRow,
    decide,
    decide_push,
    first_push_row,
)
from dragoman.errors import TaskClosed
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.ops import Scope
from dragoman.model.task import ArtifactUpdate, StatusUpdate, TaskState, TaskStatus

NODES = st.sampled_from(["n1", "n2", "n3"])
OUTPUT = st.lists(
    st.sampled_from(["chunk", "working", "ask", "completed", "failed", "child"]), min_size=1, max_size=4
)
RESTING = st.sampled_from(["ask", "completed", "failed", "canceled", "reply", ""])


def message(at: str) -> Record:
    mail = Mail(message=Message(message_id="m", role=Role.USER, parts=(Part(text="x"),)), at=at)
    return Record("message", mail)


def output(kind: str, at: str) -> Record:
    states = {
        "working": TaskState.WORKING,
        "ask": TaskState.INPUT_REQUIRED,
        "completed": TaskState.COMPLETED,
        "failed": TaskState.FAILED,
        "canceled": TaskState.CANCELED,
    }
    if kind in states:
        update = StatusUpdate(
            task_id="t", context_id="c", status=TaskStatus(state=states[kind], timestamp=at)
        )
        return Record("ask" if kind == "ask" else "status", update)
    if kind == "child":
        return Record("child", Child(key="k", peer="p", task="x"))
    if kind == "reply":
        return Record("reply", Message(message_id="r", role=Role.AGENT, parts=(Part(text="y"),)))
    artifact = Artifact(artifact_id="a", parts=(Part(text="y"),))
    return Record("artifact", ArtifactUpdate(task_id="t", context_id="c", artifact=artifact))


class TaskMachine(RuleBasedStateMachine):
    """Drives `decide` with jobs of several nodes, some of them late, and folds the records beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0
        self.row = TaskRow()
        self.log: list[Record] = []
        self.leases: dict[str, int] = {}
        """The fence that each node believes it holds."""
        self.do(Create(message(self.now()), self.last))

    def now(self) -> str:
        self.clock += 1
        self.last = f"2026-01-01T00:00:{self.clock:09}Z"
        return self.last

    def do(self, job: Any) -> Decision:
        before = self.row
        decision = decide(before, job)
        assert decision.row.fence in (before.fence, before.fence + 1)
        assert decision.leased == (decision.row.fence == before.fence + 1)
        assert [record.seq for record in decision.records] == [
            *range(before.seq + 1, decision.row.seq + 1)
        ], "records are numbered without a gap"
        self.row = decision.row
        self.log += decision.records
        return decision

    @rule(node=st.one_of(st.just(""), NODES), cancel=st.booleans())
    def deliver(self, node: str, cancel: bool) -> None:
        at = self.now()
        record = Record("cancel", Cancel()) if cancel else message(at)
        held, done = self.row.node, self.row.done
        if done:
            with pytest.raises(TaskClosed):
                decide(self.row, Deliver("t", record, at, node))
            return
        decision = self.do(Deliver("t", record, "" if cancel else at, node))
        assert self.row.ready and self.row.mail == self.row.seq
        assert decision.leased == bool(node and not held), "only a task that nobody holds is taken"
        if decision.leased:
            self.leases[node] = self.row.fence

    @rule(node=NODES, alive=st.booleans())
    def claim(self, node: str, alive: bool) -> None:
        held, ready = self.row.node, self.row.ready
        decision = self.do(Claim(node, holder_alive=alive))
        if held == node or not ready or (held and alive):
            assert not decision.leased
        else:
            assert decision.leased and self.row.node == node
            self.leases[node] = self.row.fence

    @rule(node=NODES, kinds=OUTPUT)
    @precondition(lambda self: self.leases)
    def append(self, node: str, kinds: list[str]) -> None:
        fence = self.leases.get(node, 0)
        records = [output(kind, self.now()) for kind in kinds]
        if fence != self.row.fence or not self.row.node:
            with pytest.raises(LeaseLost):
                decide(self.row, Append("t", fence, records))
        elif not self.row.done:
            self.do(Append("t", fence, records))
            if "child" in kinds:
                assert self.row.attempt == 1

    @rule(node=NODES, kind=RESTING, unread=st.booleans())
    @precondition(lambda self: self.leases)
    def settle(self, node: str, kind: str, unread: bool) -> None:
        fence = self.leases.get(node, 0)
        records = [output(kind, self.now())] if kind else []
        mail = self.row.mail - 1 if unread else self.row.mail
        job = Settle("t", fence, records, mail)
        if fence != self.row.fence or not self.row.node:
            with pytest.raises(LeaseLost):
                decide(self.row, job)
        elif unread:
            with pytest.raises(NewMail):
                decide(self.row, job)
        elif not self.row.done or not kind:
            self.do(job)
            assert not self.row.ready and not self.row.node and self.row.attempt == 0

    @rule(node=NODES, failed=st.booleans())
    def release(self, node: str, failed: bool) -> None:
        before, fence = self.row, self.leases.get(node, 0)
        self.do(Release(fence, failed))
        if fence == before.fence and before.node:
            assert not self.row.node and self.row.attempt == before.attempt - (not failed)
        else:
            assert self.row == before

    @invariant()
    def the_row_is_the_fold_of_the_log(self) -> None:
        fold = Snapshot(Scope("", "a", ""), "t", "c").after(self.log)
        assert (self.row.seq, self.row.mail) == (fold.seq, fold.mail)
        if fold.reply is None:
            assert (self.row.state, self.row.updated) == (fold.state, fold.status.timestamp)
        assert self.row.done == fold.terminal

    @invariant()
    def a_task_without_work_is_nobodys(self) -> None:
        assert self.row.ready or not self.row.node


TestTaskMachine = TaskMachine.TestCase
TestTaskMachine.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


class PushMachine(RuleBasedStateMachine):
    """Drives `decide_push` with several senders."""

    def __init__(self) -> None:
        super().__init__()
        self.row = PushRow(cursor=1, last=1)
        self.now = 100.0
        self.leases: dict[str, int] = {}

    @rule(more=st.integers(1, 3))
    def notify(self, more: int) -> None:
        last = self.row.last
        self.row = decide_push(self.row, Notify(last + more))
        assert self.row.last == last + more

    @rule(node=NODES, alive=st.booleans(), wait=st.floats(0, 50))
    def claim(self, node: str, alive: bool, wait: float) -> None:
        self.now += wait
        before = self.row
        self.row = decide_push(before, ClaimPush(node, self.now, alive))
        if self.row is not before:
            assert before.cursor < before.last and not before.dead and before.at <= self.now
            assert self.row.fence == before.fence + 1
            self.leases[node] = self.row.fence

    @rule(node=NODES)
    def advance(self, node: str) -> None:
        fence = self.leases.get(node, -1)
        cursor = min(self.row.cursor + 1, self.row.last)
        if fence == self.row.fence and self.row.node:
            self.row = decide_push(self.row, Advance("t", fence, cursor))
            assert self.row.cursor == cursor and self.row.attempt == 0 and not self.row.error
        else:
            with pytest.raises(LeaseLost):
                decide_push(self.row, Advance("t", fence, cursor))

    @rule(node=NODES, error=st.sampled_from(["", "refused"]), dead=st.booleans(), moved=st.booleans())
    def release(self, node: str, error: str, dead: bool, moved: bool) -> None:
        before, fence = self.row, self.leases.pop(node, -1)
        cursor = min(before.cursor + moved, before.last)
        self.row = decide_push(before, ReleasePush(fence, cursor, self.now, 10.0, error, dead))
        if fence != before.fence:
            assert self.row is before
        else:
            assert not self.row.node and self.row.at == self.now + 10.0
            if error or dead:
                assert self.row.dead == dead
                assert self.row.attempt == (1 if cursor != before.cursor else before.attempt + 1)

    @rule(cursor=st.one_of(st.none(), st.integers(0, 100)))
    def redeliver(self, cursor: int | None) -> None:
        self.row = decide_push(self.row, Redeliver(cursor))
        assert not self.row.dead and self.row.at == 0 and self.row.attempt == 0

    @rule()
    def replace(self) -> None:
        before = self.row
        self.row = decide_push(before, Replace())
        assert (self.row.cursor, self.row.last) == (before.cursor, before.last) and not self.row.dead

    @invariant()
    def nothing_is_told_that_is_not_there(self) -> None:
        assert self.row.cursor <= self.row.last


TestPushMachine = PushMachine.TestCase
TestPushMachine.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("row", "cursor"),
    [
        (TaskRow(seq=5, state=TaskState.WORKING), 5),
        (TaskRow(seq=5, state=TaskState.INPUT_REQUIRED), 4),
        (TaskRow(seq=5, state=TaskState.COMPLETED, done=True), 4),
    ],
)
def test_a_new_push_config_gets_the_status_of_a_waiting_task(row: TaskRow, cursor: int) -> None:
    assert first_push_row(row) == PushRow(cursor=cursor, last=5)
