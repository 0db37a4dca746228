"""`/agent` and `/parallel`: delegate work to other agents of the tenant.

The other agent has its own task. Its events are forwarded, a cancel is passed on, and after a crash the turn continues with
the same task. The depth is at most two, and the other agent gets at most the rest of the budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Unpack

from dragoman.engine.delegate import RequestOptions
from dragoman.engine.run import most_specific
from dragoman.engine.turn import record_of
from dragoman.errors import A2AError, StoreUnavailable
from dragoman.hub.agents.constitution import ID, INDEX_ID
from dragoman.hub.agents.event_writer import events_id
from dragoman.hub.quote import flatten, quote
from dragoman.hub.tools import Command, Session, Tool
from dragoman.model.content import Message
from dragoman.model.fold import Fold
from dragoman.model.questions import questions_in
from dragoman.model.task import TaskState

MAX_DEPTH = 2
MAX_CHILDREN = 16

ContextLines = Callable[[Session], Awaitable[list[str]]]
"""Returns lines about the work so far, for the delegated agent."""


class AgentTool(Tool):
    names = ("/agent",)
    usage = "/agent <id> <task>   have another agent do a task; it sees only what you write there"

    def __init__(self, context: ContextLines | None = None) -> None:
        self._context = context

    def label(self, command: Command) -> str:
        return f"agent:{command.args.partition(' ')[0]}"

    async def run(self, command: Command, session: Session) -> str:
        agent, _, task = command.args.partition(" ")
        if (refusal := _refusal(agent, task, session)) is not None:
            return refusal
        context = await self._context(session) if self._context is not None else []
        stream = session.writer.next_stream()
        return _result_text(await delegate(session, agent, task, session.key, stream, context))


class ParallelTool(Tool):
    names = ("/parallel",)
    usage = "/parallel … /endparallel   several /agent lines between them, done at the same time (16 at most)"

    def __init__(self, context: ContextLines | None = None) -> None:
        self._context = context

    def label(self, command: Command) -> str:
        return f"parallel:{len(parse_children(command.body or ''))}"

    async def run(self, command: Command, session: Session) -> str:
        tasks = parse_children(command.body or "")
        if not tasks:
            return "ERR: usage: /agent <id> <task> lines between /parallel and /endparallel"
        if len(tasks) > MAX_CHILDREN:
            return f"ERR: {len(tasks)} children; {MAX_CHILDREN} at most"
        context = await self._context(session) if self._context is not None else []
        key = session.key
        streams = [session.writer.next_stream() for _ in tasks]

        async def start(n: int, agent: str, task: str) -> str | Delegation:
            if (refusal := _refusal(agent, task, session)) is not None:
                return refusal
            delegation = Delegation(session, agent, f"{key}/{n}", streams[n - 1])
            await delegation.begin(task, context, share=len(tasks))
            return delegation if delegation.question is not None else _result_text(await delegation.end())

        try:
            async with asyncio.TaskGroup() as group:
                jobs = [group.create_task(start(n, *child)) for n, child in enumerate(tasks, 1)]
        except BaseExceptionGroup as errors:
            raise most_specific(errors) from None
        blocks = []
        for n, ((agent, _), job) in enumerate(zip(tasks, jobs, strict=True), 1):
            found = job.result()
            if isinstance(found, Delegation):  # one question after another: each is a question of this turn
                found = _result_text(await found.end())
            title = f"child {n}/{len(tasks)} — /agent {flatten(agent, 80)}"
            blocks.append(f"[{title}]\n{quote(found)}\n[END CHILD {n}]")
        return "\n".join(blocks)


def _result_text(outcome: tuple[bool, str]) -> str:
    ok, text = outcome
    return text if ok else f"ERR: {text}"


def parse_children(body: str) -> list[tuple[str, str]]:
    """The agents and tasks of a block."""
    found = []
    for line in body.split("\n"):
        if line.startswith("/agent "):
            agent, _, task = line.removeprefix("/agent ").strip().partition(" ")
            found.append((agent, task.strip()))
    return found


def _refusal(agent: str, task: str, session: Session) -> str | None:
    """Why a task is not delegated, as the result of the command; None if it may be."""
    if not agent or not task.strip():
        return "ERR: usage: /agent <id> <task>"
    if not ID.fullmatch(agent):
        return f"ERR: {agent[:80]!r} is not the id of an agent"
    if agent == INDEX_ID:
        return "ERR: no agent may delegate to index"
    if agent == session.agent:
        return "ERR: an agent cannot delegate to itself"
    if session.depth >= MAX_DEPTH:
        return f"ERR: delegation may be {MAX_DEPTH} levels deep at most; do it yourself"
    if session.budget.left == 0:
        return "ERR: the token budget of this request is used up"
    return None


async def delegate(
    session: Session, agent: str, task: str, key: str, stream: int, context: list[str], *, channel: str = ""
) -> tuple[bool, str]:
    """Delegate `task` to `agent`. Returns whether it succeeded, and its answer.

    `channel`: the channel of its answer, if that is passed on unchanged.
    """
    delegation = Delegation(session, agent, key, stream)
    await delegation.begin(task, context, channel=channel)
    return await delegation.end()


class Delegation:
    """A task of another agent. If that agent needs an approval, our caller is asked, and the other agent gets the answer."""

    def __init__(self, session: Session, agent: str, key: str, stream: int) -> None:
        self._session, self._agent, self._key = session, agent, key
        self._source, self._depth = {"agent": agent, "stream_id": stream}, session.depth + 1
        self._fold, self._forwarded = Fold(), 0
        self._error = ""

    async def begin(self, task: str, context: list[str], *, share: int = 1, channel: str = "") -> None:
        """Follow the task until it ends or asks. It gets `1/share` of the remaining budget."""
        session = self._session
        about = {
            "relay": True,
            "stream_id": self._source["stream_id"],
            "asker": session.agent,
            "original": session.original,
            "context": _context(session, self._depth, context),
            "conversation_id": session.conversation,
            "channel": channel,
            "budget": max(1, left // share) if (left := session.budget.left) is not None else 0,
        }
        metadata = {f"x-arbiter.{name}": value for name, value in about.items() if value}
        await self._follow(task, self._key, metadata=metadata)

    @property
    def question(self) -> Message | None:
        """What the agent needs an approval for; None if it does not wait for one."""
        task = self._fold.task if self._fold.task_id else None
        if self._error or task is None or not task.state.interrupted or task.status.message is None:
            return None
        questions = questions_in(task.status.message.metadata)
        return task.status.message if questions and all(each.approval for each in questions) else None

    async def end(self) -> tuple[bool, str]:
        """Pass questions on until there is none, and return whether the task succeeded, and its answer."""
        session, n = self._session, 0
        while (question := self.question) is not None:
            n += 1
            place, task = f"{self._key}/pass/{n}", self._fold.task
            assert task is not None
            answer = await record_of(session.turn).ask(task.state, question, Message, place, {}, fresh=True)
            answer_message = Message(parts=answer.parts)
            await self._follow(answer_message, place, task=task.id, context=task.context_id)
        if self._error:
            ok, text = False, f"{self._error}. Do not try the same again."
            if not _has_begun(self._fold):
                return ok, text  # the task was not created
        else:
            ok, text = _outcome(self._agent, self._fold)
        writer = session.writer
        await writer.forward("sub_agent_response", {**self._source, "depth": self._depth, "content": text})
        await writer.forward("stream_end", {**self._source, "ok": ok})
        return ok, text

    async def _follow(self, content: str | Message, key: str, **options: Unpack[RequestOptions]) -> None:
        """Follow the other agent's task, and forward its events."""
        session, fold = self._session, self._fold
        events = session.turn.stream(self._agent, content, key=key, wait=0, **options)
        try:
            async with aclosing(events) as stream:
                async for event in stream:
                    if not _has_begun(fold):
                        await session.writer.forward("stream_start", {**self._source, "depth": self._depth})
                    fold.apply(event)
                    events_artifact = fold.artifacts.get(events_id(fold.task_id))
                    if events_artifact is None:
                        continue
                    for part in events_artifact.parts[self._forwarded :]:
                        self._forwarded += 1
                        kind, payload = part.data["kind"], part.data["data"]
                        if kind == "token_usage":
                            session.budget.spent += payload["input_tokens"] + payload["output_tokens"]
                        await session.writer.forward(kind, payload)
        except StoreUnavailable:
            raise  # the turn runs again, and follows the same task
        except A2AError as error:
            self._error = error.message


def _has_begun(fold: Fold) -> bool:
    return bool(fold.task_id) or fold.message is not None


def _outcome(agent: str, fold: Fold) -> tuple[bool, str]:
    """Whether a delegated task succeeded, and its answer or error."""
    if fold.message is not None:
        return True, fold.message.text
    task = fold.task
    assert task is not None
    text = task.status.message.text if task.status.message is not None else ""
    if task.state is TaskState.COMPLETED:
        return True, text or task.text or "(no answer)"
    if task.state.interrupted:
        return False, f"{agent} asks: {text or task.text}. Ask it again with the answer in the task."
    return False, f"{agent} ended {task.state.word}: {text or 'no reason given'}. Do not try the same again."


def _context(session: Session, depth: int, more: list[str]) -> str:
    """The context that precedes the task in a constitution's prompt."""
    lines = [
        f"original request: {flatten(session.original, 200)}",
        f"delegated by: {session.agent}",
        f"pipeline depth: {depth}/{MAX_DEPTH}",
        *more,
    ]
    quoted = quote("\n".join(lines))
    return f"[DELEGATION CONTEXT]\n{quoted}\n[END DELEGATION CONTEXT]"
