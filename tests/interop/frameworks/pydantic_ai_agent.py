"""The agent of `script.py` in pydantic-ai. A tool requires approval."""

import json
from contextlib import asynccontextmanager

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.usage import RequestUsage

from dragoman import wrap
from dragoman.adapters.pydantic_ai import agent_as_tool

from . import script


async def scripted(messages, info):
    said, results = [], []
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart):
                said.append(part.content)
                results = []
            elif isinstance(part, ToolReturnPart):
                results.append(str(part.content))
    answer = script.respond(said, results)
    async for piece in script.pieces(answer):
        yield piece
    for n, call in enumerate(answer.calls):
        yield {n: DeltaToolCall(call.name, json.dumps(call.arguments), tool_call_id=f"call-{len(said)}-{n}")}


class ScriptedModel(FunctionModel):
    """Counts tokens as the script says, not as pydantic-ai estimates them."""

    @asynccontextmanager
    async def request_stream(self, *args, **more):
        async with super().request_stream(*args, **more) as stream:
            kind = type(stream)
            used = RequestUsage(input_tokens=script.INPUT_TOKENS, output_tokens=script.OUTPUT_TOKENS)
            stream.__class__ = type(kind.__name__, (kind,), {"usage": property(lambda self: used)})
            yield stream


agent = wrap(
    Agent(
        ScriptedModel(stream_function=scripted),
        name="Travel",
        tools=[
            Tool(script.weather),
            Tool(script.book, requires_approval=True),
            *([agent_as_tool(script.REMOTE, "desk")] if script.REMOTE else []),
        ],
    )
)
