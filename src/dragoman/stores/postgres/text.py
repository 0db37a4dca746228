"""Text that PostgreSQL stores: all of Unicode but NUL and halves of surrogate pairs. Text in an index must be short."""

from __future__ import annotations

from hashlib import blake2b

MAX_INDEXED_BYTES = 2500
"""Bytes in an entry of an index. PostgreSQL takes a third of a page, with its own data in it."""
_KEPT_CHARACTERS = 200
"""Characters of a text that `shorten_for_index` keeps."""


def is_storable(*texts: str) -> bool:
    return not any("\0" in text or not (text.isascii() or _is_encodable(text)) for text in texts)


def replace_unstorable(text: str) -> str:
    """The text with a mark for each character that cannot be stored."""
    return text if is_storable(text) else text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def is_indexable(*texts: str) -> bool:
    """True if these texts can be stored in one entry of an index."""
    return is_storable(*texts) and sum(len(text.encode()) for text in texts) <= MAX_INDEXED_BYTES


def shorten_for_index(text: str) -> str:
    """The text as an index can hold it: of a long one, its beginning and a hash."""
    text = replace_unstorable(text)
    if is_indexable(text):
        return text
    return f"{text[:_KEPT_CHARACTERS]}#{blake2b(text.encode(), digest_size=16).hexdigest()}"


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
