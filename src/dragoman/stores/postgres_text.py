"""What PostgreSQL takes for text: all of Unicode but NUL, and no halves of characters."""

from __future__ import annotations


def fits(*words: str) -> bool:
    """Whether all of these can be kept."""
    return not any("\0" in word or not (word.isascii() or _whole(word)) for word in words)


def clean(word: str) -> str:
    """What can be kept of a word; a mark where something cannot."""
    return word if fits(word) else word.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _whole(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
