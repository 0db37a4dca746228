"""Text that others wrote, on a terminal."""

from __future__ import annotations

import logging
import re
import unicodedata

import pytest

from dragoman.observe.logs import PlainLines
from dragoman.observe.terminal import UNSAFE, one_line, sanitize


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("a\x1b[2Jb", "ab"),
        ("a\x9b31mb", "ab"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]52;c;cGFzdGU=\x1b\\b", "ab"),
        ("a\x1b]8;;http://evil\x1b\\click", "aclick"),
        ("a\x1bPq#0\x1b\\b", "ab"),
        ("a\x1b_payload\x1b\\b", "ab"),
        ("a\x1b(0b", "ab"),
        ("a\x1bcb", "ab"),
        ("a\x1b\x1b[0m[2Jb", "a[2Jb"),
        ("unfinished\x1b[", "unfinished"),
        ("unfinished\x1b]0;t\nnext", "unfinished\nnext"),
        ("over\rwritten\b\b\x7f\x07", "overwritten"),
        ("pay \u202emoc.live\u202c", "pay moc.live"),
        ("if \u2066admin\u2069 \u202a\u202b\u202d", "if admin "),
        ("zero\u200bwidth\ufeff\u2060", "zerowidth"),
        ("tag\U000e0041\U000e007f", "tag"),
        ("one\u2028two\u2029three", "one\ntwo\nthree"),
        ("half \ud83d", "half \ufffd"),
    ],
)
def test_escape_sequences_are_removed(hostile: str, shown: str) -> None:
    assert sanitize(hostile) == shown


@pytest.mark.parametrize(
    "text",
    [
        "line\n\tindented\n",
        "שלום עולם \u200f(!)\u200e",
        "می\u200cخواهم",  # Persian needs the joiners
        "👩\u200d💻 ❤\ufe0f",
        "naïve café ﬁ",
        "\ue0b0",
    ],
)
def test_characters_that_languages_need_stay(text: str) -> None:
    assert sanitize(text) == text


def test_no_control_or_direction_character_is_left() -> None:
    everything = "".join(
        chr(code) for code in range(0x110000) if chr(code) not in "\x1b\x90\x98\x9b\x9d\x9e\x9f"
    )
    left = sanitize(everything)
    assert {each for each in left if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp")} == {"\n", "\t"}
    turns = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not {each for each in left if unicodedata.bidirectional(each) in turns}
    assert left.encode()
    taken = set(everything) - set(left)
    assert taken == set(re.findall(f"[{UNSAFE}]", everything)) - {"\n", "\t"}


def test_a_field_is_one_line() -> None:
    assert one_line("a\u2028b\n c\x1b[A") == "a b c"


@pytest.mark.parametrize("hostile", ["\u202e", "\u2066", "\u200b", "\x1b", "\ud800", "\U000e0041"])
def test_a_log_line_shows_control_characters_as_escapes(hostile: str) -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "%s", (f"a{hostile}b",), None)
    assert f"a{ascii(hostile)[1:-1]}b" in PlainLines().format(record)
