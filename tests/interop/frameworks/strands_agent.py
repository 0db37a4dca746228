"""The agent of `script.py` in Strands Agents. A tool asks a person with an interrupt."""

import json

from strands import Agent, ToolContext, tool
from strands.models import Model

from dragoman import wrap

from . import script


class ScriptedModel(Model):
    def update_config(self, **config):
        pass

    def get_config(self):
        return {}

    async def structured_output(self, *args, **more):
        raise NotImplementedError
        yield

    async def stream(self, messages, *args, **more):
        said, results = [], []
        for message in messages:
            for block in message["content"]:
                if "toolResult" in block:
                    results.append(block["toolResult"]["content"][0]["text"])
                elif message["role"] == "user" and "text" in block:
                    said.append(block["text"])
                    results = []
        answer = script.respond(said, results)
        yield {"messageStart": {"role": "assistant"}}
        if answer.pieces or answer.hangs:
            yield {"contentBlockStart": {"start": {}}}
            async for piece in script.pieces(answer):
                yield {"contentBlockDelta": {"delta": {"text": piece}}}
            yield {"contentBlockStop": {}}
        for n, call in enumerate(answer.calls):
            use = {"name": call.name, "toolUseId": f"call-{len(said)}-{n}"}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(call.arguments)}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if answer.calls else "end_turn"}}
        used = {
            "inputTokens": script.INPUT_TOKENS,
            "outputTokens": script.OUTPUT_TOKENS,
            "totalTokens": script.INPUT_TOKENS + script.OUTPUT_TOKENS,
        }
        yield {"metadata": {"usage": used, "metrics": {"latencyMs": 0}}}


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return script.weather(city)


@tool(context=True)
def book(city: str, tool_context: ToolContext) -> str:
    """Book a trip to a city."""
    answer = tool_context.interrupt("book", reason=f"Book {city}?")
    return script.book(city) if answer == "yes" else f"did not book {city}"


agent = wrap(lambda: Agent(model=ScriptedModel(), tools=[weather, book]), name="Travel")
