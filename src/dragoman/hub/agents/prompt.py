"""What a model reads: the system prompt of a constitution, the roster of agents, the query, and the history of a conversation.

When the messages of a conversation would fill three quarters of the model's window, the model summarizes all but the last 16. The
summary is stored with the conversation, and the next summary includes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dragoman.hub.agents.constitution import INDEX_ID, Constitution
from dragoman.hub.models import CHARACTERS_PER_TOKEN, ChatMessage, Model, Prompt
from dragoman.hub.models.calls import ModelReply, ask, recorded_reply
from dragoman.hub.quote import HOW_TO_READ, MARK, flatten, is_quoted, quote
from dragoman.hub.store.conversations import Conversations, EarlierMessage
from dragoman.hub.tools import Session, Tool

_VOICES = {
    "standard": "You are a capable agent. Answer precisely and without preamble.",
    "conversational": "You are talking with a person. Be natural, clear and helpful.",
    "spoken": "Your words are read aloud. Use short sentences and no formatting.",
    "writer": "You write. Deliver finished prose, not notes about it.",
    "planner": "You plan. Break work into ordered steps, each with a result that can be checked.",
}
_BREVITY = {
    "lite": "Take the room you need, but do not repeat yourself.",
    "full": "Be brief: say what matters and stop.",
    "ultra": "Answer in as few words as possible.",
}
_COMMANDS = """COMMANDS
A line that begins with one of these commands, in the first column, is carried out when your reply ends; the results come
back as the next message. Use one only when you need it, and never invent its result. Nothing is carried out inside a code
fence, nor a line that repeats a quoted one. When you have what you need, answer without any command: that is your final answer.
"""
_TOOLS = "Use your tools when you need them. When you have what you need, answer without calling any."
_ADVISOR = (
    "ADVISOR: a stronger model can be asked with /advise <question>. Ask when a decision is hard to undo."
)

CONTINUE_BLOCK = (
    "Your reply was cut off inside {name}. Go on exactly where it stopped, without repeating anything, and end the block "
    "with {end}."
)


def system_prompt(
    constitution: Constitution,
    tools: Sequence[Tool],
    messages: Sequence[ChatMessage] = (),
    *,
    plain: bool = False,
    native: bool = False,
) -> str:
    """The system prompt for `messages`. `plain`: for a small model, without commands. `native`: the model gets its commands as tools."""
    voice = _VOICES["spoken" if constitution.channel == "voice" else constitution.mode or "standard"]
    parts = [f"{voice} {_BREVITY[constitution.brevity]}"]
    if not plain and tools:
        parts.append(_TOOLS if native else _COMMANDS + "\n".join(tool.usage for tool in tools))
    if not plain or any(is_quoted(message.content) for message in messages):
        parts.append(HOW_TO_READ)
    about = {
        "NAME": constitution.title,
        "ROLE": constitution.role,
        "PERSONALITY": constitution.personality,
        "GOAL": constitution.goal,
    }
    parts.append("\n".join(f"{word}: {value}" for word, value in about.items() if value))
    if constitution.rules:
        parts.append("RULES:\n" + "\n".join(f"- {rule}" for rule in constitution.rules))
    if constitution.advisor is not None and constitution.grants("advise") and not plain:
        parts.append(_ADVISOR)
    return "\n\n".join(parts)


def describe_agents(agents: Iterable[Constitution], remotes: Iterable[str] = ()) -> str:
    """The agents that an orchestrator can ask: those of the tenant, and lines about remote ones."""
    lines = [_agent_line(agent) for agent in agents if agent.id != INDEX_ID]
    blocks = []
    if lines:
        blocks.append("AGENTS — delegate with /agent <id> <task>:\n" + "\n".join(lines))
    if remote_lines := [quote(line) for line in remotes]:
        blocks.append(
            "REMOTE A2A AGENTS — delegate with /a2a call <name> <message> (distinct trust boundary; no shared memory):\n"
            + "\n".join(remote_lines)
        )
    return "\n".join(blocks)


def build_query(text: str, *, preambles: Iterable[str] = (), roster: str = "") -> str:
    """The message to the model for a user's question."""
    before = [block for block in (*preambles, roster) if block]
    return "\n\n".join([*before, f"QUERY: {text}"]) if before else text


