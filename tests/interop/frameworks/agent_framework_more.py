"""What else Microsoft Agent Framework has: workflows, whose executors ask, and which have agents in them."""

from dataclasses import dataclass
from typing import Never

from agent_framework import Agent, Executor, WorkflowBuilder, WorkflowContext, handler, response_handler, tool

from dragoman import wrap

from . import script
from .agent_framework_agent import ScriptedClient


@dataclass
class Trip:
    prompt: str
    city: str


class Plan(Executor):
    """Asks for two cities at once. It remembers how many trips it planned."""

    def __init__(self):
        super().__init__(id="plan")
        self.done, self.trips = [], 0

    @handler
    async def begin(self, text: str, ctx: WorkflowContext[list, str]) -> None:
        self.done, self.trips = [], self.trips + 1
        for city in ("Rome", "Paris"):
            await ctx.request_info(Trip(f"Book {city}?", city), str)

    @response_handler
    async def answered(self, request: Trip, answer: str, ctx: WorkflowContext[list, str]) -> None:
        self.done.append(script.book(request.city) if answer == "yes" else f"did not book {request.city}")
        if len(self.done) == 2:
            await ctx.send_message([self.trips, *sorted(self.done)])

    async def on_checkpoint_save(self):
        return {"done": self.done, "trips": self.trips}

    async def on_checkpoint_restore(self, state):
        self.done, self.trips = state["done"], state["trips"]


class Tell(Executor):
    """Waits for the file `gate` if it is asked to."""

    def __init__(self):
        super().__init__(id="tell")

    @handler
    async def tell(self, done: list, ctx: WorkflowContext[Never, str]) -> None:
        async for piece in script.pieces(
            script.Answer(["", f"{done[0]}: {', '.join(done[1:])}"], gated=True)
        ):
            await ctx.yield_output(piece)


def make_trips():
    plan, tell = Plan(), Tell()
    return WorkflowBuilder(start_executor=plan).add_edge(plan, tell).build()


trips = wrap(make_trips, name="trips")
shared = wrap(make_trips(), name="shared")


def make_team():
    tools = [tool(script.weather), tool(script.book, approval_mode="always_require")]
    return WorkflowBuilder(start_executor=Agent(ScriptedClient(), name="guide", tools=tools)).build()


team = wrap(make_team, name="team")
