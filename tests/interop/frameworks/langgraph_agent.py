"""The agent of `script.py` in LangGraph. A tool asks a person with `interrupt`."""

import warnings

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import tool
from langgraph.prebuilt import create_react_agent
from langgraph.types import interrupt

from dragoman import wrap
from dragoman.adapters.langgraph import agent_as_tool

from . import script

warnings.filterwarnings("ignore")


class ScriptedModel(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools, **more):
        return self

    def _generate(self, *args, **more):
        raise NotImplementedError

    async def _astream(self, messages, stop=None, run_manager: AsyncCallbackManagerForLLMRun = None, **more):
        said = [message.content for message in messages if isinstance(message, HumanMessage)]
        results = []
        for message in messages:
            if isinstance(message, HumanMessage):
                results = []
            elif isinstance(message, ToolMessage):
                results.append(message.content)
        answer = script.respond(said, results)
        async for piece in script.pieces(answer):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece))
            if run_manager:
                await run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk
        calls = [
            {"id": f"call-{len(said)}-{n}", "name": call.name, "args": call.arguments}
            for n, call in enumerate(answer.calls)
        ]
        usage = {
            "input_tokens": script.INPUT_TOKENS,
            "output_tokens": script.OUTPUT_TOKENS,
            "total_tokens": script.INPUT_TOKENS + script.OUTPUT_TOKENS,
        }
        yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_calls=calls, usage_metadata=usage))


@tool
async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return script.weather(city)


@tool
async def book(city: str) -> str:
    """Book a trip to a city."""
    answer = interrupt(f"Book {city}?")
    return script.book(city) if answer == "yes" else f"did not book {city}"


tools = [weather, book, *([agent_as_tool(script.REMOTE, "desk")] if script.REMOTE else [])]
agent = wrap(create_react_agent(ScriptedModel(), tools), name="Travel", description="Books trips")
