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

from msgspec import UNSET, Struct
from msgspec.structs import replace

from dragoman.engine.records import Mail
from dragoman.engine.turn import Turn
from dragoman.errors import ContentTypeNotSupported, InvalidParams
from dragoman.hub.agents.commands import BLOCK_ENDS, TextFilter, command_of, parse, tool_spec
from dragoman.hub.agents.constitution import INDEX_ID, Constitution
from dragoman.hub.agents.dispatch import RESULTS_END, Dispatch
from dragoman.hub.agents.event_writer import ANSWER_EVENTS, HubEventWriter
from dragoman.hub.agents.prompt import (
    CONTINUE_BLOCK,
    ConversationHistory,
    build_query,
    describe_agents,
    system_prompt,
)
from dragoman.hub.agents.routing import hand_over
from dragoman.hub.metadata import NATIVE, VIA
from dragoman.hub.models import ChatMessage, Image, Model, Prompt, Usage, estimate, without_images
from dragoman.hub.models.calls import ModelReply, ask, recorded_reply
from dragoman.hub.models.prices import Prices
from dragoman.hub.quote import flatten, join_words, quoted_lines
from dragoman.hub.store.catalogue import Catalogue, CatalogueEntry
from dragoman.hub.store.policies import Policies
from dragoman.hub.tools import Budget, Command, Session, Tool
from dragoman.hub.tools.advisor import CONTINUE, REDIRECT, Verdict, gate_prompt, read_verdict
from dragoman.hub.tools.files import Pictures
from dragoman.hub.tools.remote_agents import RemoteAgents
from dragoman.model.card import AgentCard
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import Principal, SendMessage
from dragoman.model.task import TaskState

MAX_REPLIES = 6
MAX_CONTINUATIONS = 3
NO_ANSWER = "The agent stopped without an answer."


