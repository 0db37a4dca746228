"""Code written against the SDK's `AgentExecutor`, on our engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dragoman import TaskState as State
from dragoman import connect
from dragoman.client import Client, TaskFailed
from dragoman.engine import journal
from dragoman.engine.records import Record
from dragoman.engine.turn import record_of
from dragoman.executor import (
    A2AStarletteApplication,
    AgentCapabilities,
    AgentCard,
    AgentExecutor,
    AgentProvider,
    Artifact,
    DataPart,
    DefaultRequestHandler,
    EventQueue,
    ExecutorAgent,
    FilePart,
    FileWithBytes,
    FileWithUri,
    InMemoryTaskStore,
    InvalidParamsError,
    Message,
    Part,
    RequestContext,
    Role,
    ServerError,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    TaskUpdater,
    TextPart,
    UnsupportedOperationError,
    completed_task,
    new_agent_text_message,
    new_artifact,
    new_task,
    new_text_artifact,
)
from dragoman.model.content import Message as ModelMessage
from dragoman.model.content import Part as ModelPart
from dragoman.model.task import ArtifactUpdate
from tests.executor.executing import Executor, agent_of


async def test_the_sdks_errors_are_how_a_task_fails_or_cannot_be_undone() -> None:
    class Stubborn(AgentExecutor):
        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            if not context.get_user_input().isdigit():
                raise ServerError(error=InvalidParamsError(message="a number, please"))
            await TaskUpdater(event_queue).start_work()
            await asyncio.Event().wait()

        async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
            raise ServerError(error=UnsupportedOperationError())

    agent = ExecutorAgent(Stubborn(), AgentCard(name="Stubborn"))
    async with agent.test() as client:
        with pytest.raises(TaskFailed, match="a number, please"):
            await client("many")
        begun = await client.send("1", wait=False)
        assert (await client.cancel(begun.id)).state is State.CANCELED
    assert str(ServerError()) == "Internal error"


async def test_a_message_alone_is_the_answer_and_no_task() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(new_agent_text_message(f"you said {context.get_user_input()}"))

    async with agent_of(execute).test() as client:
        reply = await client("hi")
        assert reply == "you said hi" and reply.task is None
        assert [task async for task in client.list()] == []


@pytest.mark.parametrize("version", ["0.1", "draft"])
async def test_a_task_id_of_the_client_is_the_id_of_the_answer(version: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(new_agent_text_message("hello"))

    async with agent_of(execute).test(version=version) as client:
        reply = await client("hi")
        assert reply == "hello" and reply.task is not None
        assert (await client.get(reply.id)).state is State.COMPLETED


async def test_a_message_after_a_task_was_shown_is_how_the_task_ends() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(new_task(context.message))
        await queue.enqueue_event(new_agent_text_message("first"))
        await queue.enqueue_event(new_agent_text_message("last"))

    async with agent_of(execute).test() as client:
        reply = await client("hi")
        assert reply.task is not None and reply.state is State.COMPLETED
        assert reply.task.status.message is not None and reply.task.status.message.text == "last"
        assert [message.text for message in reply.task.history] == ["hi", "first"]


async def test_events_with_and_without_await_make_a_task() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        task: Any = new_task(context.message)
        queue.enqueue_event(task)
        working = TaskStatus(
            state=TaskState.working, message=new_agent_text_message("busy", task.contextId, task.id)
        )
        await queue.enqueue_event(
            TaskStatusUpdateEvent(status=working, contextId=task.contextId, taskId=task.id)
        )
        artifact = new_text_artifact(name="answer", description="the answer", text="forty-")
        queue.enqueue_event(TaskArtifactUpdateEvent(artifact=artifact, append=False, taskId=task.id))
        more = Artifact(artifact_id=artifact.artifact_id, parts=[Part(root=TextPart(text="two"))])
        queue.enqueue_event(TaskArtifactUpdateEvent(artifact=more, append=True, lastChunk=True))
        queue.enqueue_event(TaskStatusUpdateEvent(status=TaskStatus(state=TaskState.completed), final=True))

    async with agent_of(execute).test() as client:
        reply = await client("hi")
        assert reply.state is State.COMPLETED
        (artifact,) = reply.artifacts
        assert artifact.name == "answer" and artifact.text == "forty-two"
        assert reply.task is not None and [m.text for m in reply.task.history] == ["hi", "busy"]


async def test_a_question_ends_the_turn_and_the_answer_begins_another_that_knows_the_task() -> None:
    known: list[Any] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        known.append(context.current_task)
        if context.current_task is None:
            await updater.start_work()
            await updater.requires_input(updater.new_agent_message([Part(text="which one?")]))
            return
        await updater.add_artifact([Part(text=f"the {context.get_user_input()} one")], name="choice")
        await updater.complete()

    async with agent_of(execute).test() as client:
        reply = await client("choose")
        assert reply.asks and reply == "which one?"
        done = await reply.answer("red")
        assert done == "the red one" and done.id == reply.id
    assert known[0] is None
    assert known[1].id == reply.id and known[1].contextId == reply.context_id
    assert [message.text for message in known[1].history] == ["choose", "which one?", "red"]


@pytest.mark.parametrize("state", ["failed", "rejected"])
async def test_finish_sets_the_state_a_task_ends_in(state: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = TaskUpdater(queue)
        end = {"failed": updater.failed, "rejected": updater.reject}[state]
        await end(updater.new_agent_message([Part(text="no")]))

    async with agent_of(execute).test() as client:
        with pytest.raises(TaskFailed, match="no") as failed:
            await client("hi")
        assert failed.value.task.state.word == state


async def test_an_executor_that_raises_fails_its_task_and_says_nothing_of_why() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        raise RuntimeError("the password is hunter2")

    async with agent_of(execute).test() as client:
        with pytest.raises(TaskFailed) as failed:
            await client("hi")
        assert "hunter2" not in str(failed.value)


async def test_a_canceled_task_calls_cancel_of_its_executor() -> None:
    begun = asyncio.Event()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(new_task(context.message))
        begun.set()
        await asyncio.Event().wait()

    executor = Executor(execute)
    agent = ExecutorAgent(executor, AgentCard(name="Exec", description="Executes"))
    async with agent.test() as client:
        task = await begin(client, begun)
        assert (await client.cancel(task)).state is State.CANCELED
        assert executor.canceled == [task]


async def begin(client: Client, begun: asyncio.Event) -> str:
    async with client.stream("hi") as stream:
        async for piece in stream:
            assert piece.task is not None
            await begun.wait()
            return piece.task.id
    raise AssertionError("nothing came")


async def test_parts_and_messages_can_be_made_and_read_as_every_version_of_the_sdk_spells_them() -> None:
    seen: list[Any] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        message: Any = context.message
        seen.append((message.messageId, message.message_id, message.parts[0].root.text, message.contextId))
        parts = [
            Part(TextPart(text="text", kind="text")),
            Part(root=DataPart(data={"a": 1})),
            Part(root=FilePart(file=FileWithBytes(bytes="aGk=", name="hi.txt", mimeType="text/plain"))),
            Part(root=FilePart(file=FileWithUri(uri="https://example.com/x", mime_type="image/png"))),
        ]
        await queue.enqueue_event(Message(role=Role.agent, parts=parts, messageId="m1"))

    async with agent_of(execute).test() as client:
        reply = await client("hi")
        assert reply.message is not None
        text, data, file, link = reply.message.parts
        assert text.text == "text" and data.data == {"a": 1}
        assert (file.raw, file.filename, file.media_type) == (b"hi", "hi.txt", "text/plain")
        assert (link.url, link.media_type) == ("https://example.com/x", "image/png")
    ((camel, snake, said, context),) = seen
    assert camel == snake and said == "hi" and context


async def test_parts_are_known_by_their_kind_as_the_sdk_asks_for_it() -> None:
    seen: list[Any] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        parts: Any = context.message.parts
        for part in (part.root for part in parts):
            if isinstance(part, TextPart):
                seen.append((part.kind, part.text))
            elif isinstance(part, DataPart):
                seen.append((part.kind, part.data))
            elif isinstance(part, FilePart):
                assert isinstance(part.file, FileWithBytes) != isinstance(part.file, FileWithUri)
                seen.append((part.kind, part.file.bytes or part.file.uri, part.file.name, part.file.mimeType))
        await queue.enqueue_event(
            completed_task(context.task_id, context.context_id, [new_artifact(parts, "echo")])
        )

    content = (
        ModelPart(text="hi"),
        ModelPart(data=None),
        ModelPart(raw=b"hi", filename="hi.txt", media_type="text/plain"),
        ModelPart(url="https://example.com/x"),
    )
    async with agent_of(execute).test() as client:
        [echo] = (await client(*content)).artifacts
    assert echo.parts == content
    assert seen == [
        ("text", "hi"),
        ("data", None),
        ("file", "aGk=", "hi.txt", "text/plain"),
        ("file", "https://example.com/x", "", ""),
    ]


async def test_a_task_that_goes_on_can_be_read_as_the_sdk_spells_it() -> None:
    seen: list[Any] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        task: Any = context.current_task or new_task(context.message)
        await queue.enqueue_event(task)
        if task.artifacts:
            asked = task.history[1]
            seen.append((asked.parts[0].root.text, asked.messageId, task.artifacts[0].artifactId))
            seen.append(task.artifacts[0].parts[0].root.text)
        else:
            queue.enqueue_event(a_chunk("noted", append=False))
            await TaskUpdater(queue).requires_input(new_agent_text_message("And then?"))

    async with agent_of(execute).test() as client:
        first = await client("one")
        reply = await first.answer("two")
    assert first.task is not None and first.task.status.message is not None
    assert seen == [("And then?", first.task.status.message.message_id, "notes"), "noted"]
    assert [artifact.text for artifact in reply.artifacts] == ["noted"]


def test_a_card_says_what_it_is_given_in_either_spelling() -> None:
    camel = AgentCapabilities(pushNotifications=True)
    assert camel == AgentCapabilities(push_notifications=True) != AgentCapabilities()
    card = AgentCard(
        name="x", documentationUrl="https://example.com/docs", provider=AgentProvider(organization="Us")
    )
    assert card.documentation_url == "https://example.com/docs"
    assert card.provider is not None and card.provider.organization == "Us"


async def test_an_app_answers_at_its_rpc_url_and_the_card_has_it() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(new_agent_text_message("hi"))

    handler = DefaultRequestHandler(Executor(execute), InMemoryTaskStore())
    app = A2AStarletteApplication(AgentCard(name="x"), handler).build(rpc_url="/a2a/rpc")
    async with connect(app) as client:
        assert await client("hello") == "hi"
        assert {each.url.partition("/a2a/rpc")[1] for each in client.card.supported_interfaces} == {
            "/a2a/rpc"
        }


def test_invalid_events_and_cards_with_security_are_refused() -> None:
    with pytest.raises(TypeError, match="authenticate"):
        AgentCard(name="x", authentication=("Bearer",))
    with pytest.raises(TypeError, match="authenticate"):
        AgentCard(name="x", securitySchemes={"bearer": {"type": "http", "scheme": "bearer"}})
    with pytest.raises(AttributeError):
        new_task(ModelMessage(message_id="m", role=Role.user, parts=())).nonsense


def a_chunk(text: str, id: str = "notes", *, append: bool = True) -> ArtifactUpdate:
    return TaskArtifactUpdateEvent(
        append=append, lastChunk=True, artifact=Artifact(parts=[Part(text=text)], artifactId=id)
    )


async def test_a_later_turn_appends_to_the_artifact_of_an_earlier_one() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        queue.enqueue_event(a_chunk(context.get_user_input(), append=context.current_task is not None))
        await TaskUpdater(queue).requires_input()

    async with agent_of(execute).test() as client:
        reply = await client.send("one ", wait=True)
        reply = await reply.answer("two ")
        reply = await reply.answer("three")
        seen = await client.get(reply.id)
    assert [(a.artifact_id, a.text) for a in reply.artifacts] == [("notes", "one two three")]
    assert [(a.artifact_id, a.text) for a in seen.artifacts] == [("notes", "one two three")]


async def test_an_interrupted_turn_appends_once_and_replaces_only_its_own_output(
    tmp_path: Path,
) -> None:
    runs: list[str] = []
    reached = asyncio.Event()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        task, said = context.current_task, context.get_user_input()
        made = task.artifacts[0].artifact_id if task else str(uuid4())
        await queue.enqueue_event(a_chunk(said, made, append=task is not None))
        runs.append(said)
        await queue.enqueue_event(a_chunk(f"[{len(runs)}] " if said == "differs" else "[same] ", made))
        if runs.count(said) == 1:
            reached.set()
            await asyncio.Event().wait()  # and here the server stops
        await TaskUpdater(queue).requires_input()

    agent, store = agent_of(execute), f"sqlite:///{tmp_path}/tasks.db"
    task, ids = "", set()
    for said in ("first", "second", "differs"):
        async with agent.test(store=store, drain=0) as client:
            reply = await client.send(said, task=task, wait=False)
            task = reply.id
            async with asyncio.timeout(10):
                await reached.wait()
                async for piece in client.subscribe(task):
                    if piece.task and f"{said}[" in piece.task.text:
                        break
            reached.clear()
        async with agent.test(store=store) as client:
            reply = await client.wait(task)
        ids.add(reply.artifacts[0].artifact_id)
    assert runs == ["first", "first", "second", "second", "differs", "differs"]
    assert reply.text == "first[same] second[same] differs[6] "
    assert len(ids) == len(reply.artifacts) == 1


async def test_a_whole_task_brings_its_artifacts_and_those_on_record_stay() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        task = context.current_task or new_task(context.message)
        await queue.enqueue_event(task)
        made = Artifact(parts=[Part(text=context.get_user_input())], artifactId=f"a{len(task.artifacts)}")
        state = TaskState.input_required if not task.artifacts else TaskState.completed
        await queue.enqueue_event(
            Task(id=task.id, context_id=task.context_id, status=TaskStatus(state=state), artifacts=(made,))
        )

    async with agent_of(execute).test() as client:
        reply = await client.send("one")
        assert reply.asks
        reply = await reply.answer("two")
    assert [(a.artifact_id, a.text) for a in reply.artifacts] == [("a0", "one"), ("a1", "two")]


async def test_an_artifact_of_several_parts_is_one_event() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = TaskUpdater(queue)
        parts = [Part(root=TextPart(text="a")), Part(root=DataPart(data={"b": 1}))]
        await updater.add_artifact(parts, artifact_id="both", last_chunk=True)
        await updater.complete()

    async with agent_of(execute).test() as client:
        events = [piece.event async for piece in client.stream("go")]
    [update] = [event for event in events if isinstance(event, ArtifactUpdate)]
    assert [part.text or part.data for part in update.artifact.parts] == ["a", {"b": 1}]
    assert update.last_chunk and not update.append


async def test_an_interrupted_turn_writes_the_metadata_of_an_artifact_once(tmp_path: Path) -> None:
    runs: list[str] = []
    reached = asyncio.Event()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        runs.append(context.task_id)
        for n, text in enumerate(["a", "b", "differs " if len(runs) == 1 else "c"]):
            artifact = Artifact(parts=[Part(text=text)], artifactId="x", metadata={str(n): n})
            event = TaskArtifactUpdateEvent(artifact=artifact, append=n > 0, metadata={"n": n})
            await queue.enqueue_event(event)
        if len(runs) == 1:
            reached.set()
            await asyncio.Event().wait()  # and here the server stops

    agent, store = agent_of(execute), f"sqlite:///{tmp_path}/tasks.db"
    async with agent.test(store=store, drain=0) as client:
        task = (await client.send("go", wait=False)).id
        async with asyncio.timeout(10):
            await reached.wait()
            async for piece in client.subscribe(task):
                if piece.task and "differs" in piece.task.text:
                    break
    async with agent.test(store=store) as client:
        [artifact] = (await client.wait(task)).artifacts
    assert (artifact.text, artifact.metadata) == ("abc", {"0": 0, "1": 1, "2": 2})


async def test_an_executor_that_says_much_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    append = journal.Journal.append

    async def slowly(self: journal.Journal, batch: list[Record], size: int) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        await append(self, batch, size)

    monkeypatch.setattr(journal, "MAX_WAITING_RECORDS", 4)
    monkeypatch.setattr(journal.Journal, "append", slowly)
    waiting: list[int] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        for n in range(100):
            await queue.enqueue_event(a_chunk(f"{n} ", append=n > 0))
            waiting.append(len(record_of(queue._turn).journal.waiting))

    async with agent_of(execute).test() as client:
        assert (await client("go")).split() == [str(n) for n in range(100)]
    assert max(waiting) <= 4


async def test_an_update_without_parts_can_say_that_an_artifact_is_whole() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(
            TaskArtifactUpdateEvent(artifact=Artifact(parts=[Part(text="all")], artifactId="x"))
        )
        await queue.enqueue_event(
            TaskArtifactUpdateEvent(artifact=Artifact(parts=[], artifactId="x"), append=True, lastChunk=True)
        )

    async with agent_of(execute).test() as client:
        events = [piece.event async for piece in client.stream("go")]
        [artifact] = [task.artifacts[0] async for task in client.list(artifacts=True)]
    updates = [event for event in events if isinstance(event, ArtifactUpdate)]
    assert "".join(update.artifact.text for update in updates) == artifact.text == "all"
    assert updates[-1].last_chunk


async def test_events_of_cancel_reach_the_client() -> None:
    begun = asyncio.Event()

    class Polite(AgentExecutor):
        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            await TaskUpdater(event_queue).start_work()
            begun.set()
            await asyncio.Event().wait()

        async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
            said = new_agent_text_message("nothing was booked")
            await TaskUpdater(event_queue).update_status(TaskState.canceled, said, metadata={"spent": 0})

    async with ExecutorAgent(Polite(), AgentCard(name="Polite")).test() as client:
        task = await client.cancel(await begin(client, begun))
    assert task.state is State.CANCELED and task.metadata == {"spent": 0}
    assert [message.text for message in task.history] == ["hi", "nothing was booked"]
