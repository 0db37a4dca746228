"""What else the OpenAI Agents SDK has: handoffs, guardrails, an answer that is data."""

from agents import Agent, GuardrailFunctionOutput, input_guardrail, output_guardrail, set_tracing_disabled
from pydantic import BaseModel

from dragoman import wrap

from . import script
from .openai_agents_agent import ScriptedModel

set_tracing_disabled(True)


class Hands(ScriptedModel):
    """Hands over at the word `writer`, and says its name."""

    def __init__(self, name):
        self.name = name

    async def stream_response(self, system_instructions, input, *args, **more):
        real, last = script.respond, input[-1].get("content") if input[-1].get("role") == "user" else ""
        if last == "writer":
            answer = script.Answer(calls=[script.Call("transfer_to_writer", {})])
        else:
            answer = script.Answer([f"{self.name} here"])
        script.respond = lambda said, results: answer
        try:
            async for event in super().stream_response(system_instructions, input, *args, **more):
                yield event
        finally:
            script.respond = real


writer = Agent(name="writer", model=Hands("writer"))
team = wrap(Agent(name="reception", model=Hands("reception"), handoffs=[writer]), name="team")


class Trip(BaseModel):
    city: str


class Plans(ScriptedModel):
    async def stream_response(self, *args, **more):
        real, script.respond = script.respond, lambda said, results: script.Answer(['{"city":', '"Rome"}'])
        try:
            async for event in super().stream_response(*args, **more):
                yield event
        finally:
            script.respond = real


structured = wrap(Agent(name="structured", model=Plans(), output_type=Trip))


@input_guardrail
async def no_politics(context, agent, input):
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="politics" in str(input))


@output_guardrail
async def no_secrets(context, agent, output):
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="secret" in str(output))


guarded = wrap(
    Agent(
        name="guarded",
        model=ScriptedModel(),
        input_guardrails=[no_politics],
        output_guardrails=[no_secrets],
    )
)
