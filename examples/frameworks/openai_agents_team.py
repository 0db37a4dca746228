"""A team of the OpenAI Agents SDK: one agent hands over to another, which needs approval before it sends.

pip install 'dragoman[openai-agents]'
OPENAI_API_KEY=... dragoman serve examples/frameworks/openai_agents_team.py     # or a local model: see example_model.py
dragoman chat http://127.0.0.1:8000
"""

from __future__ import annotations

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, function_tool, set_tracing_disabled
from example_model import endpoint
from openai import AsyncOpenAI

from dragoman import wrap

url, key, name = endpoint()
MODEL = OpenAIChatCompletionsModel(name, AsyncOpenAI(base_url=url, api_key=key))
SETTINGS = ModelSettings(include_usage=True)
set_tracing_disabled(url is not None)  # traces go to OpenAI


@function_tool(needs_approval=True)
def send_letter(to: str, text: str) -> str:
    """Send a letter."""
    return f"sent to {to}: {text}"


writer = Agent(
    name="Writer",
    handoff_description="Writes and sends letters",
    instructions="Write short, friendly letters, and send them.",
    tools=[send_letter],
    model=MODEL,
    model_settings=SETTINGS,
)
team = Agent(
    name="Reception",
    instructions="Answer questions. Hand over to the writer if a letter is wanted.",
    handoffs=[writer],
    model=MODEL,
    model_settings=SETTINGS,
)
agent = wrap(team, description="Answers questions, and writes letters")

if __name__ == "__main__":
    agent.run()
