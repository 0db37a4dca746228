"""The agent of `script.py` in the OpenAI Agents SDK. A tool needs approval."""

import json

from agents import Agent, Model, function_tool, set_tracing_disabled
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)

from dragoman import wrap
from dragoman.adapters.openai_agents import agent_as_tool

from . import script

set_tracing_disabled(True)


class ScriptedModel(Model):
    async def get_response(self, *args, **more):
        raise NotImplementedError

    async def stream_response(self, system_instructions, input, *args, **more):
        said, results = [], []
        for item in [{"role": "user", "content": input}] if isinstance(input, str) else input:
            if item.get("role") == "user":
                said.append(item["content"])
                results = []
            elif item.get("type") == "function_call_output":
                results.append(item["output"])
        answer, id = script.respond(said, results), f"message-{len(input)}"
        async for piece in script.pieces(answer):
            yield ResponseTextDeltaEvent(
                content_index=0,
                delta=piece,
                item_id=id,
                logprobs=[],
                output_index=0,
                sequence_number=0,
                type="response.output_text.delta",
            )
        output = []
        if answer.text:
            text = ResponseOutputText(annotations=[], text=answer.text, type="output_text")
            output.append(
                ResponseOutputMessage(
                    id=id, content=[text], role="assistant", status="completed", type="message"
                )
            )
        for n, call in enumerate(answer.calls):
            output.append(
                ResponseFunctionToolCall(
                    call_id=f"call-{len(said)}-{n}",
                    name=call.name,
                    arguments=json.dumps(call.arguments),
                    type="function_call",
                )
            )
        used = ResponseUsage.model_validate(
            {
                "input_tokens": script.INPUT_TOKENS,
                "output_tokens": script.OUTPUT_TOKENS,
                "total_tokens": script.INPUT_TOKENS + script.OUTPUT_TOKENS,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            }
        )
        response = Response(
            id=f"response-{len(input)}",
            created_at=0,
            model="scripted",
            object="response",
            output=output,
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
            usage=used,
        )
        yield ResponseCompletedEvent(response=response, sequence_number=1, type="response.completed")


@function_tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return script.weather(city)


@function_tool(needs_approval=True)
def book(city: str) -> str:
    """Book a trip to a city."""
    return script.book(city)


tools = [weather, book, *([agent_as_tool(script.REMOTE, "desk")] if script.REMOTE else [])]
agent = wrap(Agent(name="Travel", model=ScriptedModel(), tools=tools))
