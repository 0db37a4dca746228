"""What else smolagents has: an agent that writes code, and a model that does not stream."""

from smolagents import CodeAgent, ToolCallingAgent
from smolagents.models import ChatMessage, Model, agglomerate_stream_deltas
from smolagents.monitoring import TokenUsage

from dragoman import wrap
from dragoman.adapters.smolagents import ask

from . import script
from .smolagents_agent import ScriptedModel, weather

STEPS = [
    "city = 'Rome'\nknown = ['x']",
    "seen = weather(city)\ndays = int(ask('How many days?'))\nfinal_answer({'city': city, 'days': days, 'weather': seen})",
]


class WritesCode(Model):
    def generate(self, messages, **more):
        done = sum(message.role == "tool-response" for message in messages)
        used = TokenUsage(script.INPUT_TOKENS, script.OUTPUT_TOKENS)
        return ChatMessage(
            role="assistant", content=f"Thought: next\n<code>\n{STEPS[done]}\n</code>", token_usage=used
        )


coder = wrap(CodeAgent(tools=[weather, ask], model=WritesCode()), name="coder")


class Whole(Model):
    def generate(self, messages, **more):
        return agglomerate_stream_deltas(list(ScriptedModel().generate_stream(messages)))


whole = wrap(ToolCallingAgent(tools=[weather], model=Whole()), name="whole")
