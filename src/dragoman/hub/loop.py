"""An agent made of a constitution: a model that thinks in turns, and commands that are carried out between them.

`ConstitutionAgent` is an ordinary program of the engine, and its turn an ordinary durable turn: each model call is a step
(`model/3`), each command is one (`tool/3/1`), so a hub that was killed goes on in the middle, asks no model and runs no
tool twice. What it tells while it works is in `telling.py`.

A caller of this hub says more about a request in its metadata. It is believed only when it comes from the hub itself
(`Call.dialect` is `NATIVE`, or another agent of the hub asks), never from an A2A caller:

    x-arbiter.conversation_id   the conversation a native request belongs to
    x-arbiter.original          what the user asked in the first place
    x-arbiter.relay, .stream_id, .budget, .asker   from the agent that asks

The last status of the task has `x-arbiter.agent_id .input_tokens .output_tokens .stop_reason .files_bytes`, on failure
`.error .error_type`, and `.gate_approved` when an advisor let the answer pass. Its message is the clean answer, with the
id `<task>-r`; of a failure, the error, with `<task>-err`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dragoman.engine.turn import Turn
from dragoman.errors import ContentTypeNotSupported, InvalidParams
from dragoman.hub.asking import Reply, ask
from dragoman.hub.commands import ENDS, parse
from dragoman.hub.constitution import INDEX_ID, Constitution, card
from dragoman.hub.dispatch import END, Dispatch
from dragoman.hub.filter import TextFilter
from dragoman.hub.gate import CONTINUE, REDIRECT, Verdict, question, verdict
from dragoman.hub.model import ChatMessage, Model, Prompt, ToolCall, ToolSpec, Usage
from dragoman.hub.prompt import CONTINUE as GO_ON
from dragoman.hub.prompt import query, roster, system
from dragoman.hub.telling import Telling
from dragoman.hub.tool import Budget, Command, Session, Tool
from dragoman.model.card import AgentCard
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import Principal, SendMessage
from dragoman.model.task import TaskState

NATIVE = "native"
"""The dialect of calls that the hub's own API makes."""
ITERATIONS = 6
CONTINUATIONS = 3
NO_ANSWER = "The agent stopped without an answer."

History = Callable[[Session], Awaitable[Sequence[ChatMessage]]]
Siblings = Callable[[], Awaitable[Sequence[Constitution]]]


class ConstitutionAgent:
    """A `Program`. `siblings` are the tenant's other agents; `roster`, if given, is what an orchestrator is told of them.

    `history` gives what was said before in the session's conversation. `native`: the model calls tools natively.
    """

    authorize = None

    def __init__(
        self,
        id: str,
        constitution: Constitution,
        *,
        model: Model,
        tools: Sequence[Tool] = (),
        roster: Callable[[], Awaitable[str]] | None = None,
        siblings: Siblings | None = None,
        history: History | None = None,
        version: str = "",
        native: bool = False,
    ) -> None:
        self.id, self.constitution, self.model = id, constitution, model
        self.tools = tuple(tools)
        self.names = tuple(name for tool in tools for name in tool.names)
        self.history, self.native = history, native
        self._roster, self._siblings = roster, siblings
        self._card = card(constitution, id, version)

    @property
    def card(self) -> AgentCard:
        return self._card

    async def extended_card(self, principal: Principal) -> AgentCard | None:
        return None

    def admit(self, request: SendMessage, principal: Principal) -> bool:
        if any(part.text is None for part in request.message.parts):
            raise ContentTypeNotSupported("this agent takes text only: text/plain")
        if not _text(request.message).strip():
            raise InvalidParams("the message says nothing", fields=(("message.parts", "hold no text"),))
        return False

    async def roster(self) -> str:
        if self._roster is not None:
            return await self._roster()
        return roster(await self._siblings()) if self._siblings is not None else ""

    async def work(self, turn: Turn) -> None:
        await _Thinking(self, turn).run()


