"""A live server on which the examples of the specifications can be played: the whole way, from bytes to bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.buses.local import LocalBus
from dragoman.dialects import select
from dragoman.dialects.sse import SseReader
from dragoman.engine.engine import Engine
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Mail
from dragoman.engine.turn import Turn
from dragoman.model import ops
from dragoman.model.content import Message, Part, Role
from dragoman.model.ids import new_id
from dragoman.model.ops import Call, Principal, PushConfig, Scope, SendMessage
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState
from dragoman.server.app import App
from dragoman.server.mount import Mount
from dragoman.stores import open_store
from tests.server.wire import Answer, open_request
from tests.spec.examples import Example

SCOPE = Scope("", "actor", "")


class Actor(Agent):
    """Plays what an example says that an agent said."""

    def __init__(self, script: Sequence[Event]) -> None:
        super().__init__("Actor", "Plays a part", input_modes=["*/*"], output_modes=["*/*"])
        self.script = list(script)
        self.first = ""
        """What it does before it plays: `ask`, or `wait` for its cue."""
        self.cue = asyncio.Event()

    def check_message(self, request: SendMessage, principal: Principal, first: Mail | None = None) -> bool:
        return any(isinstance(event, Message) for event in self.script)

    async def work(self, turn: Turn) -> None:
        if self.first == "wait":
            await turn.status("waiting")
            if self.script and isinstance(self.script[0], ArtifactUpdate):  # it has a beginning
                await turn.artifact(id=self.script[0].artifact.artifact_id).write("<section 1...>")
            await self.cue.wait()
        elif self.first == "ask":
            await turn.ask("well?")
        for event in self.script:
            await self._play(turn, event)

    async def _play(self, turn: Turn, event: Event) -> None:
        match event:
            case Message():
                turn.reply(event.parts)
            case ArtifactUpdate():
                writer = turn.artifact(event.artifact.name, id=event.artifact.artifact_id)
                for part in event.artifact.parts:
                    await writer.write(part, last=event.last_chunk)
            case StatusUpdate() | Task():
                for artifact in event.artifacts if isinstance(event, Task) else ():
                    writer = turn.artifact(artifact.name, id=artifact.artifact_id)
                    for part in artifact.parts:
                        await writer.write(part)
                said, state = event.status.message, event.status.state
                if state is TaskState.INPUT_REQUIRED:
                    assert said is not None
                    await turn.ask(said.text)
                elif state.terminal:
                    turn.finish(state, said, event.metadata)
                elif said is not None:
                    turn.say(said.parts)


class NoPush:
    """Takes push configs and never sends anything."""

    async def check_config(self, call: Call, config: PushConfig) -> StoredPushConfig:
        return StoredPushConfig(config=replace(config, id=config.id or new_id()), dialect=call.dialect)

    def show_config(self, hook: StoredPushConfig) -> PushConfig:
        return hook.config

    async def start(self) -> None:
        pass

    async def stop(self, drain: float) -> None:
        pass


class Live:
    def __init__(self, example: Example, script: Sequence[Event]) -> None:
        self.agent = Actor(script)
        self.engine = Engine(open_store("memory:"), LocalBus(), lambda scope: self.agent, push=NoPush())
        mount = Mount(
            service=self.engine,
            card=lambda: self.agent.card,
            agent="actor",
            only="arbiter" if example.dialect == "arbiter" else "",
        )
        self.app = App([mount])
        self._dialect = example.dialect

    async def begin(self, task: str, context: str = "", text: str = "go", first: str = "") -> Task:
        """Have a task with the id that the example says."""
        self.agent.first = first
        message = Message(
            message_id=new_id(), role=Role.USER, parts=(Part(text=text),), task_id=task, context_id=context
        )
        configuration = ops.Configuration(return_immediately=first == "wait")
        call = Call(scope=SCOPE, names_tasks=True, dialect=self._dialect)
        made: Task = await self.engine.call(call, SendMessage(message=message, configuration=configuration))
        return made

    async def post(self, request: Any, version: str) -> list[dict[str, Any]]:
        """The JSON-RPC responses to a request: one, or those of a stream."""
        return responses(await self.open(request, version).end())

    def open(self, request: Any, version: str) -> Answer:
        headers = {"content-type": "application/json", **({"a2a-version": version} if version else {})}
        return open_request(self.app, "POST", "/", json.dumps(request).encode(), headers=headers)


@asynccontextmanager
async def playing(example: Example) -> AsyncIterator[Live]:
    live = Live(example, script_of(example))
    await live.engine.start()
    try:
        yield live
    finally:
        await live.engine.stop(drain=0)


def script_of(example: Example) -> list[Event]:
    """What the agent of an example said, in the model's words."""
    dialect = select.DIALECTS[example.dialect]
    chosen = select.choose_for_rpc(
        example.version, example.request["method"], msgspec.json.encode(example.request["params"])
    )
    results = [response["result"] for response in example.responses]
    if chosen.op.streams:
        return [event for event in map(dialect.read_event, results) if not isinstance(event, Task)]
    if chosen.op in (ops.SEND, ops.GET):
        result = dialect.read_result(chosen.op, results[0])
        assert isinstance(result, Task | Message)
        return [result]
    return []


def responses(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return [answer.json]
    reader = SseReader()
    return [json.loads(frame.data) for frame in reader.feed(answer.body) + reader.end()]
