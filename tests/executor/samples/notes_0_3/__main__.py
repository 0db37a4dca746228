"""Serves the notes, with tasks in a database."""

from a2a.server.apps import A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import DatabaseTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentSkill

from notes_0_3.executor import NotesExecutor

ENGINE = None

card = AgentCard(
    name="Notes",
    description="Keeps notes",
    url="http://localhost:8001/",
    version="0.3.0",
    default_input_modes=["text/plain", "application/json"],
    default_output_modes=["text/plain"],
    capabilities=AgentCapabilities(),
    skills=[AgentSkill(id="note", name="Note", description="Notes it down", tags=["notes"])],
)
app = A2AStarletteApplication(
    agent_card=card,
    http_handler=DefaultRequestHandler(
        agent_executor=NotesExecutor(), task_store=DatabaseTaskStore(engine=ENGINE)
    ),
).build()

if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app)
