"""What else pydantic-ai has: an answer that is data, a tool that others run, dependencies that depend on the caller."""

from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred, RunContext
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from dragoman import wrap


class Trip(BaseModel):
    city: str
    days: int


async def plans(messages, info):
    output = info.output_tools[0].name
    yield {0: DeltaToolCall(output, '{"city": "Rome", "days": 3}', tool_call_id="out")}


structured = wrap(Agent(FunctionModel(stream_function=plans), output_type=Trip), name="structured")


async def calls_tool(messages, info):
    answers = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if answers:
        yield f"it is {answers[0].content}"
    else:
        yield {0: DeltaToolCall("measure", '{"what": "the river"}', tool_call_id="m")}


measuring = Agent(FunctionModel(stream_function=calls_tool))


@measuring.tool_plain
def measure(what: str) -> str:
    """Have somebody measure something."""
    raise CallDeferred({"question": f"How long is {what}?"})


external = wrap(measuring, name="external")


async def greets(messages, info):
    yield info.instructions


dependent = Agent(FunctionModel(stream_function=greets), deps_type=str)


@dependent.instructions
def who(ctx: RunContext[str]) -> str:
    return f"task of {ctx.deps}"


deps = wrap(dependent, name="deps", run=lambda turn: {"deps": turn.metadata.get("team", "nobody")})
