"""A file in, a file and data out: counts the words of a text file.

dragoman send http://127.0.0.1:8000 "count, please" -f notes.txt
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dragoman import Agent, Part, Turn
from dragoman.errors import ContentTypeNotSupported

agent = Agent("Files", description="Counts the words of a text file")


@dataclass
class Summary:
    name: str
    lines: int
    words: int
    most_common: dict[str, int]


@agent.skill(
    input_modes=["text/*", "application/octet-stream"], output_modes=["text/csv", "application/json"]
)
async def count(file: Part, turn: Turn) -> None:
    """Counts the words of a text file: the table as CSV, the totals as data."""
    if file.raw is None:
        raise ContentTypeNotSupported("send the file itself, not a link to it")
    try:
        text = file.raw.decode()
    except UnicodeDecodeError:
        raise ContentTypeNotSupported("that is not a text file") from None
    await turn.status(f"Reading {file.filename or 'the file'}")
    words = Counter(word.strip(".,;:!?\"'()").lower() for word in text.split())
    words.pop("", None)
    table = "word,count\n" + "".join(f"{word},{n}\n" for word, n in words.most_common())
    await turn.file(table.encode(), name="words.csv", media_type="text/csv")
    await turn.data(
        Summary(
            name=file.filename,
            lines=len(text.splitlines()),
            words=words.total(),
            most_common=dict(words.most_common(3)),
        ),
        name="summary",
    )


if __name__ == "__main__":
    agent.run()
