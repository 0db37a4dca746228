"""What PostgreSQL takes for text: all of Unicode but NUL, and no halves of characters. What it indexes has to be short."""

from __future__ import annotations

from hashlib import blake2b

MAX_INDEXED_BYTES = 2500
"""Bytes in an entry of an index: a third of a page, and something is in there, too."""


def fits(*words: str) -> bool:
    """Whether all of these can be kept."""
    return not any("\0" in word or not (word.isascii() or _whole(word)) for word in words)


def clean(word: str) -> str:
    """What can be kept of a word; a mark where something cannot."""
    return word if fits(word) else word.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def indexed(*words: str) -> bool:
    """Whether these can be kept, and be found together."""
    return fits(*words) and sum(len(word.encode()) for word in words) <= MAX_INDEXED_BYTES


def brief(word: str) -> str:
    """What can be kept of a word that is to be found by it: of a long one, its beginning and what tells it from others."""
    word = clean(word)
    if indexed(word):
        return word
    return f"{word[:200]}#{blake2b(word.encode(), digest_size=16).hexdigest()}"


def _whole(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
