"""Whatever is done to it, every store answers as the one in memory does.

Two handles on the same database take turns, as two processes would, so what one of them keeps in memory must never be
mistaken for what is in the database.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dragoman.engine.protocols import Delivered, FoundTasks, Lease, LeaseLost, NewMail, Store, TaskExists
from dragoman.engine.records import Cancel, Record
from dragoman.errors import A2AError
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from tests.conformance.conftest import SHARED, STORES
from tests.conformance.records import chunk, folded, mail, reply, seq_of, status, turn

TASKS, NODES, KEYS = (
    st.sampled_from(["t1", "t2", "t3"]),
    st.sampled_from(["n1", "n2"]),
    st.sampled_from(["", "", "k"]),
)
STATES = st.sampled_from(list(TaskState)[1:])
HANDLES, SCOPES = st.integers(0, 1), st.sampled_from([Scope("a", "b", "c"), Scope("a", "b", "d")])


def plain(value: Any) -> Any:
    """A result without the store's own numbers, to be compared."""
    match value:
        case Delivered():
            lease = plain(value.lease)
            return folded(value.snapshot), value.seq, lease, value.duplicate
        case Lease():
            return value.scope, value.task, value.fence, value.attempt
        case FoundTasks():
            return [folded(s) for s in value.snapshots], value.next, value.total
        case Record():
            return value.seq, value.kind, value.raw
        case list() | tuple():
            return [plain(item) for item in value]
        case Exception():
            return type(value)
        case _:
            return value


