"""What people write when they are asked: yes and no in several languages, and one sentence about what is wanted instead."""

from __future__ import annotations

import re
import unicodedata
from datetime import date, datetime, time
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import inspect as types

from dragoman.model.content import Part

_YES = """
    y yes yeah yep yup sure ok okay true on 1 correct agreed confirm confirmed approve approved accept
    of_course go_ahead do_it sounds_good please_do
    ja jawohl jo klar gerne einverstanden natürlich oui ouais d'accord sí si claro vale certo sim da да давай ага хорошо
    так tak dobrze oczywiście ano dobře áno jasne igen evet tamam ναι kyllä joo taip 是 是的 好 好的 可以 对 對
    行 はい うん ええ 네 예 응 그래 نعم أجل بلی بله כן हाँ हां जी हाँ_जी হ্যাঁ có vâng dạ ya iya ใช่ ndiyo 👍 ✅ ✔ 👌
"""
_NO = """
    n no nope nah false off 0 not_now do_not dont don't
    nein nö nee nej nei non não nao nie nem ne нет неа не ні hayır hayir yok όχι ei 不 不是 不要 不行 否 没有 沒有
    いいえ いや だめ 아니요 아니오 아니 لا خیر نه לא नहीं না không tidak bukan ไม่ ไม่ใช่ hapana 👎 ❌ ✖ 🚫
"""
_POLITE = """
    please thanks thank_you thankyou sir madam bitte danke gern merci s'il_vous_plaît s'il_te_plaît por_favor gracias obrigado
    obrigada grazie per_favore prego пожалуйста спасибо proszę dziękuję alsjeblieft dank_je dank_u tak tack takk
    お願いします ありがとう 谢谢 請 请
"""


def _words(lines: str) -> frozenset[str]:
    return frozenset(filter(None, (_bare(word.replace("_", " ")) for word in lines.split())))


def _bare(text: str) -> str:
    """A text without what does not matter in an answer: case, punctuation, spaces around it, the tint of an emoji."""
    text = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    return " ".join(re.sub(r"[^\w'\U0001F300-\U0001FAFF\u2705\u2714\u274C\u2716\u0300-\u036F\u0900-\u0DFF\u0E00-\u0E7F]+|"
                           r"[\U0001F3FB-\U0001F3FF]", " ", text).split())  # fmt: skip


MAX_ANSWER_CHARACTERS = 40
"""Characters of an answer that is read as yes or no."""
MAX_CHOICE_CHARACTERS = 400
"""Characters of an answer that is read as one of several names."""
MAX_REASON_CHARACTERS = 300
"""Characters of what a validator says that are looked at: it may repeat what it was given."""
_yes, _no, _polite = _words(_YES), _words(_NO), _words(_POLITE)
_TURNS = re.compile(r"[?\u061F\u055E\u1367]|;\s*$|^\s*!|[-\u2212]\s*\d")
"""Marks that make something else of a word beside them: `yes?`, `ναι;` (a question in Greek), `!yes`, `-1`."""


def yes_or_no(text: str) -> bool | None:
    """What a short answer says; None if it is neither, or both, or a question."""
    if len(text) > MAX_ANSWER_CHARACTERS or _TURNS.search(unicodedata.normalize("NFKC", text)):
        return None
    text = _bare(text)
    meanings = {meaning for phrase in _readings(text) for meaning in _meanings(phrase)}
    return meanings.pop() if len(meanings) == 1 else None


def _meanings(phrase: str) -> set[bool]:
    return {meaning for meaning, known in ((True, _yes), (False, _no)) if phrase in known}


def _readings(text: str) -> list[str]:
    """The whole, or what is left of it without thanks, or each word of it: `yes, yes please`."""
    if text in _yes or text in _no:
        return [text]
    for polite in sorted(_polite, key=len, reverse=True):
        if text.endswith(" " + polite):
            return _readings(text.removesuffix(" " + polite))
    return list(dict.fromkeys(text.split())) if all(map(_meanings, text.split())) else []


def choice(text: str, kind: Any) -> Any:
    """The member of an enum or a `Literal` of texts that an answer names, whatever its case; None if it names none."""
    if len(text) > MAX_CHOICE_CHARACTERS:  # to put combining marks in order takes the square of their number
        return None
    choices = _choices(kind)
    if not choices or len(text) > 2 * max(len(name) for name, _ in choices) + MAX_ANSWER_CHARACTERS:
        return None
    bare = _bare(text)
    found = [value for name, value in choices if bare and _bare(name) == bare]
    return found[0] if len(found) == 1 else None


