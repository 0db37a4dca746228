"""An agent that calls two others: one converts money, one knows the weather.

    dragoman serve examples/currency.py examples/travel.py
    dragoman send http://127.0.0.1:8000/travel "3 days in Mumbai for 300 USD"

`turn.call` is a step. If you kill the server and start it again, the plan continues, and neither agent is called twice. If
you cancel the trip, its calls are canceled as well. Agents of one server call each other by id. Set `CURRENCY` or `WEATHER` to a
URL to call agents on other servers, of any version.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator

from dragoman import Agent, Task, TaskState, Turn

CURRENCY = os.environ.get("CURRENCY", "currency")
WEATHER = os.environ.get("WEATHER", "weather")

CITIES = {"mumbai": "INR", "london": "GBP", "paris": "EUR", "tokyo": "JPY", "zurich": "CHF"}
SEASONS = {"mumbai": "hot and humid", "london": "rain, then rain", "tokyo": "clear and cold"}

weather = Agent("Weather", description="Knows what the sky does")
agent = Agent("Travel", description="Plans a trip with the help of other agents")


@weather.skill
async def forecast(city: str) -> str:
    """Says what the weather will be like in a city."""
    return SEASONS.get(city.lower(), "mild")


@agent.skill(examples=["3 days in Mumbai for 300 USD"])
async def plan(turn: Turn) -> AsyncIterator[str]:
    """Plans a trip: says what the money is worth there, and what to pack for."""
    city = next((word for word in re.findall(r"[a-z]+", turn.text.lower()) if word in CITIES), "")
    while city not in CITIES:
        city = (await turn.ask(f"Where to? I know {', '.join(CITIES)}.")).strip().lower()
    money = re.search(r"(\d+(?:\.\d+)?)\s*([A-Z]{3})\b", turn.text.upper())
    yield f"# A trip to {city.title()}\n\n"

    await turn.status("Asking about the weather")
    sky = await turn.call(WEATHER, city, key="weather")
    yield f"Expect it to be {sky.text}.\n"

    if money:
        await turn.status("Asking about the money")
        question = f"how much is {money[1]} {money[2]} in {CITIES[city]}?"
        worth = await turn.call(CURRENCY, question, key="currency")
        known = isinstance(worth, Task) and worth.state is TaskState.COMPLETED
        yield f"Your budget: {worth.text if known else 'ask a bank'}.\n"
