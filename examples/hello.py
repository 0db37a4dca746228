"""The seven-line agent. `python examples/hello.py`, then `dragoman send http://127.0.0.1:8000 world`."""

from dragoman import Agent

agent = Agent("Hello", description="Says hello")


@agent.skill
async def hello(name: str) -> str:
    """Greets someone by name."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    agent.run()
