"""What else LangGraph has: approval by LangChain's middleware, breakpoints, functions with `@entrypoint`, subgraphs, state of
one's own classes, custom progress."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
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


class Slow(ScriptedModel):
    """Says its pieces one by one, and lets others speak in between."""

    words: list

    async def _astream(self, messages, stop=None, run_manager=None, **more):
        for word in self.words:
            await asyncio.sleep(0.01)
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))


def speaker(*words):
    async def speak(state: MessagesState):
        return {"messages": [await Slow(words=list(words)).ainvoke(state["messages"])]}

    return speak


talk = StateGraph(MessagesState)
talk.add_node("a", speaker("a1", "a2", "a3"))
talk.add_node("b", speaker("b1", "b2", "b3", "b4"))
talk.add_edge(START, "a")
talk.add_edge(START, "b")
side_by_side = wrap(talk, name="side-by-side")
