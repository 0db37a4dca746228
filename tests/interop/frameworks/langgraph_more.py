"""What else LangGraph has: approval by LangChain's middleware, breakpoints, functions with `@entrypoint`, subgraphs, state of
one's own classes, custom progress."""

from dataclasses import dataclass
from typing import Annotated, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from dragoman import wrap

from . import script
from .langgraph_agent import ScriptedModel
from .langgraph_agent import weather as weather_tool


def book(city: str) -> str:
    """Book a trip to a city."""
    return script.book(city)


approves = wrap(
    create_agent(
        ScriptedModel(),
        [weather_tool, book],
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"book": True})],
    ),
    name="approves",
)


@dataclass
class Draft:
    text: str


class Letter(TypedDict):
    wish: str
    draft: Annotated[Draft, lambda old, new: new]
    sent: Annotated[str, lambda old, new: new]


def write(letter: Letter):
    get_stream_writer()("Writing a letter")
    get_stream_writer()({"pages": 1})
    return {"draft": Draft(f"Dear reader, {letter['wish']}")}


def send(letter: Letter):
    return {"sent": f"sent: {letter['draft'].text}"}


letters = StateGraph(Letter)
letters.add_node("write", write)
letters.add_node("send", send)
letters.add_edge(START, "write")
letters.add_edge("write", "send")
letters.add_edge("send", END)
breakpoints = wrap(
    letters.compile(interrupt_before=["send"]),
    name="breakpoints",
    input=lambda message: {"wish": message.text},
    output=lambda letter: letter["sent"],
)


@task
def look_up(city: str) -> str:
    return script.weather(city)


@entrypoint()
def function(city: str):
    found = look_up(city).result()
    script.book("looked")
    answer = interrupt(f"{found}. Go?")
    return {"weather": found, "go": answer}


functional = wrap(function, name="functional")


def inner(state: MessagesState):
    answer = interrupt("From inside?")
    return {"messages": [AIMessage(f"inside said {answer}")]}


nested_graph = StateGraph(MessagesState)
nested_graph.add_node("inner", inner)
nested_graph.add_edge(START, "inner")
outer = StateGraph(MessagesState)
outer.add_node("nested", nested_graph.compile())
outer.add_edge(START, "nested")
nested = wrap(outer, name="nested")
