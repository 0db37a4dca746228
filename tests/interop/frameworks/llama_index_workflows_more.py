"""What else LlamaIndex has: an agent (`FunctionAgent`), which is a workflow. A tool asks a person."""

import json

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from workflows import Context
from workflows.events import HumanResponseEvent, InputRequiredEvent

from dragoman import wrap

from . import script


class ScriptedLLM(FunctionCallingLLM):
    @property
    def metadata(self):
        return LLMMetadata(is_function_calling_model=True, model_name="scripted")

    def _prepare_chat_with_tools(self, tools, user_msg=None, chat_history=None, **more):
        return {"messages": chat_history or []}

    async def astream_chat(self, messages, **more):
        async def answer():
            said, results = [], []
            for message in messages:
                if message.role == "user":
                    said.append(message.content)
                    results = []
                elif message.role == "tool":
                    results.append(message.content)
            reply = script.respond(said, results)
            text = ""
            async for piece in script.pieces(reply):
                text += piece
                yield ChatResponse(message=ChatMessage(role="assistant", content=text), delta=piece)
            calls = [
                {"id": f"call-{len(said)}-{n}", "name": call.name, "arguments": call.arguments}
                for n, call in enumerate(reply.calls)
            ]
            used = {"prompt_tokens": script.INPUT_TOKENS, "completion_tokens": script.OUTPUT_TOKENS}
            yield ChatResponse(
                message=ChatMessage(
                    role="assistant", content=text, additional_kwargs={"calls": json.dumps(calls)}
                ),
                delta="",
                raw={"usage": used, "model": "scripted"},
            )

        return answer()

    def get_tool_calls_from_response(self, response, error_on_no_tool_call=True, **more):
        calls = json.loads(response.message.additional_kwargs.get("calls", "[]"))
        return [
            ToolSelection(tool_id=call["id"], tool_name=call["name"], tool_kwargs=call["arguments"])
            for call in calls
        ]

    def chat(self, *args, **more):
        raise NotImplementedError

    complete = stream_chat = stream_complete = achat = acomplete = astream_complete = chat


async def book(ctx: Context, city: str) -> str:
    """Book a trip to a city."""
    reply = await ctx.wait_for_event(
        HumanResponseEvent,
        waiter_id=city,
        waiter_event=InputRequiredEvent(prefix=f"Book {city}?", city=city),
        requirements={"city": city},
    )
    return script.book(city) if reply.response == "yes" else f"did not book {city}"


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return script.weather(city)


agent = wrap(
    FunctionAgent(name="Travel", tools=[weather, book], llm=ScriptedLLM(), timeout=None), name="Travel"
)
