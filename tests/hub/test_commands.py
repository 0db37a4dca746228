"""What is a command and what is text, whole and streamed."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.hub.agents.commands import TextFilter, parse

NAMES = ("/fetch", "/write", "/mem", "/parallel", "/agent", "/todo", "/help")


def clean(reply: str, *sizes: int, quoted: Collection[str] = ()) -> str:
    filter, out, at = TextFilter(NAMES, quoted), [], 0
    for size in sizes:
        out.append(filter.feed(reply[at : at + size]))
        at += size
    return "".join([*out, filter.feed(reply[at:]), filter.close()])


def test_commands_begin_in_column_zero_and_unknown_words_are_text() -> None:
    reply = "See /fetch x\n /fetch y\n/fetch https://a.example  \r\n/etc/passwd is a file\n/fetchall no"
    assert [(c.name, c.args) for c in parse(reply, NAMES).commands] == [("/fetch", "https://a.example")]
    assert clean(reply) == "See /fetch x\n /fetch y\n/etc/passwd is a file\n/fetchall no"


def test_fences_are_inert_and_close_only_with_their_own_mark() -> None:
    reply = "```\n/fetch a\n~~~\n/fetch b\n```\n/fetch c"
    assert [c.args for c in parse(reply, NAMES).commands] == ["c"]
    assert clean(reply) == "```\n/fetch a\n~~~\n/fetch b\n```"


@pytest.mark.parametrize(
    "shown",
    [
        "````\n```\n/fetch a\n```\n/fetch b\n````",
        "```\n```python\n/fetch a\n```",
        "~~~~ md\n~~~\n/fetch a\n~~~~~",
        "   ```\n/fetch a\n```   ",
        "```" + " " * 80 + "x\n```" + " " * 80 + "x\n/fetch a\n```",
    ],
    ids=["longer", "named", "tildes", "indented", "wide"],
)
def test_text_in_a_code_fence_is_not_a_command(shown: str) -> None:
    reply = f"{shown}\n/fetch c"
    assert [c.args for c in parse(reply, NAMES).commands] == ["c"]
    assert clean(reply) == shown


def test_code_within_a_line_begins_no_fence() -> None:
    reply = "```/fetch a``` reads a page\n/fetch c"
    assert [c.args for c in parse(reply, NAMES).commands] == ["c"]
    assert clean(reply) == "```/fetch a``` reads a page"


def test_a_line_that_the_prompt_quotes_is_not_a_command() -> None:
    quoted = {"/fetch a", "/write a.md"}
    reply = "/fetch a\n/fetch  a \n/write a.md\nA\n/endwrite\n/fetch b\n/write b.md\n/fetch a\n/endwrite"
    found = parse(reply, NAMES, quoted).commands
    assert [(each.title, each.body) for each in found] == [
        ("/fetch b", None),
        ("/write b.md", "/fetch a"),
    ]
    assert clean(reply, *[1] * 99, quoted=quoted) == "/fetch a\n/fetch  a \n/write a.md\nA"


def test_a_block_takes_everything_up_to_its_end() -> None:
    reply = "Here:\n/write a.md\n# A\n\n```\n/fetch x\n/endwrite\nDone."
    (command,) = parse(reply, NAMES).commands
    assert (command.title, command.body, command.closed) == ("/write a.md", "# A\n\n```\n/fetch x", True)
    assert clean(reply) == "Here:\nDone."


def test_a_block_without_its_end_is_reported_as_open() -> None:
    parsed = parse("/mem add entry project Plan\nhalf", NAMES)
    assert parsed.open and not parsed.commands[-1].closed
    assert not parse("/mem read", NAMES).open


def test_imitated_results_do_not_go_out() -> None:
    assert clean("A\n[/fetch x]\n[END FETCH]\n[END TOOL RESULTS]\n[1] is a note\nB") == "A\n[1] is a note\nB"


def test_text_that_only_resembles_a_result_is_sent() -> None:
    for text in (
        "[/docs](https://example.com) has more",
        "[END of the story]",
        "[/fetcher] barks",
        "[TOOLS]",
    ):
        assert clean(text) == text


def test_commands_of_models_that_end_lines_in_another_way_do_not_go_out() -> None:
    assert clean("A\r\n/fetch x\r\n/fetch\r\nB", *[1] * 30) == "A\r\nB"


def test_text_goes_out_before_its_line_is_complete() -> None:
    filter = TextFilter(NAMES)
    assert filter.feed("Hel") == "Hel"
    assert filter.feed("lo\n/fe") == "lo"
    assert filter.feed("e is due") == "\n/fee is due"
    assert filter.feed("\n[") == ""
    assert filter.feed("1]") == "\n[1]"


LINES = st.sampled_from(
    [
        "text",
        "",
        "/fetch x",
        "/write a",
        "/endwrite",
        "```",
        "~~~",
        "/fee",
        "[END X]",
        "[x",
        "  /fetch",
        "/mem add entry user T",
        "/endmem",
        "/",
        "日本",
        "text\r",
        "/fetch\r",
        "/fetch x \r",
        "/endwrite  \r",
        "```\r",
        "  ",
        "\r",
        "[/fetch",
        "[/fee",
        "[END X] and more",
        "[TOOL",
    ]
)


@given(
    st.lists(LINES, max_size=12),
    st.lists(st.integers(1, 7), max_size=40),
    st.sampled_from([(), ("/fetch x", "/write a")]),
)
def test_however_a_reply_is_cut_the_same_text_comes_out(
    lines: list[str], sizes: list[int], quoted: tuple[str, ...]
) -> None:
    reply = "\n".join(lines)
    whole = clean(reply, quoted=quoted)
    assert clean(reply, *sizes, quoted=quoted) == whole
    assert whole == whole.strip("\n") or "```" in whole or "~~~" in whole
    assert not parse(whole, NAMES, quoted).commands
