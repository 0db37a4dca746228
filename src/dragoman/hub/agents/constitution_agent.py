"""An agent made from a constitution: it asks a model, runs the commands of the reply, and returns the results to the model.

`ConstitutionAgent` is a program of the engine, and its turn a durable turn: each model call (`model/3`) and each command
(`tool/3/1`) is a recorded step, so a hub that was killed continues in the middle and repeats nothing that is recorded. There
are at most six replies. A reply without commands is the answer, unless the advisor's gate returns it. A reply that ends
inside a file is continued. `event_writer.py` reports the progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from dragoman.engine.records import Mail
from dragoman.engine.turn import Turn
from dragoman.errors import ContentTypeNotSupported, InvalidParams
from dragoman.hub.agents.commands import ENDS, TextFilter, command_of, parse, tool_spec
from dragoman.hub.agents.constitution import INDEX_ID, Constitution, card
from dragoman.hub.agents.dispatch import END, Dispatch
from dragoman.hub.agents.event_writer import ANSWERS, HubEventWriter
from dragoman.hub.agents.prompt import CONTINUE as GO_ON
from dragoman.hub.agents.prompt import query, roster, system
from dragoman.hub.agents.routing import hand_over
from dragoman.hub.metadata import NATIVE, VIA
from dragoman.hub.models import ChatMessage, Image, Model, Prompt, Usage, estimate, traits_of, without_images
from dragoman.hub.models.calls import ModelReply, ask, recorded_reply
from dragoman.hub.models.offered import Prices
from dragoman.hub.quote import flatten
from dragoman.hub.tools import Approve, Budget, Command, Session, Tool
from dragoman.hub.tools.advisor import CONTINUE, REDIRECT, Verdict, gate_prompt, read_verdict
from dragoman.hub.tools.files import Pictures
from dragoman.model.card import AgentCard
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import Principal, SendMessage
from dragoman.model.task import TaskState

MAX_REPLIES = 6
MAX_CONTINUATIONS = 3
NO_ANSWER = "The agent stopped without an answer."


class ConstitutionTurn:
    """One turn. `given` is the trusted metadata of the request."""

    def __init__(self, agent: ConstitutionAgent, turn: Turn, given: dict[str, Any]) -> None:
        self._agent, self._turn = agent, turn
        self._c = agent.constitution
        if (channel := given.get("x-arbiter.channel")) in ("text", "voice"):
            self._c = replace(self._c, channel=channel)
        mail = turn.mail
        relayed = bool(mail.depth and given.get("x-arbiter.relay"))
        stream_id = _int(given, "stream_id") if relayed else 0
        depth = mail.depth if relayed else 0
        self._text = text_of(turn.message)
        self._why = str(given.get("x-arbiter.context") or "")
        self._writer = HubEventWriter(turn, agent.id, depth=depth, stream_id=stream_id, relayed=relayed)
        self._session = Session(
            tenant=turn.scope.tenant,
            agent=agent.id,
            constitution=self._c,
            turn=turn,
            writer=self._writer,
            budget=Budget(self._c.budget, _int(given, "budget")),
            prices=agent.prices,
            approve=agent.approve,
            conversation=_int(given, "conversation_id"),
            depth=mail.depth,
            stream_id=stream_id,
            original=str(given.get("x-arbiter.original") or self._text),
        )
        traits = traits_of(agent.model, self._c.model)
        self._model, self._plain = traits.name, traits.plain
        self._tools = tuple(tool for tool in agent.tools if not tool.bundle or tool.bundle in self._c.granted)
        self._dispatch = Dispatch(agent.tools, self._session)
        self._messages: list[ChatMessage] = []
        self._held: list[str] | None = None
        """Text that waits for the gate."""
        self._prose: list[str] = []
        self._calls: list[str] = []
        self._used = Usage()
        self._redirects = 0
        self._approved = False

    async def run(self) -> None:
        writer = self._writer
        if not writer.relayed:
            await writer.emit("stream_start")
        try:
            ok = await self._run_replies()
        except asyncio.CancelledError:
            if self._turn.cancelled and not writer.relayed:
                await writer.release(without=ANSWERS)
                await writer.emit("stream_end", ok=False)
            raise
        await writer.close()
        if not writer.relayed:
            await writer.emit("stream_end", ok=ok)

    # -- replies -----------------------------------------------------------------------------------------------

    async def _run_replies(self) -> bool:
        images = images_of(self._turn.message)
        handed = (
            await hand_over(self._session, self._text, self._agent.model, self._agent.siblings)
            if not images
            else None
        )
        judged = await self._judge_handed(*handed) if handed is not None else None
        if judged is not None and judged.signal != REDIRECT:
            return await self._end_with(judged, "end_turn")
        question = ChatMessage(role="user", content=await self._query(), images=images)
        sees = traits_of(self._agent.model, self._c.model).sees
        self._messages = [*await self._earlier_messages(), question if sees else without_images(question)]
        if handed is not None and judged is not None:
            self._return_answer(ChatMessage(role="assistant", content=handed[1]), judged)
        i = 0
        while True:
            i += 1
            if self._session.budget.left == 0:
                return self._fail("the token budget of this request is used up", "budget_exhausted")
            if self._writer.relayed:
                await self._writer.emit("agent_start")
            reply = await self._reply(i)
            if reply.error:
                return self._fail(reply.error, reply.error_code)
            commands = self._commands(reply)
            if commands and i < MAX_REPLIES:
                await self._release()
                await self._run_commands(i, reply, commands)
                continue
            judged = await self._judge(i)
            if judged.signal != REDIRECT:
                return await self._end_with(judged, "max_iterations" if commands else reply.stop)
            self._held = None
            self._return_answer(_to_chat_message(reply), judged)

    async def _judge_handed(self, agent: str, answer: str) -> Verdict:
        """Let the gate judge the answer of the agent that the request was handed to."""
        self._calls.append(f"- /agent args={agent} result={flatten(answer)}")
        self._prose.append(answer)
        judged = await self._judge(0)
        passes = judged.signal == CONTINUE
        await self._writer.release(without=() if passes else ANSWERS)
        self._held = [answer] if passes else None
        return judged

    async def _end_with(self, judged: Verdict, stop: str) -> bool:
        """End the turn: the verdict is CONTINUE or HALT."""
        if judged.signal == CONTINUE:
            await self._release()
            return self._complete(stop)
        await self._writer.emit("escalation", reason=judged.text)
        return self._fail(f"the advisor stopped the answer: {judged.text}", "advisor_halt")

    def _return_answer(self, answer: ChatMessage, judged: Verdict) -> None:
        """The gate returned the answer: tell the model what to do instead."""
        self._prose.pop()
        self._messages += [answer, ChatMessage(role="user", content=f"[ADVISOR]\n{judged.text}")]

    async def _earlier_messages(self) -> list[ChatMessage]:
        """Earlier messages of the conversation, of the A2A context, and of this task."""
        messages = list(await self._agent.history(self._session)) if self._agent.history is not None else []
        wanted = self._c.context_history or self._turn.message.metadata.get("contextHistory") is True
        if wanted and not self._session.conversation:
            messages += await self._context()
        for message in self._turn.history:
            if message.message_id == self._turn.message.message_id:
                break
            role = "user" if message.role is Role.USER else "assistant"
            messages.append(ChatMessage(role=role, content=message.text))
        return messages

    async def _context(self) -> list[ChatMessage]:
        """Earlier questions and answers of the same A2A context."""

        async def read() -> list[ChatMessage]:
            messages = []
            for task in await self._turn.earlier():
                answer = task.status.message
                if task.state is TaskState.COMPLETED and answer is not None and task.history:
                    messages.append(ChatMessage(role="user", content=text_of(task.history[0])))
                    messages.append(ChatMessage(role="assistant", content=answer.text))
            return messages

        return await self._turn.step("context", read)

    async def _query(self) -> str:
        """The question with its preambles. It is recorded, so it is the same after a crash."""
        if self._plain:
            return self._text
        if self._session.depth and self._agent.id != INDEX_ID:
            return f"{self._why}\n{self._text}" if self._why else self._text
        return await self._turn.step("query", self._whole_query)

    async def _whole_query(self) -> str:
        preambles = []
        if self._session.depth == 0:
            preambles = [await tool.preamble(self._session) for tool in self._tools]
        who = await self._agent.roster() if self._agent.id == INDEX_ID else ""
        return query(self._text, preambles=preambles, roster=who)

    async def _reply(self, i: int) -> ModelReply:
        """The model's next reply, continued if it ends inside a file."""
        filter = TextFilter(self._agent.names)
        clean: list[str] = []
        self._held = [] if self._c.gated else None

        async def out(text: str) -> None:
            clean.append(text)
            if self._held is not None:
                self._held.append(text)
            else:
                await self._writer.text(text)

        async def on_text(delta: str) -> None:
            if text := filter.feed(delta):
                await out(text)

        reply = await self._ask(f"model/{i}", self._messages, on_text)
        for n in range(1, MAX_CONTINUATIONS + 1):
            parsed = parse(reply.text, self._agent.names)
            if reply.error or not parsed.open or parsed.commands[-1].name != "/write":
                break
            go_on = GO_ON.format(name=parsed.commands[-1].title, end=ENDS["/write"])
            messages = [*self._messages, _to_chat_message(reply), ChatMessage(role="user", content=go_on)]
            reply = reply.followed_by(await self._ask(f"model/{i}/{n}", messages, on_text))
        await out(filter.close())
        if self._held is None:
            await self._writer.pause()
        self._prose.append("".join(clean))
        return reply

    async def _ask(
        self, key: str, messages: Sequence[ChatMessage], on_text: Callable[[str], Awaitable[None]]
    ) -> ModelReply:
        native = self._agent.native
        left = self._session.budget.left
        prompt = Prompt(
            model=self._c.model,
            system=system(self._c, self._tools, plain=self._plain, native=native),
            messages=tuple(messages),
            max_tokens=self._c.max_tokens if left is None else min(self._c.max_tokens, max(1, left)),
            temperature=self._c.temperature,
            tools=tuple(tool_spec(tool, name) for tool in self._tools if tool.usage for name in tool.names)
            if native
            else (),
        )
        if recorded_reply(self._turn, key) is None and (written := self._writer.take_unrepeated()):
            await self._session.count_usage(estimate(prompt, written), self._model)
        reply = await ask(self._turn, key, self._agent.model, prompt, on_text, self._count_canceled)
        if reply.asked:
            await self._count_usage(reply.usage)
        return reply

    async def _count_usage(self, usage: Usage) -> None:
        """Count the tokens of a reply; the last status has their sum."""
        self._used += usage
        await self._session.count_usage(usage, self._model)

    async def _count_canceled(self, usage: Usage) -> None:
        """Count the tokens of a canceled reply. (After a crash, the next process counts them.)"""
        if self._turn.cancelled:
            await self._count_usage(usage)

    # -- commands------------------------------------------------------------------------------------------------

    def _commands(self, reply: ModelReply) -> tuple[Command, ...]:
        calls = (command_of(call) for call in reply.tool_calls)
        return (*parse(reply.text, self._agent.names).commands, *calls)

    async def _run_commands(self, i: int, reply: ModelReply, commands: Sequence[Command]) -> None:
        """Run the commands and add their results as the next message."""
        blocks = await self._dispatch.run(i, commands)
        images = await self._pictures()
        for command, block in zip(commands, blocks, strict=False):
            self._calls.append(f"- {command.name} args={flatten(command.args, 200)} result={flatten(block)}")
        self._messages.append(_to_chat_message(reply))
        if reply.tool_calls:
            blocks += ["[not run: no room for its result]"] * (len(commands) - len(blocks))
            texts = len(commands) - len(reply.tool_calls)
            for call, block in zip(reply.tool_calls, blocks[texts:], strict=False):
                self._messages.append(ChatMessage(role="tool", content=block, tool_call_id=call.id))
            blocks = blocks[:texts]
        if blocks or images:
            content = "\n\n".join([*blocks, END])
            self._messages.append(ChatMessage(role="user", content=content, images=images))

    async def _pictures(self) -> tuple[Image, ...]:
        """Images that the commands returned."""
        keys, self._session.pictures = self._session.pictures, []
        found = await self._agent.pictures.find(keys) if keys and self._agent.pictures is not None else ()
        return tuple(found)

    async def _judge(self, i: int) -> Verdict:
        """Ask the advisor's gate about the answer."""
        advisor = self._c.advisor
        if advisor is None or not self._c.gated:
            return Verdict(signal=CONTINUE)
        prompt = gate_prompt(advisor, self._text, self._answer, self._calls)
        reply = await ask(self._turn, f"gate/{i}", self._agent.model, prompt)
        if reply.asked:
            await self._session.count_usage(reply.usage, traits_of(self._agent.model, advisor.model).name)
        judged = read_verdict(reply.text, advisor)
        kind = f"gate_{judged.signal.lower()}"
        if judged.signal == REDIRECT:
            self._redirects += 1
            if self._redirects > advisor.max_redirects or i == MAX_REPLIES:
                kind, judged = "gate_budget", Verdict(signal="HALT", text=judged.text)
        self._approved = judged.signal == CONTINUE
        more = {"detail": judged.text[:500]} if judged.text else {}
        if judged.malformed:
            more["malformed"] = True  # type: ignore[assignment]
        await self._writer.emit("advisor", kind=kind, **more)
        return judged

    async def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await self._writer.text("".join(held))
            await self._writer.pause()

    # -- the end -----------------------------------------------------------------------------------------------

    @property
    def _answer(self) -> str:
        """The text of the last reply, or of all replies if that is empty."""
        return self._prose[-1].strip() or "\n\n".join(text for text in self._prose if text.strip())

    def _complete(self, stop: str) -> bool:
        self._finish(TaskState.COMPLETED, self._answer or NO_ANSWER, "r", {"stop_reason": stop})
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
            "files_bytes": self._writer.counts.get("file_bytes", 0),
            **({"gate_approved": True} if self._approved else {}),
            **about,
        }
        message = Message(
            message_id=f"{turn.task_id}-{word}" + (f"-{turn.n}" if turn.n > 1 else ""),
            role=Role.AGENT,
            parts=(Part(text=text),),
        )
        turn.finish(state, message, {f"x-arbiter.{name}": value for name, value in about.items()})


