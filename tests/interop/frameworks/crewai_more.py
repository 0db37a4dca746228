"""What else CrewAI has: a crew, a flow that asks with `ask`, and one whose methods listen to the outcome of feedback."""

from crewai import Agent, Crew, Flow, Task
from crewai.flow import human_feedback, listen, start
from pydantic import BaseModel

from dragoman import wrap

from . import script
from .crewai_agent import ScriptedLLM, weather


class Lines(ScriptedLLM):
    """Reads the conversation of the prompt, too."""

    def call(self, messages, *args, **more):
        said = [
            {**message, "content": (message["content"] or "").replace("User: ", "> ")} for message in messages
        ]
        return super().call(said, *args, **more)


guide = Agent(role="Guide", goal="Guide", backstory="A guide", llm=Lines(model="scripted"), tools=[weather])
answer = Task(description="{conversation}\n> {message}", expected_output="an answer", agent=guide)
crew = wrap(Crew(agents=[guide], tasks=[answer]), name="crew")


class Trip(BaseModel):
    city: str = ""
    days: int = 0


class Planner(Flow[Trip]):
    @start()
    def ask_days(self):
        script.weather(self.state.city)
        days = self.ask("How many days?")
        return f"{days} days in {self.state.city}, {self.ask('Which hotel?')}"


planner = wrap(Planner(), name="planner")


class Outcome(ScriptedLLM):
    """Reads feedback: what is not "fine" is rejected."""

    def supports_function_calling(self):
        return False

    def call(self, messages, *args, **more):
        text = str(messages)
        return "approved" if "fine" in text else "rejected"


class Letters(Flow):
    @start()
    @human_feedback(message="Send it?", emit=["approved", "rejected"], llm=Outcome(model="scripted"))
    def write(self):
        return f"Dear reader, {self.state['message']}"

    @listen("approved")
    def send(self, feedback):
        return {"sent": feedback.output}

    @listen("rejected")
    def drop(self, feedback):
        return f"not sent: {feedback.feedback}"


letters = wrap(lambda: Letters(), name="letters")
