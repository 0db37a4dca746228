"""The words of texts and queries, for searches in the catalogue."""

from __future__ import annotations

import re
import unicodedata

from dragoman.engine.protocols import SearchText

MAX_SEARCH_WORDS = 12
"""Words of a query that are searched."""
_MAX_QUERY_CHARACTERS, _MAX_WORD_CHARACTERS = 1000, 40
_PREFIX_CHARACTERS = 3
"""A word of a query with fewer characters does not find longer words."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]|[^\W_\u2e80-\u9fff\uac00-\ud7af]+")
"""A run of letters and digits; in scripts without spaces, one character."""
_STOP_WORDS = """
a about all am an and any are as at be because been before being between both but by can did do does doing
down during each few for from further had has have having he her here hers him his how i if in into is it
its just me more most my no nor not now of off on once only or other our out over own same she should so
some such than that the their theirs them then there these they this those through to too under until up
very was we were what when where which while who whom why will with you your yours
"""
_IGNORED = frozenset(_STOP_WORDS.split())


def split_text(text: str) -> list[str]:
    """The words of a text in lower case, without accents. `refundOrder` and `refund_order` have two words each."""
    letters = _CAMEL.sub(" ", text)
    if not letters.isascii():
        decomposed = unicodedata.normalize("NFKD", letters)
        letters = "".join(each for each in decomposed if not unicodedata.combining(each))
    return [word[:_MAX_WORD_CHARACTERS] for word in _WORD.findall(letters.lower())]


def split_members(text: SearchText) -> list[str]:
    """The words of each member of `text`, with blanks between them."""
    return [" ".join(split_text(member)) for member in (text.name, text.tags, text.skills, text.about)]


def split_query(query: str) -> list[str]:
    """The words of a query that are searched: at most `MAX_SEARCH_WORDS`, without stop words."""
    words = dict.fromkeys(split_text(query[:_MAX_QUERY_CHARACTERS]))
    return [word for word in words if word not in _IGNORED][:MAX_SEARCH_WORDS]


def finds_longer_words(word: str) -> bool:
    """True if a word of a query also finds words that begin with it."""
    return len(word) >= _PREFIX_CHARACTERS