def text_of(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if part.text is not None)


def images_of(message: Message) -> tuple[Image, ...]:
    return tuple(
        Image(media_type=part.media_type, content=part.raw) for part in message.parts if part.raw is not None
    )


def _int(given: dict[str, Any], name: str) -> int:
    value = given.get(f"x-arbiter.{name}")
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def _to_chat_message(reply: ModelReply) -> ChatMessage:
    return ChatMessage(role="assistant", content=reply.text, tool_calls=reply.tool_calls)


History = Callable[[Session], Awaitable[Sequence[ChatMessage]]]
Siblings = Callable[[], Awaitable[Sequence[Constitution]]]


class ConstitutionAgent:
    """A `Program`. `siblings` returns the tenant's other agents; `roster` describes them to an orchestrator.

    `history` returns the earlier messages of the conversation, `pictures` the images of commands by key. `native`: the model
    calls tools natively.
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
        pictures: Pictures | None = None,
        version: str = "",
        native: bool = False,
        prices: Prices | None = None,
        approve: Approve | None = None,
    ) -> None:
        self.id, self.constitution, self.model = id, constitution, model
        self.prices, self.approve = prices or Prices(), approve
        self.tools = tuple(tools)
        self.names = tuple(name for tool in tools for name in tool.names)
        self.history, self.pictures, self.native = history, pictures, native
        self._roster, self._siblings = roster, siblings
        self._card = card(constitution, id, version)

    @property
    def card(self) -> AgentCard:
        return self._card

    async def extended_card(self, principal: Principal) -> AgentCard | None:
        return None

    def check_message(self, request: SendMessage, principal: Principal, first: Mail | None = None) -> bool:
        return check_message(request, first)

    async def exists(self) -> bool:
        return True

    async def roster(self) -> str:
        """The description of the agents that an orchestrator can ask."""
        return await self._roster() if self._roster is not None else roster(await self.siblings())

    async def siblings(self) -> Sequence[Constitution]:
        return await self._siblings() if self._siblings is not None else ()

    async def work(self, turn: Turn) -> None:
        mail = turn.mail
        await ConstitutionTurn(self, turn, mail.metadata if mail.depth or mail.origin == NATIVE else {}).run()


def check_message(request: SendMessage, first: Mail | None = None) -> bool:
    """Check a message to a constitution. Raises `A2AError`. False: its answer is a task.

    `first`: the message of a task that exists. Then data may be the answer to a question.
    """
    pictures = request.metadata.get(VIA) == NATIVE and bool(images_of(request.message))
    if not pictures:
        check_text(request.message, answers=first is not None)
    return False


def check_text(message: Message, *, answers: bool = False) -> None:
    """Constitutions take only text, and data as an answer to a question. Raises `A2AError`."""
    if answers and any(part.data is not UNSET for part in message.parts):
        return
    if any(part.text is None for part in message.parts):
        raise ContentTypeNotSupported("this agent takes text only: text/plain")
    if not text_of(message).strip():
        raise InvalidParams("the message has no text", fields=(("message.parts", "hold no text"),))