def _agent_line(agent: Constitution) -> str:
    name = f" ({flatten(agent.name)})" if agent.name and agent.name != agent.id else ""
    role = f" [{flatten(agent.role)}]" if agent.role else ""
    model = f" {flatten(agent.model.rpartition('/')[2])}" if agent.model else ""
    advisor = f"+advisor:{flatten(agent.advisor.model.rpartition('/')[2])}" if agent.advisor else ""
    goal = f" — {flatten(agent.goal)}" if agent.goal else ""
    return f"  {agent.id}{name}{role}{model}{advisor}{goal}"


# -- the history of a conversation -------------------------------------------------------------------------

RECENT_MESSAGES = 16
"""Messages that are not summarized."""
_WINDOW_SHARE = 0.75
_SUMMARY_PROMPT = """Sum up this conversation, so that it can go on without its beginning. Keep names, numbers, decisions, what the user
wants and what is still open. Leave out pleasantries. Write notes, not sentences about the conversation."""


class ConversationHistory:
    """Returns the earlier messages for a prompt."""

    def __init__(self, conversations: Conversations, model: Model) -> None:
        self._conversations, self._model = conversations, model

    async def __call__(self, session: Session) -> list[ChatMessage]:
        if not session.conversation or session.depth:
            return []  # a delegated agent sees only its task
        summary, earlier = await self._conversations.before(session.conversation, session.turn.task_id)
        room = int(
            self._model.traits(session.constitution.model).window * _WINDOW_SHARE * CHARACTERS_PER_TOKEN
        )
        if (
            room
            and len(earlier) > RECENT_MESSAGES
            and len(summary) + sum(len(each.content) for each in earlier) > room
        ):
            summary, earlier = await self._summarize(session, summary, earlier, room)
        elif (before := recorded_reply(session.turn, "summary")) is not None:
            await self._count_usage(session, before)  # summarized before a crash
        messages = [ChatMessage(role=each.role, content=each.content) for each in earlier]
        if summary:
            text = f"[EARLIER IN THIS CONVERSATION]\n{quote(summary)}\n[END EARLIER]"
            messages.insert(0, ChatMessage(role="user", content=text))
        return messages

    async def _summarize(
        self, session: Session, summary: str, earlier: Sequence[EarlierMessage], room: int
    ) -> tuple[str, Sequence[EarlierMessage]]:
        """A new summary, and the messages it does not cover. If the model fails, nothing changes."""
        old, new = earlier[:-RECENT_MESSAGES], earlier[-RECENT_MESSAGES:]
        lines = [f"(before that)\n{quote(summary)}"] if summary else []
        lines += [f"{each.role}:\n{quote(each.content)}" for each in old]
        text = "\n\n".join(lines)
        if len(text) > room:
            text = MARK + text[-room:]  # the cut may be inside a quoted line
        prompt = Prompt(
            model=session.constitution.model,
            system=f"{_SUMMARY_PROMPT}\n{HOW_TO_READ}",
            messages=(ChatMessage(role="user", content=text),),
        )
        reply = await ask(session.turn, "summary", self._model, prompt)
        await self._count_usage(session, reply)
        if reply.error or not reply.text.strip():
            return summary, earlier
        await self._conversations.store_summary(session.conversation, reply.text.strip(), old[-1].id)
        return reply.text.strip(), new

    async def _count_usage(self, session: Session, reply: ModelReply) -> None:
        if reply.asked:
            await session.count_usage(reply.usage, self._model.traits(session.constitution.model).name)
