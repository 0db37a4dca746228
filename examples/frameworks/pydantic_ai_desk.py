"""An agent of pydantic-ai: one tool needs approval, another is an agent elsewhere.

    pip install 'dragoman[pydantic-ai]' 'pydantic-ai-slim[openai]'
    OPENAI_API_KEY=... dragoman serve examples/frameworks/pydantic_ai_desk.py     # or a local model: see example_model.py
    dragoman chat http://127.0.0.1:8000

With CURRENCY=http://127.0.0.1:8001 it asks the agent there (`dragoman serve examples/currency.py --port 8001`). If that
agent asks something, the question passes up to you.
"""

from __future__ import annotations

import os

from example_model import endpoint
from pydantic_ai import Agent, Tool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from dragoman import wrap
from dragoman.adapters.pydantic_ai import agent_as_tool


def refund(order: str, euros: float) -> str:
    """Pay money back to a customer."""
    return f"{euros} EUR paid back for order {order}"


tools = [Tool(refund, requires_approval=True)]
if os.environ.get("CURRENCY"):
    tools.append(agent_as_tool(os.environ["CURRENCY"], "currency", "Converts amounts between currencies"))
url, key, name = endpoint()
desk = Agent(
    OpenAIChatModel(name, provider=OpenAIProvider(base_url=url, api_key=key)),
    name="desk",
    instructions="You are the help desk of a shop. Be short.",
    tools=tools,
)
agent = wrap(desk, name="Desk", description="Helps customers and pays money back")

if __name__ == "__main__":
    agent.run()
