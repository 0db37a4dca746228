"""A LangGraph graph as an agent: a model that plans a trip, and a person who says yes.

    pip install 'dragoman[langgraph]' langchain-openai
    OPENAI_API_KEY=... dragoman serve examples/frameworks/langgraph_trip.py     # or a local model: see example_model.py
    dragoman chat http://127.0.0.1:8000

Ask it to book a trip. It asks before it books. Kill the server while it waits, start it again, and answer.
"""

from __future__ import annotations

from example_model import endpoint
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from langgraph.types import interrupt
from pydantic import SecretStr

from dragoman import wrap


@tool
def book(city: str, day: str) -> str:
    """Book a trip to a city."""
    answer = interrupt(f"Book a trip to {city} on {day}?")
    return f"booked {city} for {day}" if answer.strip().lower() in ("yes", "y", "ok") else "not booked"


url, key, name = endpoint()
model = ChatOpenAI(model=name, base_url=url, api_key=SecretStr(key), stream_usage=True)
graph = create_react_agent(
    model, [book], prompt="You book trips. Ask for the city and the day if you need to."
)
agent = wrap(graph, name="Trips", description="Plans and books trips")

if __name__ == "__main__":
    agent.run()