class ConstitutionTurn:
    """One turn. `metadata`: that of the request, if the hub trusts it (`hub/metadata.py`)."""

    def __init__(self, agent: ConstitutionAgent, turn: Turn, metadata: dict[str, Any]) -> None:
        self._agent, self._turn = agent, turn
        self._constitution = agent.constitution
        if (channel := metadata.get("x-arbiter.channel")) in ("text", "voice"):
            self._constitution = replace(self._constitution, channel=channel)
        mail = turn.mail
        relayed = bool(mail.depth and metadata.get("x-arbiter.relay"))
        stream_id = _positive_int(metadata, "stream_id") if relayed else 0
        depth = mail.depth if relayed else 0
        self._text = text_of(turn.message)
        self._delegation_context = str(metadata.get("x-arbiter.context") or "")
        self._writer = HubEventWriter(turn, agent.id, depth=depth, stream_id=stream_id, relayed=relayed)
        self._session = Session(
            tenant=turn.scope.tenant,
            agent=agent.id,
            constitution=self._constitution,
            turn=turn,
            writer=self._writer,
            budget=Budget(self._constitution.budget, _positive_int(metadata, "budget")),
            prices=agent.parts.prices,
            conversation=_positive_int(metadata, "conversation_id"),
            depth=mail.depth,
            stream_id=stream_id,
            original=str(metadata.get("x-arbiter.original") or self._text),
        )
        self._model = agent.parts.model
        self._traits = self._model.traits(self._constitution.model)
        tools = agent.parts.tools
        self._tools = tuple(tool for tool in tools if self._constitution.grants(tool.bundle))
        self._dispatch = Dispatch(tools, self._session, agent.parts.policies)
        self._messages: list[ChatMessage] = []
        self._answers: tuple[str, ...] = ()
        """Earlier answers. They have no commands any more: a line in them that looks like one quotes somebody else."""
        self._withheld: list[str] | None = None
        """Text that waits for the gate."""
        self._reply_texts: list[str] = []
        """The text of each reply, without commands."""
        self._call_lines: list[str] = []
        """A line about each command that ran, for the gate."""
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
                await writer.release(without=ANSWER_EVENTS)
                await writer.emit("stream_end", ok=False)
            raise
        await writer.close()
        if not writer.relayed:
            await writer.emit("stream_end", ok=ok)

    # -- replies -----------------------------------------------------------------------------------------------

    async def _run_replies(self) -> bool:
        images = images_of(self._turn.message)
        delegated = None
        if not images:
            delegated = await hand_over(self._session, self._text, self._model, self._agent.siblings)
        verdict = await self._judge_delegated(*delegated) if delegated is not None else None
        if verdict is not None and verdict.signal != REDIRECT:
            return await self._end_with(verdict, "end_turn")
        question = ChatMessage(role="user", content=await self._query(), images=images)
        shown = question if self._traits.sees else without_images(question)
        self._messages = [*await self._earlier_messages(), shown]
        if delegated is not None and verdict is not None:
            self._return_answer(ChatMessage(role="assistant", content=delegated[1]), verdict)
        self._answers = tuple(message.content for message in self._messages if message.role == "assistant")
        number = 0
        while True:
            number += 1
            if self._session.budget.left == 0:
                return self._fail("the token budget of this request is used up", "budget_exhausted")
            if self._writer.relayed:
                await self._writer.emit("agent_start")
            reply = await self._reply(number)
            if reply.error:
                return self._fail(reply.error, reply.error_code)
            commands = self._commands(reply)
            if commands and number < MAX_REPLIES:
                await self._release()
                await self._run_commands(number, reply, commands)
                continue
            verdict = await self._judge(number)
            if verdict.signal != REDIRECT:
                return await self._end_with(verdict, "max_iterations" if commands else reply.stop)
            self._withheld = None
            self._return_answer(_to_chat_message(reply), verdict)

    async def _judge_delegated(self, agent: str, answer: str) -> Verdict:
        """Let the gate judge the answer of the agent that the request was handed to."""
        self._call_lines.append(f"- /agent args={agent} result={flatten(answer)}")
        self._reply_texts.append(answer)
        verdict = await self._judge(0)
        passes = verdict.signal == CONTINUE
        await self._writer.release(without=() if passes else ANSWER_EVENTS)
        self._withheld = [answer] if passes else None
        return verdict

    async def _end_with(self, verdict: Verdict, stop: str) -> bool:
        """End the turn: the verdict is CONTINUE or HALT."""
        if verdict.signal == CONTINUE:
            await self._release()
            return self._complete(stop)
        await self._writer.emit("escalation", reason=verdict.text)
        return self._fail(f"the advisor stopped the answer: {verdict.text}", "advisor_halt")

    def _return_answer(self, answer: ChatMessage, verdict: Verdict) -> None:
        """The gate returned the answer: tell the model what to do instead."""
        self._reply_texts.pop()
        self._messages += [answer, ChatMessage(role="user", content=f"[ADVISOR]\n{verdict.text}")]

    async def _earlier_messages(self) -> list[ChatMessage]:
        """Earlier messages of the conversation, of the A2A context, and of this task."""
        messages = await self._agent.parts.history(self._session)
        wanted = (
            self._constitution.context_history or self._turn.message.metadata.get("contextHistory") is True
        )
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
        if self._traits.plain:
            return self._text
        if self._session.depth and self._agent.id != INDEX_ID:
            return f"{self._delegation_context}\n{self._text}" if self._delegation_context else self._text
        return await self._turn.step("query", self._build_query)

    async def _build_query(self) -> str:
        preambles = []
        if self._session.depth == 0:
            preambles = [await tool.preamble(self._session) for tool in self._tools]
        roster = await self._agent.roster() if self._agent.id == INDEX_ID else ""
        return build_query(self._text, preambles=preambles, roster=roster)

    async def _reply(self, number: int) -> ModelReply:
        """The model's next reply, continued if it ends inside a file."""
        filter = TextFilter(self._agent.names, self._quoted())
        clean: list[str] = []
        self._withheld = [] if self._constitution.gated else None

        async def out(text: str) -> None:
            clean.append(text)
            if self._withheld is not None:
                self._withheld.append(text)
            else:
                await self._writer.text(text)

        async def on_text(delta: str) -> None:
            if text := filter.feed(delta):
                await out(text)

        reply = await self._ask(f"model/{number}", self._messages, on_text)
        for n in range(1, MAX_CONTINUATIONS + 1):
            parsed = parse(reply.text, self._agent.names, self._quoted())
            if reply.error or not parsed.open or parsed.commands[-1].name != "/write":
                break
            go_on = CONTINUE_BLOCK.format(name=parsed.commands[-1].title, end=BLOCK_ENDS["/write"])
            messages = [*self._messages, _to_chat_message(reply), ChatMessage(role="user", content=go_on)]
            reply = reply.followed_by(await self._ask(f"model/{number}/{n}", messages, on_text))
        await out(filter.close())
        if self._withheld is None:
            await self._writer.pause()
        self._reply_texts.append("".join(clean))
        return reply

    async def _ask(
        self, key: str, messages: Sequence[ChatMessage], on_text: Callable[[str], Awaitable[None]]
    ) -> ModelReply:
        plain, native = self._traits.plain, self._traits.tools
        left, most = self._session.budget.left, self._constitution.max_tokens
        prompt = Prompt(
            model=self._constitution.model,
            system=system_prompt(self._constitution, self._tools, messages, plain=plain, native=native),
            messages=tuple(messages),
            max_tokens=most if left is None else min(most, max(1, left)),
            temperature=self._constitution.temperature,
            tools=tuple(tool_spec(tool, name) for tool in self._tools if tool.usage for name in tool.names)
            if native
            else (),
        )
        if recorded_reply(self._turn, key) is None and (written := self._writer.take_unrepeated()):
            await self._session.count_usage(estimate(prompt, written), self._traits.name)
        reply = await ask(self._turn, key, self._model, prompt, on_text, self._count_canceled)
        if reply.asked:
            await self._count_usage(reply.usage)
        return reply

    async def _count_usage(self, usage: Usage) -> None:
        """Count the tokens of a reply; the last status has their sum."""
        self._used += usage
        await self._session.count_usage(usage, self._traits.name)

    async def _count_canceled(self, usage: Usage) -> None:
        """Count the tokens of a canceled reply. (After a crash, the next process counts them.)"""
        if self._turn.cancelled:
            await self._count_usage(usage)

    # -- commands------------------------------------------------------------------------------------------------

    def _commands(self, reply: ModelReply) -> tuple[Command, ...]:
        calls = (command_of(call) for call in reply.tool_calls)
        return (*parse(reply.text, self._agent.names, self._quoted()).commands, *calls)

    def _quoted(self) -> frozenset[str]:
        """The lines of others in the model's prompt that would be commands if it wrote them."""
        read = (message.content for message in self._messages if message.role != "assistant")
        shown = (command for text in self._answers for command in parse(text, self._agent.names).commands)
        quoted = {line for text in read for line in quoted_lines(text) if line.startswith("/")}
        return frozenset({*quoted, *(join_words(command.title) for command in shown)})

    async def _run_commands(self, number: int, reply: ModelReply, commands: Sequence[Command]) -> None:
        """Run the commands and add their results as the next message."""
        blocks = await self._dispatch.run(number, commands)
        images = await self._pictures()
        for command, block in zip(commands, blocks, strict=False):
            self._call_lines.append(
                f"- {command.name} args={flatten(command.args, 200)} result={flatten(block)}"
            )
        self._messages.append(_to_chat_message(reply))
        if reply.tool_calls:
            blocks += ["[not run: no room for its result]"] * (len(commands) - len(blocks))
            texts = len(commands) - len(reply.tool_calls)
            for call, block in zip(reply.tool_calls, blocks[texts:], strict=False):
                self._messages.append(ChatMessage(role="tool", content=block, tool_call_id=call.id))
            blocks = blocks[:texts]
        if blocks or images:
            content = "\n\n".join([*blocks, RESULTS_END])
            self._messages.append(ChatMessage(role="user", content=content, images=images))

    async def _pictures(self) -> tuple[Image, ...]:
        """Images that the commands returned."""
        keys, self._session.pictures = self._session.pictures, []
        return tuple(await self._agent.parts.pictures.find(keys)) if keys else ()

    async def _judge(self, number: int) -> Verdict:
        """Ask the advisor's gate about the answer."""
        advisor = self._constitution.advisor
        if advisor is None or not self._constitution.gated:
            return Verdict(signal=CONTINUE)
        prompt = gate_prompt(advisor, self._text, self._answer, self._call_lines)
        reply = await ask(self._turn, f"gate/{number}", self._model, prompt)
        if reply.asked:
            await self._session.count_usage(reply.usage, self._model.traits(advisor.model).name)
        verdict = read_verdict(reply.text, advisor)
        kind = f"gate_{verdict.signal.lower()}"
        if verdict.signal == REDIRECT:
            self._redirects += 1
            if self._redirects > advisor.max_redirects or number == MAX_REPLIES:
                kind, verdict = "gate_budget", Verdict(signal="HALT", text=verdict.text)
        self._approved = verdict.signal == CONTINUE
        more = {"detail": verdict.text[:500]} if verdict.text else {}
        if verdict.malformed:
            more["malformed"] = True  # type: ignore[assignment]
        await self._writer.emit("advisor", kind=kind, **more)
        return verdict

    async def _release(self) -> None:
        held, self._withheld = self._withheld, None
        if held is not None:
            await self._writer.text("".join(held))
            await self._writer.pause()

    # -- the end -----------------------------------------------------------------------------------------------

    @property
    def _answer(self) -> str:
        """The text of the last reply, or of all replies if that is empty."""
        return self._reply_texts[-1].strip() or "\n\n".join(
            text for text in self._reply_texts if text.strip()
        )

    def _complete(self, stop: str) -> bool:
        self._finish(TaskState.COMPLETED, self._answer or NO_ANSWER, "r", {"stop_reason": stop})
        return True

    def _fail(self, error: str, code: str) -> bool:
        members = {"stop_reason": "error", "error": error, "error_type": code}
        self._finish(TaskState.FAILED, error, "err", members)
        return False

    def _finish(self, state: TaskState, text: str, suffix: str, members: dict[str, Any]) -> None:
        """End the task. `suffix`: of the message's id. `members`: further metadata of the last status."""
        turn = self._turn
        metadata = {
            "agent_id": self._agent.id,
            "input_tokens": self._used.input_tokens,
            "output_tokens": self._used.output_tokens,
            "files_bytes": self._writer.counts.get("file_bytes", 0),
            **({"gate_approved": True} if self._approved else {}),
            **members,
        }
        message = Message(
            message_id=f"{turn.task_id}-{suffix}" + (f"-{turn.n}" if turn.n > 1 else ""),
            role=Role.AGENT,
            parts=(Part(text=text),),
        )
        turn.finish(state, message, {f"x-arbiter.{name}": value for name, value in metadata.items()})