class _Thinking:
    """One turn."""

    def __init__(self, agent: ConstitutionAgent, turn: Turn) -> None:
        self._agent, self._turn = agent, turn
        self._c = agent.constitution
        mail = turn.mail
        given = mail.metadata if mail.depth or mail.origin == NATIVE else {}
        relayed = bool(mail.depth and given.get("x-arbiter.relay"))
        stream_id = _int(given, "stream_id") if relayed else 0
        depth = mail.depth if relayed else 0
        self._text = _text(turn.message)
        self._telling = Telling(turn, agent.id, depth=depth, stream_id=stream_id, relayed=relayed)
        self._session = Session(
            tenant=turn.scope.tenant,
            agent=agent.id,
            constitution=self._c,
            turn=turn,
            telling=self._telling,
            budget=Budget(self._c.budget, _int(given, "budget")),
            conversation=_int(given, "conversation_id"),
            depth=mail.depth,
            stream_id=stream_id,
            original=str(given.get("x-arbiter.original") or self._text),
        )
        self._tools = tuple(tool for tool in agent.tools if not tool.bundle or tool.bundle in self._c.granted)
        self._dispatch = Dispatch(agent.tools, self._session)
        self._messages: list[ChatMessage] = []
        self._held: list[str] | None = None
        """Text that waits for the advisor's approval."""
        self._prose: list[str] = []
        self._calls: list[str] = []
        self._used = Usage()
        self._redirects = 0
        self._approved = False

    async def run(self) -> None:
        telling = self._telling
        if not telling.relayed:
            await telling.tell("stream_start")
        try:
            ok = await self._think()
        except asyncio.CancelledError:
            if self._turn.cancelled and not telling.relayed:
                await telling.tell("stream_end", ok=False)
            raise
        telling.close()
        if not telling.relayed:
            await telling.tell("stream_end", ok=ok)

    # -- thinking ----------------------------------------------------------------------------------------------

    async def _think(self) -> bool:
        self._messages = [*await self._before(), ChatMessage(role="user", content=await self._query())]
        for i in range(1, ITERATIONS + 1):
            if self._session.budget.left == 0:
                return self._fail("the token budget of this request is used up", "budget_exhausted")
            if self._telling.relayed:
                await self._telling.tell("agent_start")
            reply = await self._reply(i)
            if reply.error:
                return self._fail(reply.error, reply.error_code)
            commands = self._commands(reply)
            if not commands:
                judged = await self._judge(i)
                if judged.signal == CONTINUE:
                    await self._release()
                    return self._complete(reply.stop)
                if judged.signal != REDIRECT:
                    await self._telling.tell("escalation", reason=judged.text)
                    return self._fail(f"the advisor stopped the answer: {judged.text}", "advisor_halt")
                self._held = None
                self._messages += [
                    _said(reply),
                    ChatMessage(role="user", content=f"[ADVISOR]\n{judged.text}"),
                ]
                continue
            await self._release()
            if i == ITERATIONS:
                break
            await self._carry_out(i, reply, commands)
        return self._complete("max_iterations")

    async def _before(self) -> list[ChatMessage]:
        """What was said earlier: in the conversation, and on this task."""
        told = list(await self._agent.history(self._session)) if self._agent.history is not None else []
        if self._c.context_history and not self._session.conversation:
            told += await self._context()
        for message in self._turn.history:
            if message.message_id == self._turn.message.message_id:
                break
            role = "user" if message.role is Role.USER else "assistant"
            told.append(ChatMessage(role=role, content=message.text))
        return told

    async def _context(self) -> list[ChatMessage]:
        """What was asked and answered in the same A2A context."""

        async def read() -> list[ChatMessage]:
            told = []
            for task in await self._turn.earlier():
                answer = task.status.message
                if task.state is TaskState.COMPLETED and answer is not None and task.history:
                    told.append(ChatMessage(role="user", content=_text(task.history[0])))
                    told.append(ChatMessage(role="assistant", content=answer.text))
            return told

        return await self._turn.step("context", read)

    async def _query(self) -> str:
        preambles = []
        for tool in self._tools:
            preamble = getattr(tool, "preamble", None)
            if preamble is not None and self._session.depth == 0:
                preambles.append(await preamble(self._session))
        who = await self._agent.roster() if self._agent.id == INDEX_ID else ""
        return query(self._text, preambles=preambles, roster=who)

    async def _reply(self, i: int) -> Reply:
        """The model's next reply, completed if it was cut off inside a file."""
        filter = TextFilter(self._agent.names)
        clean: list[str] = []
        advisor = self._c.advisor
        self._held = [] if advisor is not None and advisor.mode == "gate" else None

        async def out(text: str) -> None:
            clean.append(text)
            if self._held is not None:
                self._held.append(text)
            else:
                await self._telling.text(text)

        async def heard(delta: str) -> None:
            if text := filter.feed(delta):
                await out(text)

        reply = await self._ask(f"model/{i}", self._messages, heard)
        for n in range(1, CONTINUATIONS + 1):
            parsed = parse(reply.text, self._agent.names)
            if reply.error or not parsed.open or parsed.commands[-1].name != "/write":
                break
            go_on = GO_ON.format(name=parsed.commands[-1].title, end=ENDS["/write"])
            messages = [*self._messages, _said(reply), ChatMessage(role="user", content=go_on)]
            reply = reply.followed_by(await self._ask(f"model/{i}/{n}", messages, heard))
        await out(filter.close())
        if self._held is None:
            await self._telling.pause()
        self._prose.append("".join(clean))
        return reply

    async def _ask(
        self, key: str, messages: Sequence[ChatMessage], heard: Callable[[str], Awaitable[None]]
    ) -> Reply:
        plain, native = getattr(self._agent.model, "plain", False), self._agent.native
        left = self._session.budget.left
        prompt = Prompt(
            model=self._c.model,
            system=system(self._c, self._tools, plain=plain, native=native),
            messages=tuple(messages),
            max_tokens=self._c.max_tokens if left is None else min(self._c.max_tokens, max(1, left)),
            temperature=self._c.temperature,
            tools=tuple(_spec(tool, name) for tool in self._tools for name in tool.names) if native else (),
        )
        reply = await ask(self._turn, key, self._agent.model, prompt, heard)
        await self._count(reply.usage, self._c.model)
        return reply

    async def _count(self, usage: Usage, model: str, *, own: bool = True) -> None:
        self._session.budget.spent += usage.input_tokens + usage.output_tokens
        if own:
            self._used = Usage(
                input_tokens=self._used.input_tokens + usage.input_tokens,
                output_tokens=self._used.output_tokens + usage.output_tokens,
            )
        cache = {
            name: count
            for name in ("cache_read_tokens", "cache_create_tokens")
            if (count := getattr(usage, name))
        }
        await self._telling.tell(
            "token_usage",
            model=model,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            **cache,
        )

    # -- doing -------------------------------------------------------------------------------------------------

    def _commands(self, reply: Reply) -> tuple[Command, ...]:
        known = [_command(call) for call in reply.tool_calls]
        return (
            *parse(reply.text, self._agent.names).commands,
            *(c for c in known if c.name in self._agent.names),
        )

    async def _carry_out(self, i: int, reply: Reply, commands: Sequence[Command]) -> None:
        """Run the commands, and make the next message of what they gave."""
        blocks = await self._dispatch.run(i, commands)
        for command, block in zip(commands, blocks, strict=False):
            self._calls.append(f"- {command.name} args={command.args[:200]} result={block[:300]}")
        self._messages.append(_said(reply))
        if reply.tool_calls:
            blocks += ["[not run: no room for its result]"] * (len(commands) - len(blocks))
            texts = len(commands) - len(reply.tool_calls)
            for call, block in zip(reply.tool_calls, blocks[texts:], strict=False):
                self._messages.append(ChatMessage(role="tool", content=block, tool_call_id=call.id))
            blocks = blocks[:texts]
        if blocks:
            self._messages.append(ChatMessage(role="user", content="\n\n".join([*blocks, END])))

    async def _judge(self, i: int) -> Verdict:
        """Whether the answer may leave."""
        advisor = self._c.advisor
        if advisor is None or advisor.mode != "gate":
            return Verdict(signal=CONTINUE)
        prompt = question(advisor, self._text, self._prose[-1], self._calls)
        reply = await ask(self._turn, f"gate/{i}", self._agent.model, prompt)
        await self._count(reply.usage, advisor.model, own=False)
        judged = verdict(reply.text, advisor)
        kind = f"gate_{judged.signal.lower()}"
        if judged.signal == REDIRECT:
            self._redirects += 1
            if self._redirects > advisor.max_redirects or i == ITERATIONS:
                kind, judged = "gate_budget", Verdict(signal="HALT", text=judged.text)
        self._approved = judged.signal == CONTINUE
        more = {"detail": judged.text[:500]} if judged.text else {}
        if judged.malformed:
            more["malformed"] = True  # type: ignore[assignment]
        await self._telling.tell("advisor", kind=kind, **more)
        return judged

    async def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await self._telling.text("".join(held))
            await self._telling.pause()

    # -- the end -----------------------------------------------------------------------------------------------

    def _complete(self, stop: str) -> bool:
        prose = [text for text in self._prose if text.strip()]
        answer = self._prose[-1].strip() or "\n\n".join(prose) or NO_ANSWER
        self._finish(TaskState.COMPLETED, answer, "r", {"stop_reason": stop})
        return True

    def _fail(self, error: str, code: str) -> bool:
        about = {"stop_reason": "error", "error": error, "error_type": code}
        self._finish(TaskState.FAILED, error, "err", about)
        return False

    def _finish(self, state: TaskState, text: str, word: str, about: dict[str, Any]) -> None:
        turn = self._turn
        about = {
            "agent_id": self._agent.id,
            "input_tokens": self._used.input_tokens,
            "output_tokens": self._used.output_tokens,
            "files_bytes": self._telling.counts.get("file_bytes", 0),
            **({"gate_approved": True} if self._approved else {}),
            **about,
        }
        message = Message(
            message_id=f"{turn.task_id}-{word}" + (f"-{turn.n}" if turn.n > 1 else ""),
            role=Role.AGENT,
            parts=(Part(text=text),),
        )
        turn.finish(state, message, {f"x-arbiter.{name}": value for name, value in about.items()})


def _text(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if part.text is not None)


def _int(given: dict[str, Any], name: str) -> int:
    value = given.get(f"x-arbiter.{name}")
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def _said(reply: Reply) -> ChatMessage:
    return ChatMessage(role="assistant", content=reply.text, tool_calls=reply.tool_calls)


def _spec(tool: Tool, name: str) -> ToolSpec:
    """A tool for a model that calls tools: the words that would follow the command, and the block's body if it has one."""
    properties = {"args": {"type": "string", "description": "What follows the command on its line."}}
    if name in ENDS:
        properties["body"] = {"type": "string", "description": f"What stands before {ENDS[name]}."}
    parameters = {"type": "object", "properties": properties}
    return ToolSpec(name=name[1:], description=tool.usage, parameters=parameters)


def _command(call: ToolCall) -> Command:
    args, body = call.arguments.get("args", ""), call.arguments.get("body")
    return Command(
        name=f"/{call.name}",
        args=" ".join(str(args).split("\n")).strip(),
        body=None if body is None else str(body),
    )
