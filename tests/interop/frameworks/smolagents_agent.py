"""The agent of `script.py` in smolagents. A tool asks a person with `ask`."""

import ast
import json

from smolagents import ToolCallingAgent, tool
from smolagents.models import (
    ChatMessageStreamDelta,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
    Model,
)
from smolagents.monitoring import TokenUsage

from dragoman import wrap
from dragoman.adapters.smolagents import ask

from . import script


class ScriptedModel(Model):
    def __init__(self):
        super().__init__(model_id="scripted")

    def generate_stream(self, messages, **more):
        said, results, calls = [], [], 0
        for message in messages:
            text = "".join(block["text"] for block in message.content if block["type"] == "text")
            if message.role == "user":
                said.append(text.removeprefix("New task:\n"))
                results = []
            elif message.role == "tool-call":
                calls = len(ast.literal_eval(text.removeprefix("Calling tools:\n")))
            elif message.role == "tool-response":
                results = text.removeprefix("Observation:\n").splitlines()
                assert len(results) == calls
        answer = script.respond(said, results)
        if answer.calls:
            for piece in answer.pieces:
                yield ChatMessageStreamDelta(content=piece)
            for n, call in enumerate(answer.calls):
                yield self._call(n, f"call-{len(said)}-{n}", call.name, json.dumps(call.arguments))
        else:
            yield self._call(0, f"final-{len(messages)}", "final_answer", '{"answer": "')
            for piece in script.pieces_in_thread(answer):
                yield self._call(0, None, None, json.dumps(piece)[1:-1])
            yield self._call(0, None, None, '"}')
        yield ChatMessageStreamDelta(token_usage=TokenUsage(script.INPUT_TOKENS, script.OUTPUT_TOKENS))

    def _call(self, index, id, name, arguments):
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        call = ChatMessageToolCallStreamDelta(
            index=index, id=id, type="function" if id else None, function=function
        )
        return ChatMessageStreamDelta(tool_calls=[call])


@tool
def weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: its name
    """
    return script.weather(city)


@tool
def book(city: str) -> str:
    """Book a trip to a city.

    Args:
        city: its name
    """
    return script.book(city) if ask(f"Book {city}?") == "yes" else f"did not book {city}"


agent = wrap(lambda: ToolCallingAgent(tools=[weather, book], model=ScriptedModel()), name="Travel")
