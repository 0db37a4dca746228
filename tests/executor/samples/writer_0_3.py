"""Streams a text in chunks. Written for a2a-sdk 0.3: FastAPI, a module of types, an explicit queue manager."""

import a2a.types as types
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AFastAPIApplication
from a2a.server.events import EventQueue, InMemoryQueueManager
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
)
from a2a.utils import new_task
from a2a.utils import new_text_artifact as text_artifact


class WriterExecutor(AgentExecutor):
    """A writer."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task or new_task(context.message)
        await event_queue.enqueue_event(task)
        words = context.get_user_input().split()
        artifact_id = "story"
        for n, word in enumerate(words):
            artifact = text_artifact(name="story", text=f"{word.upper()} ")
            artifact.artifact_id = artifact_id
            await event_queue.enqueue_event(
                types.TaskArtifactUpdateEvent(
                    task_id=task.id,
                    context_id=task.context_id,
                    artifact=artifact,
                    append=n > 0,
                    last_chunk=n == len(words) - 1,
                )
            )
        await event_queue.enqueue_event(
            types.TaskStatusUpdateEvent(
                task_id=task.id,
                context_id=task.context_id,
                status=types.TaskStatus(state=types.TaskState.completed),
                final=True,
            )
        )

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        return


push_store = InMemoryPushNotificationConfigStore()
request_handler = DefaultRequestHandler(
    agent_executor=WriterExecutor(),
    task_store=InMemoryTaskStore(),
    queue_manager=InMemoryQueueManager(),
    push_config_store=push_store,
    push_sender=BasePushNotificationSender(httpx_client=None, config_store=push_store),
)
card = types.AgentCard(
    name="Writer",
    description="Writes in capital letters",
    url="http://localhost:8000/",
    version="0.3.0",
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    capabilities=types.AgentCapabilities(streaming=True),
    skills=[types.AgentSkill(id="write", name="Write", description="Writes", tags=["write"])],
)
app = A2AFastAPIApplication(agent_card=card, http_handler=request_handler).build()
