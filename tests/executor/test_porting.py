"""Programs written against the official SDK, after their imports were changed: what people there write, and expect."""

# No `from __future__ import annotations`: as in the programs that are ported, annotations are evaluated.

import importlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dragoman.executor
from dragoman import connect
from dragoman.auth import Bearer, hashed
from dragoman.client import TaskFailed
from dragoman.executor import (
    A2AFastAPIApplication,
    A2AStarletteApplication,
    AgentCapabilities,
    AgentCard,
    AgentExecutor,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    Artifact,
    BasePushNotificationSender,
    DefaultRequestHandler,
    EventQueue,
    ExecutorAgent,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    InternalError,
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
    get_artifact_text,
    get_data_parts,
    get_file_parts,
    get_raw_parts,
    get_text_parts,
    get_url_parts,
    new_agent_text_message,
    new_data_part,
    new_message,
    new_raw_part,
    new_task,
    new_task_from_user_message,
    new_text_artifact,
    new_text_artifact_update_event,
    new_text_message,
    new_text_part,
    new_text_status_update_event,
    new_url_part,
)
from dragoman.model.task import ArtifactUpdate, StatusUpdate
from tests.executor.executing import agent_of
from tests.executor.sdk_names import NAMES


class Currency:
    async def stream(self, query: str, context: str) -> AsyncIterator[dict[str, Any]]:
        yield {"done": False, "asks": False, "content": "Looking up the rates ..."}
        if "INR" not in query:
            yield {"done": False, "asks": True, "content": "To which currency?"}
            return
        yield {"done": True, "asks": False, "content": "10 USD are 835 INR"}


