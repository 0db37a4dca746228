"""An agent made of a constitution: a model that thinks in turns, and commands that are carried out between them.

`ConstitutionAgent` is an ordinary program of the engine, and its turn an ordinary durable turn: each model call is a step
(`model/3`), each command is one (`tool/3/1`), so a hub that was killed goes on in the middle, asks no model and runs no
tool twice for what is on record. What it tells while it works is in `telling.py`.

A caller of this hub says more about a request in its metadata. It is believed only when it comes from the hub itself
(`Call.dialect` is `NATIVE`, or another agent of the hub asks), never from an A2A caller:

    x-arbiter.conversation_id   the conversation a native request belongs to
    x-arbiter.original          what the user asked in the first place
    x-arbiter.channel           `voice`: this answer is read aloud, whatever the constitution says; `text`: it is not
    x-arbiter.relay, .stream_id, .budget, .asker, .context   from the agent that asks

The last status of the task has `x-arbiter.agent_id .input_tokens .output_tokens .stop_reason .files_bytes`, on failure
`.error .error_type`, and `.gate_approved` when an advisor let the answer pass. Its message is the clean answer, with the
id `<task>-r`; of a failure, the error, with `<task>-err`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from dragoman.engine.records import Mail
from dragoman.engine.turn import Turn
from dragoman.errors import ContentTypeNotSupported, InvalidParams
from dragoman.hub.agents.constitution import Constitution, card
from dragoman.hub.agents.prompt import roster
from dragoman.hub.agents.thinking import Thinking, images_of, text_of
from dragoman.hub.models.model import ChatMessage, Model
from dragoman.hub.tools.pictures import Pictures
from dragoman.hub.tools.tool import Session, Tool
from dragoman.model.card import AgentCard
from dragoman.model.ops import Principal, SendMessage

NATIVE = "native"
"""The dialect of calls that the hub's own API makes, which may hold pictures."""
VIA = "x-dragoman.via"
"""How a request came in. Only the hub says so."""

History = Callable[[Session], Awaitable[Sequence[ChatMessage]]]
Siblings = Callable[[], Awaitable[Sequence[Constitution]]]


class ConstitutionAgent:
    """A `Program`. `siblings` are the tenant's other agents; `roster`, if given, is what an orchestrator is told of them.

    `history` gives what was said before in the session's conversation, `pictures` those that commands gave, by their keys.
    `native`: the model calls tools natively.
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
    ) -> None:
        self.id, self.constitution, self.model = id, constitution, model
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

    def admit(self, request: SendMessage, principal: Principal, first: Mail | None = None) -> bool:
        pictures = request.metadata.get(VIA) == NATIVE and bool(images_of(request.message))
        if any(part.text is None and not pictures for part in request.message.parts):
            raise ContentTypeNotSupported("this agent takes text only: text/plain")
        if not pictures and not text_of(request.message).strip():
            raise InvalidParams("the message says nothing", fields=(("message.parts", "hold no text"),))
        return False

    async def roster(self) -> str:
        """What an orchestrator is told of those it can ask."""
        return await self._roster() if self._roster is not None else roster(await self.siblings())

    async def siblings(self) -> Sequence[Constitution]:
        return await self._siblings() if self._siblings is not None else ()

    async def work(self, turn: Turn) -> None:
        mail = turn.mail
        await Thinking(self, turn, mail.metadata if mail.depth or mail.origin == NATIVE else {}).run()