def text_of(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if part.text is not None)


def images_of(message: Message) -> tuple[Image, ...]:
    return tuple(
        Image(media_type=part.media_type, content=part.raw) for part in message.parts if part.raw is not None
    )


def _positive_int(metadata: dict[str, Any], name: str) -> int:
    """A number in the metadata of the hub; 0 if there is none."""
    value = metadata.get(f"x-arbiter.{name}")
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def _to_chat_message(reply: ModelReply) -> ChatMessage:
    return ChatMessage(role="assistant", content=reply.text, tool_calls=reply.tool_calls)


class AgentParts(Struct, frozen=True, kw_only=True):
    """What all constitutions of a hub run with."""

    model: Model
    tools: tuple[Tool, ...]
    catalogue: Catalogue
    policies: Policies
    remotes: RemoteAgents
    history: ConversationHistory
    pictures: Pictures
    prices: Prices


class ConstitutionAgent:
    """A `Program`: one version of a constitution of a tenant."""

    authorize = None

    def __init__(self, tenant: str, entry: CatalogueEntry, parts: AgentParts) -> None:
        self.id, self.constitution, self.parts = entry.id, entry.constitution, parts
        self.names = tuple(name for tool in parts.tools for name in tool.names)
        self._tenant, self._card = tenant, entry.card

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
        remotes = self.parts.remotes
        return describe_agents(await self.siblings(), remotes.lines(await remotes.visible(self._tenant)))

    async def siblings(self) -> Sequence[Constitution]:
        """The agents of the tenant."""
        return await self.parts.catalogue.constitutions(int(self._tenant))

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