class CurrencyExecutor(AgentExecutor):
    """As the samples of 0.2 and 0.3 have it."""

    def __init__(self) -> None:
        self.agent = Currency()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if self._wrong(context.message):
            raise ServerError(error=InvalidParamsError())
        task: Task | None = context.current_task
        if not task:
            task = new_task(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        try:
            async for item in self.agent.stream(context.get_user_input(), task.context_id):
                said = new_agent_text_message(item["content"], task.context_id, task.id)
                if item["asks"]:
                    await updater.update_status(TaskState.input_required, said, final=True)
                    break
                if not item["done"]:
                    await updater.update_status(TaskState.working, said)
                    continue
                await updater.add_artifact(
                    [Part(root=TextPart(text=item["content"]))], name="conversion_result"
                )
                await updater.complete()
                break
        except Exception as error:
            raise ServerError(error=InternalError()) from error

    def _wrong(self, message: Message | None) -> bool:
        return message is None or not message.parts

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise ServerError(error=UnsupportedOperationError())


async def test_the_currency_sample_asks_and_converts() -> None:
    agent = ExecutorAgent(CurrencyExecutor(), AgentCard(name="Currency"))
    async with agent.test() as client:
        question = await client("10 USD?")
        assert question.asks and question == "To which currency?"
        done = await question.answer("to INR")
        assert done == "10 USD are 835 INR" and done.artifacts[0].name == "conversion_result"


async def test_an_executor_of_1_0_reads_and_says_everything_with_the_words_of_1_0() -> None:
    seen: list[Any] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        task = context.current_task or new_task_from_user_message(context.message)
        await queue.enqueue_event(task)
        parts = context.message.parts
        seen.append([part.WhichOneof("content") for part in parts])
        seen.append([part.HasField("text") for part in parts])
        seen.extend(
            [get_text_parts(parts), get_data_parts(parts), get_raw_parts(parts), get_url_parts(parts)]
        )
        await queue.enqueue_event(
            new_text_status_update_event(task.id, task.context_id, TaskState.TASK_STATE_WORKING, "busy")
        )
        await queue.enqueue_event(
            new_text_artifact_update_event(task.id, task.context_id, "answer", "forty-", artifact_id="a")
        )
        await queue.enqueue_event(
            new_text_artifact_update_event(
                task.id, task.context_id, "answer", "two", append=True, last_chunk=True, artifact_id="a"
            )
        )
        received = new_message(
            [new_text_part("done"), new_data_part({"n": 42}), new_raw_part(b"x", "image/png")]
        )
        await TaskUpdater(queue, task.id, task.context_id).complete(received)

    content = (
        new_text_part("hi"),
        new_data_part([1]),
        new_raw_part(b"\0"),
        new_url_part("https://x.example/"),
    )
    async with agent_of(execute).test() as client:
        reply = await client(*content)
    assert seen[0] == ["text", "data", "raw", "url"] and seen[1] == [True, False, False, False]
    assert seen[2:] == [["hi"], [[1]], [b"\0"], ["https://x.example/"]]
    assert reply == "forty-two" and reply.artifacts[0].name == "answer"
    assert reply.task is not None and [m.text for m in reply.task.history] == ["hi", "busy"]
    ended = reply.task.status.message
    assert ended is not None and ended.role is Role.ROLE_AGENT and reply.data == {"n": 42}
    assert ended.parts[2].media_type == "image/png"


async def test_types_can_be_asked_for_and_stand_in_annotations() -> None:
    def kinds(event: Message | Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent | None) -> list[str]:
        every = (Message, Task, TaskStatusUpdateEvent, TaskArtifactUpdateEvent, Artifact, Part)
        return [kind.__name__ for kind in every if isinstance(event, kind)]

    assert kinds(new_text_message("hi")) == kinds(Message(role=Role.agent, parts=[])) == ["Message"]
    task = Task(id="t", contextId="c", status=TaskStatus(state=TaskState.working), kind="task")
    assert kinds(task) == ["Task"] and (task.context_id, task.contextId) == ("c", "c")
    assert kinds(TaskStatusUpdateEvent(status=task.status, taskId="t")) == ["TaskStatusUpdateEvent"]
    artifact = new_text_artifact("a", "b", description=None)
    assert kinds(artifact) == ["Artifact"] and get_artifact_text(artifact) == "b"
    update = TaskArtifactUpdateEvent(artifact=artifact, append=None, last_chunk=None)
    assert kinds(update) == ["TaskArtifactUpdateEvent"]
    assert kinds(Part(root=TextPart(text="x"))) == ["Part"]
    assert [part.bytes for part in get_file_parts([new_raw_part(b"x"), new_text_part("y")])] == ["eA=="]
    with pytest.raises(TypeError, match="contextid"):
        Message(role=Role.agent, parts=[], contextid="c")


async def test_optional_arguments_may_be_none_as_in_the_sdk() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        await updater.submit()
        await updater.start_work(new_agent_text_message("on it", None, None))
        await updater.update_status(TaskState.working, timestamp="2026-01-01T00:00:00Z", metadata=None)
        await updater.add_artifact(
            [Part(text="x")],
            artifact_id=None,
            name=None,
            metadata=None,
            append=None,
            last_chunk=None,
            extensions=None,
        )
        await queue.close()

    async with agent_of(execute).test() as client:
        assert await client("hi") == "x"


async def test_metadata_goes_where_it_was_put() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        task = new_task(context.message)
        await queue.enqueue_event(
            Task(id=task.id, context_id=task.context_id, status=task.status, metadata={"of": "task"})
        )
        updater = TaskUpdater(queue, task.id, task.context_id)
        said = updater.new_agent_message([Part(text="busy")], metadata={"of": "message"})
        await updater.update_status(TaskState.working, said, metadata={"of-status": 1})
        first = Artifact(
            parts=[Part(text="a")], artifactId="x", metadata={"first": 1}, extensions=["https://e.example/1"]
        )
        await queue.enqueue_event(TaskArtifactUpdateEvent(artifact=first, metadata={"update": 1}))
        more = Artifact(
            parts=[Part(text="b"), Part(text="c")],
            artifactId="x",
            name="named later",
            metadata={"second": 2},
            extensions=["https://e.example/2"],
        )
        await queue.enqueue_event(TaskArtifactUpdateEvent(artifact=more, append=True, metadata={"update": 2}))
        await queue.enqueue_event(a_chunk("d"))
        await updater.update_status(TaskState.completed, metadata={"of-end": 2})

    def a_chunk(text: str) -> Any:
        return TaskArtifactUpdateEvent(
            artifact=Artifact(parts=[Part(text=text)], artifactId="x"), append=True
        )

    async with agent_of(execute).test() as client:
        events = [piece.event async for piece in client.stream("hi")]
        [task] = [task async for task in client.list(artifacts=True)]
    updates = [event for event in events if isinstance(event, ArtifactUpdate)]
    assert [update.metadata for update in updates] == [{"update": 1}, {"update": 2}, {}]
    assert [update.artifact.metadata for update in updates] == [{"first": 1}, {"second": 2}, {}]
    assert [update.artifact.text for update in updates] == ["a", "bc", "d"]
    statuses = [event for event in events if isinstance(event, StatusUpdate)]
    assert [status.metadata for status in statuses if status.metadata] == [
        {"of": "task"},
        {"of-status": 1},
        {"of-end": 2},
    ]
    [busy] = [s.status.message for s in statuses if s.status.message is not None]
    assert busy.metadata == {"of": "message"}
    assert task.metadata == {"of": "task", "of-status": 1, "of-end": 2}
    [artifact] = task.artifacts
    assert artifact.metadata == {"first": 1, "second": 2} and artifact.name == "named later"
    assert artifact.extensions == ("https://e.example/1", "https://e.example/2")


async def test_the_context_of_a_request_says_who_asks_and_how() -> None:
    seen: list[Any] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        assert context.configuration is not None and context.call_context is not None
        seen.append(context.configuration.accepted_output_modes)
        seen.append(context.configuration.acceptedOutputModes)
        seen.append(context.requested_extensions)
        seen.append((context.call_context.user.is_authenticated, context.call_context.user.user_name))
        seen.append((context.related_tasks, context.tenant, context.metadata))
        context.add_activated_extension("https://e.example/1")
        context.call_context.state["mine"] = 1
        await queue.enqueue_event(new_agent_text_message("ok"))

    agent = agent_of(execute, auth=[Bearer({"ada": hashed("s3cret")})])
    async with agent.test(credentials="s3cret") as client:
        await client("hi", accept="text/plain", extensions=["https://e.example/1"], metadata={"k": "v"})
    assert seen == [
        ["text/plain"],
        ["text/plain"],
        {"https://e.example/1"},
        (True, "ada"),
        ([], "", {"k": "v"}),
    ]


async def test_errors_are_classes_that_can_be_raised_bare_and_caught() -> None:
    caught: list[Exception] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        try:
            raise ServerError(error=InvalidParamsError(message="a number, please"))
        except ServerError as error:
            caught.append(error.error)
        raise UnsupportedOperationError

    async with agent_of(execute).test() as client:
        with pytest.raises(TaskFailed, match="not supported"):
            await client("hi")
    assert [type(error) for error in caught] == [InvalidParamsError]


def test_a_card_of_1_0_says_where_it_is_though_the_server_knows_better() -> None:
    card = AgentCard(
        name="x",
        supported_interfaces=[
            AgentInterface(url="http://x/", protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(
            extensions=[AgentExtension(uri="https://e.example/1", required=False)]
        ),
        skills=[AgentSkill(id="s", name="S", description="d", tags=["t"])],
    )
    assert [extension.uri for extension in card.capabilities.extensions] == ["https://e.example/1"]
    with pytest.raises(TypeError, match="skils"):
        AgentCard(name="x", skils=[])


async def test_unsupported_arguments_of_the_sdks_applications_are_refused() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(new_agent_text_message("hi"))

    executor, card = agent_of(execute).executor, AgentCard(name="x")
    kept = InMemoryPushNotificationConfigStore()
    handler = DefaultRequestHandler(
        agent_executor=executor,
        task_store=InMemoryTaskStore(),
        push_config_store=kept,
        push_sender=BasePushNotificationSender(httpx_client=object(), config_store=kept),
        agent_card=card,
    )
    with pytest.raises(TypeError, match="store="):
        DefaultRequestHandler(executor, object())
    with pytest.raises(TypeError, match="request_context_builder"):
        DefaultRequestHandler(executor, request_context_builder=object())
    with pytest.raises(TypeError, match="card_modifier"):
        A2AStarletteApplication(card, handler, card_modifier=lambda card: card)
    with pytest.raises(TypeError, match="middlewear"):
        A2AStarletteApplication(card, handler).build(middlewear=[])
    with pytest.raises(TypeError, match="leave out agent_card_url"):
        A2AStarletteApplication(card, handler).build(agent_card_url="/card")
    async with connect(A2AFastAPIApplication(card, handler).build()) as client:
        assert await client("hi") == "hi"


def test_a_name_that_is_not_here_says_what_to_write_instead() -> None:
    with pytest.raises(ImportError, match=r"ExecutorAgent\(executor, card\)\.run\(grpc_port="):
        from dragoman.executor import GrpcHandler  # type: ignore[attr-defined] # noqa: F401
    with pytest.raises(ImportError, match=r"auth=\[Bearer"):
        from dragoman.executor import HTTPAuthSecurityScheme  # type: ignore[attr-defined] # noqa: F401
    with pytest.raises(ImportError, match=r"store='postgresql://"):
        from dragoman.executor import DatabaseTaskStore  # type: ignore[attr-defined] # noqa: F401
    with pytest.raises(ImportError, match=r"dragoman\.connect"):
        _ = dragoman.executor.A2AClient  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"^Message is no pydantic model: .*msgspec\.to_builtins"):
        new_text_message("hi").model_dump()
    with pytest.raises(AttributeError, match=r"^Message has no nonsense"):
        _ = new_text_message("hi").nonsense
    with pytest.raises(ImportError, match="leave it out"):
        from dragoman.executor import validate  # type: ignore[attr-defined] # noqa: F401
    with pytest.raises(ImportError, match="nonsense"):
        from dragoman.executor import nonsense  # type: ignore[attr-defined] # noqa: F401
    with pytest.raises(AttributeError):
        _ = dragoman.executor.nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", sorted(NAMES))
def test_every_public_name_of_the_sdk_is_here_or_says_what_to_write(module: str) -> None:
    for name in NAMES[module].split():
        if name in dragoman.executor.__all__:
            assert getattr(dragoman.executor, name) is not None
            continue
        with pytest.raises(ImportError, match=rf"^there is no {name} in dragoman\.executor: \w+ \S+"):
            getattr(dragoman.executor, name)


@pytest.mark.parametrize("module", ["errors", "execution", "helpers", "routes", "server", "types"])
def test_a_module_of_the_package_has_the_names_of_the_others(module: str) -> None:
    found = importlib.import_module(f"dragoman.executor.{module}")
    assert found.AgentExecutor is AgentExecutor and found.TextPart is TextPart
    with pytest.raises(ImportError, match=r"dragoman\.connect"):
        _ = found.A2AClient
    with pytest.raises(AttributeError):
        _ = found.nonsense
    assert not hasattr(found, "__path__")


def test_states_and_roles_are_constants_too() -> None:
    states = {
        getattr(dragoman.executor, name) for name in dir(dragoman.executor) if name.startswith("TASK_STATE_")
    }
    assert len(states) == 9
    assert states > dragoman.executor.TERMINAL_TASK_STATES | dragoman.executor.INTERRUPTED_TASK_STATES
    assert Role.agent == dragoman.executor.ROLE_AGENT
    artifact = dragoman.executor.build_text_artifact("hi", "a1")
    assert (artifact.artifact_id, artifact.parts[0].root.text) == ("a1", "hi")


async def test_an_updater_is_called_with_and_without_await_as_older_and_newer_programs_do() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        updater.submit()
        updater.start_work(new_agent_text_message("on it"))
        updater.add_artifact([Part(text="x")], name="result")
        await updater.complete()

    async with agent_of(execute).test() as client:
        reply = await client("hi")
    assert reply == "x" and reply.task is not None
    assert [message.text for message in reply.task.history] == ["hi", "on it"]


async def test_an_event_of_another_library_is_named_with_it(caplog: pytest.LogCaptureFixture) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(Currency())  # type: ignore[arg-type]

    async with agent_of(execute).test() as client:
        with pytest.raises(TaskFailed):
            await client("hi")
    raised = caplog.records[-1].exc_info
    assert raised is not None and str(raised[1]) == f"{__name__}.Currency is no event of dragoman.executor"
