"""The agent of `script.py` as a CrewAI flow. A method asks a person with `@human_feedback`."""

import json
import re
from contextlib import closing

from crewai import Agent, BaseLLM, Flow
from crewai.events.types.llm_events import LLMCallType
from crewai.flow import human_feedback, listen, router, start
from crewai.llms.base_llm import llm_call_context
from crewai.tools import tool
from pydantic import BaseModel

from dragoman import wrap

from . import script


class ScriptedLLM(BaseLLM):
    """Says what the script says to what the caller said: the lines of the prompt that begin with `>`."""

    def supports_function_calling(self):
        return True

    def call(self, messages, tools=None, callbacks=None, available_functions=None, from_task=None, **more):
        agent = more.get("from_agent")
        asked = [message["content"] for message in messages if message["role"] == "user"]
        said = re.findall("> (.*)", "\n".join(asked))
        results = [message["content"] for message in messages if message["role"] == "tool"]
        answer = script.respond(said, results)
        used = {"prompt_tokens": script.INPUT_TOKENS, "completion_tokens": script.OUTPUT_TOKENS}
        with llm_call_context():
            self._emit_call_started_event(messages, tools, from_task=from_task, from_agent=agent)
            with closing(script.pieces_in_thread(answer)) as pieces:
                for piece in pieces:
                    self._emit_stream_chunk_event(piece, from_task, agent)
            calls = [
                {
                    "id": f"call-{len(said)}-{n}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for n, call in enumerate(answer.calls)
            ]
            response = calls if tools and calls else answer.text
            self._emit_call_completed_event(response, LLMCallType.LLM_CALL, from_task, agent, messages, used)
            return response


class State(BaseModel):
    message: str = ""
    said: list[str] = []
    cities: list[str] = []
    results: list[str] = []


@tool("weather")
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return script.weather(city)


class Travel(Flow[State]):
    @start()
    def think(self):
        self.state.said.append(self.state.message)
        self.state.results = []
        prompt = "\n".join(f"> {each}" for each in self.state.said)
        llm = ScriptedLLM(model="scripted")
        plans = script.respond(self.state.said, []).calls
        if any(call.name == "book" for call in plans):  # a tool that asks is a method of the flow here
            llm.call([{"role": "user", "content": prompt}])
            self.state.cities = [call.arguments["city"] for call in plans]
            return
        agent = Agent(role="Guide", goal="Guide", backstory="A guide", llm=llm, tools=[weather])
        self.state.results = [agent.kickoff(prompt).raw]

    @router(think)
    def next_city(self):
        return "ask" if self.state.cities else "answered"

    @listen("ask")
    @human_feedback(message="Book it?")
    def propose(self):
        return self.state.cities[0]

    @router(propose)
    def book(self, feedback):
        city = self.state.cities.pop(0)
        yes = feedback.feedback == "yes"
        self.state.results.append(script.book(city) if yes else f"did not book {city}")
        return "ask" if self.state.cities else "answered"

    @listen("answered")
    def tell(self):
        return ", ".join(self.state.results)


agent = wrap(Travel(), name="Travel")
