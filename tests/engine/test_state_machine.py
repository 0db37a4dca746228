"""Anything, in any order: messages, streams, cancels, answers, nodes that die and nodes that only seem to.

A model of what may be true is kept beside the engine. After each step: logs have no gap, finished tasks stay as they
are, and what each reader heard is a piece of its log without a hole. In the end every message was answered, or its task
is over.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from dragoman.agent.agent import Agent
from dragoman.buses.local import LocalBus
from dragoman.engine.engine import Engine
from dragoman.engine.protocols import Store
from dragoman.engine.records import PUBLIC
from dragoman.engine.turn import Turn
from dragoman.errors import A2AError, TaskClosed, TaskNotCancelable, Unavailable, UnsupportedOperation
from dragoman.model.ops import CancelTask, GetTask, Scope, SubscribeToTask
from dragoman.model.task import Task, TaskState
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite.store import SqliteStore
from tests.engine.conftest import call, say

SCOPE = Scope("", "a", "")
SCRIPTS = st.lists(st.sampled_from(["chunk", "status", "step", "wait", "ask", "fail"]), max_size=6).map(
    " ".join
)


class Listener:
    """Hears a task, on whatever node there is, and goes on where it was when its node dies."""

    def __init__(self, task: str, first: int | None) -> None:
        self.task = task
        self.first = first
        """Everything after this record; None: the task as it is, and everything after it."""
        self.heard: list[int] = []
        self.job: asyncio.Task[None] | None = None
        self.done = False

    async def listen(self, engine: Engine) -> None:
        after = self.heard[-1] if self.heard else self.first
        with suppress(Unavailable):
            async for batch in engine.stream(call(after=after), SubscribeToTask(id=self.task)):
                for response in batch:
                    if isinstance(response.event, Task):
                        assert self.first is None and not self.heard
                        self.first = response.seq
                    else:
                        self.heard.append(response.seq)
            self.done = True


class Tasks(RuleBasedStateMachine):
    tasks = Bundle("tasks")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.gates: dict[str, asyncio.Semaphore] = {}
        self.sent: dict[str, list[str]] = {}
        self.over: dict[str, Task] = {}
        self.listeners: list[Listener] = []
        self.sending: list[asyncio.Task[Any]] = []
        self.wrong: list[str] = []
        self.zombies: list[Engine] = []
        self.stores: list[Store] = []
        self.agent = self._agent()
        self.loop.run_until_complete(self._start())

    def _store(self) -> Store:
        raise NotImplementedError

    def _lapse(self, store: Any, node: str) -> None:
        """The time of a node is over, as far as others know."""
        raise NotImplementedError

    async def _start(self) -> None:
        self.store = self._store()
        self.engine = Engine(
            self.store, LocalBus(), lambda scope: self.agent, ttl=600, grace=0.01, max_attempts=99
        )
        await self.engine.start()

    def _agent(self) -> Agent:
        agent = Agent("a")

        @agent.skill
        async def perform(turn: Turn) -> str:
            for i, word in enumerate(turn.text.split()):
                match word:
                    case "chunk":
                        await turn.artifact("out").write(f"{i} ")
                    case "status":
                        await turn.status(f"status {i}")
                    case "step":
                        await turn.step(f"{i}", self._step, turn, f"{i}")
                    case "wait":
                        await self.gates.setdefault(turn.task_id, asyncio.Semaphore(0)).acquire()
                    case "ask":
                        await turn.ask(f"question {i}")
                    case "fail":
                        raise A2AError("as it was told to")
            return "done"

        return agent

    async def _step(self, turn: Turn, key: str) -> int:
        snapshot = await self.store.scope(SCOPE).load(turn.task_id)
        if snapshot.turn == turn.n and key in snapshot.steps:
            self.wrong.append(f"step {key} of turn {turn.n} was on record and ran again")
        return len(snapshot.mails)

    def run(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(20):
                return await work

        return self.loop.run_until_complete(bounded())

    # -- what may happen ---------------------------------------------------------------------------------------

    @rule(target=tasks, script=SCRIPTS)
    def send(self, script: str) -> Any:
        request = say(script, return_immediately=True)
        task = self.run(self.engine.call(call(), request))
        self.sent[task.id] = [request.message.message_id]
        return task.id

    @rule(target=tasks, script=SCRIPTS)
    def stream(self, script: str) -> Any:
        request = say(script)
        stream = self.engine.stream(call(), request)
        (first,) = self.run(anext(stream))
        self.run(stream.aclose())  # type: ignore[attr-defined]
        assert isinstance(first.event, Task)
        self.sent[first.event.id] = [request.message.message_id]
        listener = Listener(first.event.id, first.seq)
        self.listeners.append(listener)
        self._listen(listener)
        return first.event.id

    @rule(task=tasks, text=SCRIPTS, key=st.sampled_from(["", "", "k1", "k2"]))
    def say_more(self, task: str, text: str, key: str) -> None:
        request = say(text, task=task, return_immediately=True)
        try:
            self.run(self.engine.call(call(idempotency_key=f"{task}{key}" if key else ""), request))
        except TaskClosed:
            assert self.state(task).terminal
        else:
            snapshot = self.run(self.store.scope(SCOPE).load(task))
            if request.message.message_id in {m.message.message_id for _, m in snapshot.mails}:
                self.sent[task].append(request.message.message_id)
            else:
                assert key

    @rule(script=SCRIPTS)
    def send_and_wait_in_the_background(self, script: str) -> None:
        self.sending.append(self.loop.create_task(self.engine.call(call(), say(script))))
        self.turn()

    @rule(task=tasks)
    def cancel(self, task: str) -> None:
        before = self.state(task)
        try:
            canceled = self.run(self.engine.call(call(), CancelTask(id=task)))
        except TaskNotCancelable:
            assert self.state(task).terminal and self.state(task) is not TaskState.CANCELED
        else:
            assert canceled.state.terminal
            assert canceled.state is TaskState.CANCELED or not before.terminal

    @rule(task=tasks)
    def subscribe(self, task: str) -> None:
        listener = Listener(task, None)
        if not self.state(task).terminal:
            self.listeners.append(listener)
            self._listen(listener)

    @rule(task=tasks, back=st.integers(0, 30))
    def come_back(self, task: str, back: int) -> None:
        seq = self.run(self.store.scope(SCOPE).load(task)).seq
        listener = Listener(task, max(0, seq - back))
        self.listeners.append(listener)
        self._listen(listener)

    @rule(task=tasks)
    def let_through(self, task: str) -> None:
        self.gates.setdefault(task, asyncio.Semaphore(0)).release()
        self.turn()

    @rule(turns=st.integers(1, 20))
    def turn(self, turns: int = 3) -> None:
        async def pass_by() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.run(pass_by())

    @rule()
    def die(self) -> None:
        """The process ends in the middle of everything."""
        self.run(self._end(self.engine))
        self._succeed()

    @rule()
    def seem_dead(self) -> None:
        """The others think that it is dead, and it goes on writing."""
        self.zombies.append(self.engine)
        self._succeed()

    def _succeed(self) -> None:
        self._lapse(self.store, self.engine.runner.node)
        self.stores.append(self.store)
        for listener in self.listeners:
            if listener.job is not None:
                listener.job.cancel()
        for sending in self.sending:
            sending.cancel()
        self.run(asyncio.sleep(0))
        self.run(self._start())
        for listener in self.listeners:
            if not listener.done:
                self._listen(listener)

    async def _end(self, engine: Engine) -> None:
        jobs = [run.asyncio_task for run in engine.runner._runs]
        jobs += engine.runner._tasks + engine._background
        for job in jobs:
            job.cancel()
        if jobs:
            await asyncio.wait(jobs)

    def _listen(self, listener: Listener) -> None:
        listener.job = self.loop.create_task(listener.listen(self.engine))
        self.turn()

    # -- what must be true -------------------------------------------------------------------------------------

    def state(self, task: str) -> TaskState:
        return self.task(task).state

    def task(self, task: str) -> Task:
        found: Task = self.run(self.engine.call(call(), GetTask(id=task)))
        return found

    @invariant()
    def logs_have_no_gap_and_the_ends_of_tasks_stay(self) -> None:
        assert not self.wrong
        for task, messages in self.sent.items():
            now = self.task(task)
            records = self.run(self.store.scope(SCOPE).read(task))
            assert [record.seq for record in records] == list(range(1, len(records) + 1))
            assert self.over.setdefault(task, now) == now or not self.over[task].state.terminal
            if now.state.terminal:
                self.over[task] = now
                assert records[-1].terminal, "something was written after the end"
            else:
                del self.over[task]
            mine = Counter(m.message_id for m in now.history)
            assert all(mine[message] == 1 for message in messages)
            assert set(mine.values()) <= {1}
            steps = Counter(self._turns_steps(records))
            assert set(steps.values()) <= {1}

    def _turns_steps(self, records: Any) -> list[tuple[int, str]]:
        turn, steps = 0, []
        for record in records:
            if record.kind == "turn":
                turn = record.body.n
            elif record.kind == "step":
                steps.append((turn, record.body.key))
        return steps

    @invariant()
    def readers_heard_a_piece_of_the_log_without_a_hole(self) -> None:
        for listener in self.listeners:
            if listener.job is not None and listener.job.done() and not listener.job.cancelled():
                with suppress(UnsupportedOperation):  # it was over before we came
                    listener.job.result()
            if not listener.heard:
                continue
            assert listener.first is not None
            records = self.run(self.store.scope(SCOPE).read(listener.task))
            public = [r.seq for r in records if r.kind in PUBLIC and r.seq > listener.first]
            assert listener.heard == public[: len(listener.heard)]

    def teardown(self) -> None:
        try:
            self.run(self._finish())
            for task in self.sent:
                snapshot = self.run(self.store.scope(SCOPE).load(task))
                assert snapshot.terminal
                if snapshot.state is TaskState.COMPLETED:
                    assert snapshot.first_unread is None, "a message was never answered"
            self.logs_have_no_gap_and_the_ends_of_tasks_stay()
            self.readers_heard_a_piece_of_the_log_without_a_hole()
            for listener in self.listeners:
                records = self.run(self.store.scope(SCOPE).read(listener.task))
                if listener.first is not None:
                    public = [r.seq for r in records if r.kind in PUBLIC and r.seq > listener.first]
                    assert listener.heard == public
        finally:
            self.loop.run_until_complete(self._close())
            self.loop.close()
            self.folder.cleanup()

    async def _finish(self) -> None:
        """Let everything through and answer everything, until all tasks are over and all readers know it."""
        while True:
            open_tasks = []
            for task in self.sent:
                now = await self.engine.call(call(), GetTask(id=task))
                if now.state is TaskState.INPUT_REQUIRED:
                    with suppress(TaskClosed):
                        await self.engine.call(call(), say("an answer", task=task, return_immediately=True))
                if not now.state.terminal:
                    open_tasks.append(task)
                    self.gates.setdefault(task, asyncio.Semaphore(0)).release()
            for job in [listener.job for listener in self.listeners]:
                if job is not None and job.done() and not job.cancelled() and job.exception():
                    break
            if not open_tasks and all(li.job is None or li.job.done() for li in self.listeners):
                return
            await asyncio.sleep(0)

    async def _close(self) -> None:
        jobs = [listener.job for listener in self.listeners if listener.job is not None] + self.sending
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        for engine in (*self.zombies, self.engine):
            with suppress(A2AError):
                await engine.stop(drain=0)
        for store in self.stores:
            await store.close()


class InMemory(Tasks):
    def _store(self) -> Store:
        return self.stores[0] if self.stores else MemoryStore()

    def _lapse(self, store: Any, node: str) -> None:
        store._nodes.pop(node)


class InSqlite(Tasks):
    def _store(self) -> Store:
        return SqliteStore(Path(self.folder.name) / "tasks.db", synchronous="off", cached_snapshots=2)

    def _lapse(self, store: Any, node: str) -> None:
        store._locks.drop_all()


UNHURRIED = settings(deadline=None, suppress_health_check=list(HealthCheck))

TestInMemory = InMemory.TestCase
TestInMemory.settings = settings(UNHURRIED, max_examples=60, stateful_step_count=25)
TestInSqlite = InSqlite.TestCase
TestInSqlite.settings = settings(UNHURRIED, max_examples=15, stateful_step_count=20)
