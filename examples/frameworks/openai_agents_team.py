"""A team of the OpenAI Agents SDK: one agent hands over to another, which needs approval before it sends.

pip install 'dragoman[openai-agents]'
OPENAI_API_KEY=... dragoman serve examples/frameworks/openai_agents_team.py
dragoman chat http://127.0.0.1:8000
"""

from __future__ import annotations

import os

from agents import Agent, function_tool

from dragoman import wrap

MODEL = os.environ.get("MODEL", "gpt-4o-mini")


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
)
team = Agent(
    name="Reception",
    instructions="Answer questions. Hand over to the writer if a letter is wanted.",
    handoffs=[writer],
    model=MODEL,
)
agent = wrap(team, description="Answers questions, and writes letters")

if __name__ == "__main__":
    agent.run()
