"""`/a2a`: agents of others."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing, suppress

from dragoman.engine.records import Child, Record
from dragoman.engine.turn import record_of
from dragoman.errors import A2AError, Unreachable
from dragoman.hub.tools.remote_agents import PREFIX, Remotes
from dragoman.hub.tools.tool import Command, Session
from dragoman.model.content import Message, Part, Role
from dragoman.model.fold import Fold
from dragoman.model.ops import Call, CancelTask, Scope


class A2ATool:
    names = ("/a2a",)
    bundle = "a2a"
    usage = "/a2a list | /a2a card <name> | /a2a call <name> <message>   agents elsewhere; they see only the message you write"

    def __init__(self, remotes: Remotes | None = None) -> None:
        self._remotes = remotes

    def label(self, command: Command) -> str:
        return "a2a:" + ".".join(command.args.split()[:2])

    async def repeatable(self, command: Command, session: Session) -> bool:
        """A call is, when the remote's task is known, or when the remote knows a message that it has had already."""
        verb, _, rest = command.args.partition(" ")
        key, turn, name = f"call/{session.key}", session.turn, rest.strip().partition(" ")[0]
        if key in record_of(turn).children or record_of(turn).steps.get(key) is not None:
            return True
        if verb != "call" or self._remotes is None:
            return True
        if session.broken_off:
            task = await self._remotes.has(name, _message_id(session))
            if task:  # go on with it, as if the remote had said so in time
                record_of(turn).children[key] = child = Child(key=key, peer=PREFIX + name, task=task)
                await record_of(turn).commit(Record("child", child))
            return bool(task)
        try:
            return await self._remotes.deduplicates(name)
        except A2AError:
            return False

    async def run(self, command: Command, session: Session) -> str:
        remotes = self._remotes
        if remotes is None or not remotes.agents:
            return "ERR: A2A unavailable: this hub has no remote agents"
        verb, _, rest = command.args.partition(" ")
        name, _, text = rest.strip().partition(" ")
        try:
            if verb == "list":
                return "\n".join(await remotes.listed())
            if verb == "card" and name:
                return await self._card(remotes, name)
            if verb == "call" and name and text.strip():
                return await self._call(remotes, name, text.strip(), session)
        except A2AError as error:
            return f"ERR: {error.message}"
        return f"ERR: usage: {self.usage}"

    async def _card(self, remotes: Remotes, name: str) -> str:
        card = await remotes.card(name)
        lines = [f"name: {card.name}", f"url: {remotes.agents[name].url}", f"version: {card.version}"]
        lines += [f"protocol: {i.protocol_version} ({i.protocol_binding})" for i in card.supported_interfaces]
        lines += [f"description: {card.description}", "skills:"]
        lines += [f"  {skill.name} — {skill.description}" for skill in card.skills]
        return "\n".join(lines)

    async def _call(self, remotes: Remotes, name: str, text: str, session: Session) -> str:
        if name not in remotes.agents:
            return f"ERR: no remote agent named '{name}' (try /a2a list)"
        turn, fold, limit = session.turn, Fold(), remotes.agents[name].timeout
        message = Message(message_id=_message_id(session), role=Role.USER, parts=(Part(text=text),))
        try:
            async with asyncio.timeout(limit):
                async with aclosing(turn.stream(PREFIX + name, message, key=session.key)) as events:
                    async for event in events:
                        fold.apply(event)
        except TimeoutError:
            await self._give_up(remotes, name, fold.task_id)
            raise Unreachable(f"{name} did not finish within {limit:g} s") from None
        if fold.message is not None:
            return fold.message.text or "(remote agent returned no text)"
        task = fold.task
        assert task is not None
        said = task.status.message.text if task.status.message is not None else ""
        said = said or task.text or f"(remote agent returned no text; state={task.state.word})"
        return f"ERR: {name} ended {task.state.word}: {said}" if task.state.word in _BAD else said

    async def _give_up(self, remotes: Remotes, name: str, task: str) -> None:
        """Tell the remote that nobody waits any more."""
        if not task:
            return
        with suppress(A2AError, TimeoutError):
            async with asyncio.timeout(5):
                service, _ = await remotes.find(PREFIX + name, Scope())
                await service.call(Call(), CancelTask(id=task))


def _message_id(session: Session) -> str:
    """The same, if it is sent again."""
    return hashlib.sha256(session.once.encode()).hexdigest()[:32]


_BAD = ("failed", "rejected", "canceled")
