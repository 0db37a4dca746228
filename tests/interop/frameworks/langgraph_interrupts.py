"""A graph with two nodes that ask at the same time, and one that asks twice."""

import operator
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from dragoman import wrap


class Trip(TypedDict):
    wish: str
    known: Annotated[list, operator.add]


def city(trip: Trip):
    return {"known": [f"city={interrupt('Which city?')}"]}


def days(trip: Trip):
    first = interrupt("First day?")
    last = interrupt(f"{first}, and last day?")
    return {"known": [f"from {first} to {last}"]}


builder = StateGraph(Trip)
builder.add_node("city", city)
builder.add_node("days", days)
builder.add_edge(START, "city")
builder.add_edge(START, "days")
builder.add_edge("city", END)
builder.add_edge("days", END)
agent = wrap(builder, name="Trip", output=lambda trip: "; ".join(sorted(trip["known"])))
