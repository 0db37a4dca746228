"""Options that are passed as keywords (`**options: Unpack[SomeOptions]`): a wrong name is refused with a suggestion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any


def check_options(given: Mapping[str, Any], options: type[Any], of: str, also: Iterable[str] = ()) -> None:
    """Raise `TypeError` for a name in `given` that is not a key of `options`, a `TypedDict`, nor one of `also`."""
    if not given:
        return
    known = {*options.__required_keys__, *options.__optional_keys__} | set(also)
    for name in given.keys() - known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"options are {', '.join(sorted(known))}"
        raise TypeError(f"{of}: there is no option {name!r}; {hint}")