def hint(kind: Any, wrong: str = "") -> str:
    """One sentence about which answers fit, for people. `wrong` is what a validator says; they see which member it means."""
    kind = wanted(kind)
    if names := list(dict.fromkeys(name for name, _ in _choices(kind))):
        return f"Please answer with one of: {', '.join(names)}."
    if kind in _HINTS:
        return _HINTS[kind]
    try:
        form = types.type_info(kind)
    except (TypeError, NameError):
        return _OTHERWISE
    if isinstance(form, types.IntType | types.FloatType):
        return _number(form)
    if isinstance(form, types.CustomType):
        names = list(getattr(form.cls, "model_fields", ()))
    else:
        names = [field.encode_name for field in getattr(form, "fields", ())]
    if names:
        return f"Please send data with {', '.join(names)}{_member(wrong)}."
    if isinstance(form, types.ListType | types.VarTupleType | types.SetType | types.FrozenSetType):
        return "Please send a JSON array."
    return "Please send a JSON object." if isinstance(form, types.DictType) else _OTHERWISE


def _member(wrong: str) -> str:
    """Which member of the data does not fit, from the words of msgspec or of pydantic; the author's own words stay."""
    wrong = wrong[:MAX_REASON_CHARACTERS]
    if own := _OWN.search(wrong):
        return f": {(own[1] or own[2]).rstrip('.')}"
    if missing := _MISSING.search(wrong):
        return f": {missing[1] or missing[2]} is missing"
    place = _PLACE.search(wrong)
    return f": {place[1] or place[2]} does not fit" if place else ""


_OWN = re.compile(
    r"Value error, ([^;]+)|^(?!Expected |Object |Invalid |Missing |[\w.]+: )([^`;]+?)(?: - at `|$)"
)
"""What a validator of the author's raised: through pydantic, or from `__post_init__` through msgspec."""
_MISSING = re.compile(r"missing required field `([^`]+)`|(?:^|; )(\S+): Field required")
_PLACE = re.compile(r"at `\$\.([^`]+)`|^([\w.]+): ")
_OTHERWISE = "Please answer in another form."


_HINTS: dict[Any, str] = {
    Part: "Please send a file.",
    bool: "Please answer yes or no.",
    int: "Please answer with a whole number.",
    float: "Please answer with a number.",
    date: "Please answer with a date, such as 2026-12-24.",
    time: "Please answer with a time, such as 18:30:00.",
    datetime: "Please answer with a date and a time, such as 2026-12-24T18:30:00.",
    bytes: "Please send the file itself, not a link to it.",
}


def wanted(kind: Any) -> Any:
    """What a hint asks for: `bool | None` is a `bool`."""
    if get_origin(kind) in (Union, UnionType):
        rest = [each for each in get_args(kind) if each is not NoneType]
        return wanted(rest[0]) if len(rest) == 1 else kind
    if get_origin(kind) is Annotated and get_args(kind)[0] not in (int, float):
        return wanted(get_args(kind)[0])
    return kind


def _choices(kind: Any) -> list[tuple[str, Any]]:
    """What may be said for each member, and its value."""
    if get_origin(kind) is Literal:
        return [(str(value), value) for value in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        named = [(member.value, member.value) for member in kind if isinstance(member.value, str)]
        return named or [(member.name.lower(), member.value) for member in kind]
    return []


def _number(form: types.IntType | types.FloatType) -> str:
    what = "a whole number" if isinstance(form, types.IntType) else "a number"
    low, high = form.ge, form.le
    if isinstance(form, types.IntType):  # whole numbers have a next one
        low = form.gt + 1 if form.gt is not None else low
        high = form.lt - 1 if form.lt is not None else high
    if low is not None and high is not None:
        return f"Please answer with {what} from {low} to {high}."
    bounds = (("of at least", low), ("of at most", high), ("above", form.gt), ("below", form.lt))
    limit = [f"{word} {bound}" for word, bound in bounds if bound is not None][:1]
    return f"Please answer with {' '.join([what, *limit])}."
