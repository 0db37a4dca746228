"""The quickstart's agents, as a reader of it would have them after changing the imports: `dragoman.executor` for `a2a`.

The currency agent's language model is replaced by one that knows three questions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from dragoman.executor import (
    A2AStarletteApplication,
    AgentAuthentication,
    AgentCapabilities,
    AgentCard,
    AgentExecutor,
    AgentSkill,
    DefaultRequestHandler,
    EventQueue,
    InMemoryTaskStore,
    RequestContext,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    new_agent_text_message,
    new_task,
    new_text_artifact,
)


class HelloWorldAgent:
    """Hello World Agent."""

    async def invoke(self) -> str:
        return "Hello World"


class HelloWorldAgentExecutor(AgentExecutor):
    def __init__(self) -> None:
        self.agent = HelloWorldAgent()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        result = await self.agent.invoke()
        event_queue.enqueue_event(new_agent_text_message(result))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise Exception("cancel not supported")


def hello_world() -> Any:
    skill = AgentSkill(
        id="hello_world",
        name="Returns hello world",
        description="just returns hello world",
        tags=["hello world"],
        examples=["hi", "hello world"],
    )
    agent_card = AgentCard(
        name="Hello World Agent",
        description="Just a hello world agent",
        url="http://localhost:9999/",
        version="1.0.0",
        defaultInputModes=["text"],
        defaultOutputModes=["text"],
        capabilities=AgentCapabilities(),
        skills=[skill],
        authentication=AgentAuthentication(schemes=["public"]),
    )
    request_handler = DefaultRequestHandler(
        agent_executor=HelloWorldAgentExecutor(), task_store=InMemoryTaskStore()
    )
    return A2AStarletteApplication(agent_card=agent_card, http_handler=request_handler).build()


class CurrencyAgent:
    """Knows what 10 and 100 dollars are worth."""

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}

    async def stream(self, query: str, session: str) -> AsyncIterator[dict[str, Any]]:
        if query == "how much is 100 USD?":
            self.asked[session] = query
            question = "To which currency would you like to convert?"
            yield {"is_task_complete": False, "require_user_input": True, "content": question}
            return
        for progress in ("Looking up the exchange rates...", "Processing the exchange rates.."):
            yield {"is_task_complete": False, "require_user_input": False, "content": progress}
        answers = {"in GBP": "100 USD is 74.91 GBP", "how much is 10 USD in INR?": "10 USD is 855.6 INR"}
        yield {"is_task_complete": True, "require_user_input": False, "content": answers[query]}


class CurrencyAgentExecutor(AgentExecutor):
    def __init__(self) -> None:
        self.agent = CurrencyAgent()
        self.canceled: list[str] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        query = context.get_user_input()
        task: Any = context.current_task
        if not task:
            task = new_task(context.message)
            event_queue.enqueue_event(task)
        async for event in self.agent.stream(query, task.contextId):
            if event["is_task_complete"]:
                event_queue.enqueue_event(
                    TaskArtifactUpdateEvent(
                        append=False,
                        contextId=task.contextId,
                        taskId=task.id,
                        lastChunk=True,
                        artifact=new_text_artifact(
                            name="current_result",
                            description="Result of request to agent.",
                            text=event["content"],
                        ),
                    )
                )
                event_queue.enqueue_event(
                    TaskStatusUpdateEvent(
                        status=TaskStatus(state=TaskState.completed),
                        final=True,
                        contextId=task.contextId,
                        taskId=task.id,
                    )
                )
            elif event["require_user_input"]:
                event_queue.enqueue_event(
                    TaskStatusUpdateEvent(
                        status=TaskStatus(
                            state=TaskState.input_required,
                            message=new_agent_text_message(event["content"], task.contextId, task.id),
                        ),
                        final=True,
                        contextId=task.contextId,
                        taskId=task.id,
                    )
                )
            else:
                event_queue.enqueue_event(
                    TaskStatusUpdateEvent(
                        status=TaskStatus(
                            state=TaskState.working,
                            message=new_agent_text_message(event["content"], task.contextId, task.id),
                        ),
                        final=False,
                        contextId=task.contextId,
                        taskId=task.id,
                    )
                )

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise Exception("cancel not supported")


def currency() -> Any:
    skill = AgentSkill(
        id="convert_currency",
        name="Currency Exchange Rates Tool",
        description="Helps with exchange values between various currencies",
        tags=["currency conversion", "currency exchange"],
        examples=["What is exchange rate between USD and GBP?"],
    )
    agent_card = AgentCard(
        name="Currency Agent",
        description="Helps with exchange rates for currencies",
        url="http://localhost:10000/",
        version="1.0.0",
        defaultInputModes=["text", "text/plain"],
        defaultOutputModes=["text", "text/plain"],
        capabilities=AgentCapabilities(streaming=True, pushNotifications=True),
        skills=[skill],
        authentication=AgentAuthentication(schemes=["public"]),
    )
    request_handler = DefaultRequestHandler(
        agent_executor=CurrencyAgentExecutor(), task_store=InMemoryTaskStore()
    )
    return A2AStarletteApplication(agent_card=agent_card, http_handler=request_handler).build()
