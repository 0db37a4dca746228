"""An agent in a process of its own that says, wherever it can say something, what could run in a browser."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from msgspec import Meta

from dragoman import Agent, Part, Turn
from dragoman.model.card import Provider
from tests.browser.payloads import ALL, PAYLOADS, RUN

TEXTS = [text.encode("utf-8", "replace").decode() for text in PAYLOADS]
"""A server writes UTF-8, so half a character stays here."""
ALL_TEXTS = ALL.encode("utf-8", "replace").decode()
SVG = f"<svg xmlns='http://www.w3.org/2000/svg' onload='{RUN}'/>".encode()

agent = Agent(
    f"<img src=x onerror={RUN}>",
    description=ALL_TEXTS[:4000],
    id="evil",
    version=f"<b onclick={RUN}>1</b>",
    provider=Provider(organization=f"<script>{RUN}</script>", url="https://evil.example/\"onclick='x'"),
    documentation_url=f"https://evil.example/?{RUN}",
    icon_url="https://evil.example/icon.svg",
)


@dataclass
class Form:
    name: Annotated[str, Meta(title=f"<img src=x onerror={RUN}>", description=ALL_TEXTS[:1000])] = (
        f"'\"><script>{RUN}</script>"
    )
    size: int = 1


class Choice(Enum):
    SCRIPT = TEXTS[0]
    IMAGE = TEXTS[1]
    SVG = TEXTS[2]
    FRAME = TEXTS[5]
    LINK = TEXTS[13]
    QUOTE = TEXTS[23]


@agent.skill(name=TEXTS[0], description=ALL_TEXTS[:2000], tags=TEXTS[:20], examples=TEXTS[:20], default=True)
async def say(turn: Turn) -> str:
    """Says every text as progress, as text, as data and as a file."""
    for text in TEXTS:
        await turn.status(text)
        await turn.artifact(text, id=f"id {text[:100]}", description=text).write(
            Part(text=text, metadata={text: text}), last=True
        )
        await turn.data({text: [text, {text: text}]}, name=f"data {text}")
        for media_type in ("text/html", "image/png", text[:100]):
            await turn.file(text.encode(), name=text, media_type=media_type)
        await turn.note(text[:100], {text: text})
        await turn.step(text, str, text)
    await turn.file(SVG, name="x.svg", media_type="image/svg+xml")
    return ALL_TEXTS


@agent.skill
async def ask(turn: Turn) -> str:
    """Asks with hostile words, schemas and choices."""
    await turn.ask(ALL_TEXTS, Form)
    await turn.ask(ALL_TEXTS, Choice)
    await turn.approve(ALL_TEXTS, details={text: text for text in TEXTS})
    return "asked"


@agent.skill
async def fail(turn: Turn) -> str:
    """Fails with a hostile reason."""
    turn.reject(ALL_TEXTS)