class Agreement(RuleBasedStateMachine):
    name: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name)
        self.model = STORES["memory"](folder)
        self.handles = [STORES[self.name](folder), STORES[self.name](folder)]
        self.leases: list[tuple[Lease, Lease]] = []
        """The same lease, as the model and as the store gave it."""
        self.cursors: list[str] = []
        self.at = 0

        async def begin() -> None:
            for store, nodes in ((self.model, "n1 n2"), (self.handles[0], "n1"), (self.handles[1], "n2")):
                await store.open()
                for node in nodes.split():
                    await store.join(node, ttl=1e6)

        self.runner.run(begin())

    def teardown(self) -> None:
        async def end() -> None:
            for store in self.handles:
                await store.close()

        self.runner.run(end())
        self.runner.close()
        self.folder.cleanup()

    def moment(self) -> str:
        self.at += 1
        return f"2026-01-01T00:00:00.{self.at // 2:03}Z"  # now and then two share a moment

    def both(self, handle: int, act: Callable[[Store, int], Awaitable[Any]]) -> tuple[Any, Any]:
        async def outcome(store: Store, side: int) -> Any:
            try:
                return await act(store, side)
            except (A2AError, LeaseLost, NewMail, TaskExists) as error:
                return error

        expected = self.runner.run(outcome(self.model, 0))
        shape = plain(expected)
        got = self.runner.run(outcome(self.handles[handle], 1))
        assert plain(got) == shape
        return expected, got

    def keep(self, expected: Any, got: Any) -> None:
        if isinstance(expected, Delivered):
            expected, got = expected.lease, got.lease
        if isinstance(expected, Lease):
            self.leases.append((expected, got))

    @rule(handle=HANDLES, scope=SCOPES, task=TASKS, key=KEYS, node=NODES | st.just(""), bare=st.booleans())
    def create(self, handle: int, scope: Scope, task: str, key: str, node: str, bare: bool) -> None:
        sent = mail(at=self.moment(), reply=bare)
        self.keep(
            *self.both(
                handle, lambda s, _: s.scope(scope).create(task, "c" + task, sent, dedupe=key, node=node)
            )
        )

    @rule(
        handle=HANDLES,
        scope=SCOPES,
        task=TASKS,
        node=NODES,
        bare=st.booleans(),
        end=st.none() | STATES,
        apart=st.booleans(),
    )
    def begin(
        self, handle: int, scope: Scope, task: str, node: str, bare: bool, end: TaskState | None, apart: bool
    ) -> None:
        """A task that begins at once, and may have ended before it is on disk."""
        sent = mail(at=self.moment(), reply=bare)
        records = self.records([end] if end else [], [] if end else [reply()])

        async def act(store: Store, side: int) -> Delivered:
            log = store.scope(scope)
            begun = log.begin(task, "c" + task, sent, node=node)
            if begun is None:
                begun = await log.create(task, "c" + task, sent, node=node)
            assert begun.lease is not None
            writing: list[Awaitable[Any]] = [begun.stored] if begun.stored else []
            if apart:
                writing.append(log.append(begun.lease, records[side][:1]))
            if end or bare:
                writing.append(log.settle(begun.lease, records[side][apart:], mail=1))
            for outcome in await asyncio.gather(*writing, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
            return begun

        self.keep(*self.both(handle, act))

    @rule(handle=HANDLES, scope=SCOPES, task=TASKS, key=KEYS, node=NODES | st.just(""), cancel=st.booleans())
    def deliver(self, handle: int, scope: Scope, task: str, key: str, node: str, cancel: bool) -> None:
        sent = Cancel(principal="p") if cancel else mail(at=self.moment())
        self.keep(*self.both(handle, lambda s, _: s.scope(scope).deliver(task, sent, dedupe=key, node=node)))

    @rule(
        handle=HANDLES, pick=st.integers(0, 50), states=st.lists(STATES, max_size=2), text=st.text(max_size=3)
    )
    def append(self, handle: int, pick: int, states: list[TaskState], text: str) -> None:
        if self.leases:
            leases = self.leases[pick % len(self.leases)]
            # A task that is over is settled; appending a last state would be a mistake of the writer.
            states = [state for state in states if not state.terminal]
            records = self.records(states, [chunk(text)])
            self.both(handle, lambda s, side: s.scope(leases[0].scope).append(leases[side], records[side]))

    @rule(
        handle=HANDLES,
        pick=st.integers(0, 50),
        states=st.lists(STATES, max_size=1),
        bare=st.booleans(),
        stale=st.booleans(),
    )
    def settle(self, handle: int, pick: int, states: list[TaskState], bare: bool, stale: bool) -> None:
        if not self.leases:
            return
        leases = self.leases[pick % len(self.leases)]
        records = self.records([] if bare else states, [reply()] if bare else [])

        async def act(store: Store, side: int) -> int:
            log = store.scope(leases[0].scope)
            seen = 1 if stale else (await log.load(leases[0].task)).mail
            return seq_of(await log.settle(leases[side], records[side], mail=seen))

        self.both(handle, act)

    def records(self, states: list[TaskState], rest: list[Record]) -> tuple[list[Record], list[Record]]:
        one = [turn(), *(status(state, at=self.moment()) for state in states), *rest]
        return one, [Record(record.kind, record.body) for record in one]

    @rule(handle=HANDLES, node=NODES)
    def claim(self, handle: int, node: str) -> None:
        expected, got = self.both(handle, lambda s, _: s.claim(node, limit=100))
        self.leases.extend(zip(expected, got, strict=True))

    @rule(handle=HANDLES, pick=st.integers(0, 50))
    def release(self, handle: int, pick: int) -> None:
        if self.leases:
            leases = self.leases[pick % len(self.leases)]
            self.both(handle, lambda s, side: s.release(leases[side]))

    @rule(node=NODES)
    def leave_and_join_again(self, node: str) -> None:
        async def act(store: Store, _: int) -> None:
            await store.leave(node)
            await store.join(node, ttl=1e6)

        self.both(0 if node == "n1" else 1, act)

    @rule(handle=HANDLES, old=st.integers(0, 20))
    def purge(self, handle: int, old: int) -> None:
        self.both(handle, lambda s, _: s.purge(f"2026-01-01T00:00:00.{old:03}Z", limit=1))

    @rule(handle=HANDLES, scope=SCOPES, key=st.just("k"))
    def seen(self, handle: int, scope: Scope, key: str) -> None:
        self.both(handle, lambda s, _: s.scope(scope).find_delivered(key))

    @rule(handle=HANDLES, scope=SCOPES, task=TASKS, after=st.integers(0, 8))
    def read(self, handle: int, scope: Scope, task: str, after: int) -> None:
        async def act(store: Store, _: int) -> list[Record]:
            return list(await store.scope(scope).read(task, after=after))

        self.both(handle, act)

    @rule(
        handle=HANDLES,
        scope=SCOPES,
        state=st.just(TaskState.UNSPECIFIED) | STATES,
        context=st.sampled_from(["", "ct1"]),
        since=st.integers(0, 10),
        cursor=st.integers(0, 5),
        limit=st.integers(1, 3),
    )
    def find(
        self, handle: int, scope: Scope, state: TaskState, context: str, since: int, cursor: int, limit: int
    ) -> None:
        token = self.cursors[cursor] if cursor < len(self.cursors) else ""
        moment = f"2026-01-01T00:00:00.{since:03}Z" if since else ""
        query = ListTasks(context_id=context, status=state, status_timestamp_after=moment, page_token=token)
        expected, _ = self.both(handle, lambda s, _: s.scope(scope).find(query, limit=limit))
        if isinstance(expected, FoundTasks) and expected.next:
            self.cursors = [expected.next, *self.cursors][:5]

    @invariant()
    def every_task_is_the_same_everywhere(self) -> None:
        for scope in (Scope("a", "b", "c"), Scope("a", "b", "d")):
            for task in ("t1", "t2", "t3"):
                for handle in (0, 1):

                    async def act(store: Store, _: int, scope: Scope = scope, task: str = task) -> Any:
                        return folded(await store.scope(scope).load(task))

                    self.both(handle, act)


for _name in SHARED:
    _machine = type(_name.title(), (Agreement,), {"name": _name})
    _machine.TestCase.settings = settings(max_examples=40, stateful_step_count=40)  # type: ignore[attr-defined]
    globals()[f"Test{_name.title()}AgreesWithMemory"] = _machine.TestCase  # type: ignore[attr-defined]
