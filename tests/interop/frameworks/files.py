"""Prints a message with files as a framework gets it: `python files.py MODULE FUNCTION`."""

import base64
import sys
from importlib import import_module

from dragoman import Message, Part

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
message = Message(
    parts=(
        Part(text="look"),
        Part(raw=base64.b64decode(PIXEL), media_type="image/png", filename="a.png"),
        Part(url="https://files.example.com/a.pdf", media_type="application/pdf"),
        Part(data={"a": 1}),
    )
)
convert = getattr(import_module(f"dragoman.adapters.{sys.argv[1]}"), sys.argv[2])
made = convert(message)
print(made.to_dict() if hasattr(made, "to_dict") else made)
