"""Patterns with `*` and `?`, for names that tenants and operators choose."""

from __future__ import annotations


def matches_glob(text: str, pattern: str) -> bool:
    """`*` is any text, `?` any character, `[a-z]` one of these, `[!a-z]` none of them. Upper and lower case differ.

    Follows all matches at once: bit n of `state` is set if the first n characters of the pattern, without stars, match the
    text so far. The cost is linear in the text for every pattern.
    """
    fits, otherwise, stars, end = _automaton(pattern)
    state = 1
    for character in text:
        state = (state & fits.get(character, otherwise)) << 1 | (state & stars)
        if not state:
            return False
    return bool(state & end)


def _automaton(pattern: str) -> tuple[dict[str, int], int, int, int]:
    """Bit masks of a pattern: positions by character, for other characters, with a star, and the end."""
    fits: dict[str, int] = {}
    anything = stars = place = at = 0
    refused: list[tuple[int, set[str]]] = []
    while at < len(pattern):
        character, bit = pattern[at], 1 << place
        close = pattern.find("]", at + 2 + (pattern[at + 1 : at + 2] == "!")) if character == "[" else -1
        at += 1
        if character == "*":
            stars |= bit
            continue
        if character == "?":
            anything |= bit
        elif close > 0:
            inside = pattern[at:close]
            at = close + 1
            if inside.startswith("!"):
                anything |= bit
                refused.append((bit, _members(inside[1:])))
            else:
                for each in _members(inside):
                    fits[each] = fits.get(each, 0) | bit
        else:
            fits[character] = fits.get(character, 0) | bit
        place += 1
    for each in {each for _, members in refused for each in members}:
        fits.setdefault(each, 0)
    fits = {each: mask | anything for each, mask in fits.items()}
    for bit, members in refused:
        for each in members:
            fits[each] &= ~bit
    return fits, anything, stars, 1 << place


def _members(inside: str) -> set[str]:
    """The characters of a class; at most 512 of a range."""
    out: set[str] = set()
    at = 0
    while at < len(inside):
        if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside):
            low, high = ord(inside[at]), ord(inside[at + 2])
            out.update(chr(code) for code in range(low, min(high + 1, low + 512)))
            at += 3
        else:
            out.add(inside[at])
            at += 1
    return out
