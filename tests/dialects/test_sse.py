"""Server-sent events, written and read."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.dialects.sse import KEEP_ALIVE, Frame, SseReader, frame
from dragoman.errors import InvalidAgentResponse


def read(stream: bytes, *, cut: int = 0) -> list[Frame]:
    reader = SseReader()
    pieces = [stream[i : i + cut] for i in range(0, len(stream), cut)] if cut else [stream]
    return [one for piece in pieces for one in reader.feed(piece)] + reader.end()


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 10**6), st.sampled_from(["", "message"]))),
    st.integers(1, 30),
)
def test_sse_frames_are_read_at_any_chunk_boundaries(frames: list[tuple[bytes, int, str]], cut: int) -> None:
    stream = b"".join(frame(data, id=id, event=event) + KEEP_ALIVE for data, id, event in frames)
    wanted = [
        Frame(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), str(id) if id else "", event)
        for data, id, event in frames
    ]
    assert read(stream, cut=cut) == wanted


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("cut", [0, 1, 2, 3, 7])
def test_every_line_break_is_understood(newline: str, cut: int) -> None:
    lines = [
        "data: one",
        "",
        ": a comment",
        "",
        "event: message",
        "id: 7",
        "data: two",
        "data: three",
        "",
        "",
    ]
    frames = read(newline.join(lines).encode(), cut=cut)
    assert frames == [Frame(b"one"), Frame(b"two\nthree", "7", "message")]


def test_only_one_space_after_the_colon_is_dropped() -> None:
    assert read(b"data:x\n\ndata:  y\n\ndata\n\n") == [Frame(b"x"), Frame(b" y"), Frame(b"")]


def test_a_last_frame_needs_no_blank_line() -> None:
    assert read(b"data: 1\n\ndata: 2") == [Frame(b"1"), Frame(b"2")]


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_byte_order_mark_is_skipped(cut: int) -> None:
    assert read(b"\xef\xbb\xbfdata: 1\n\n", cut=cut) == [Frame(b"1")]


def test_a_frame_without_data_is_no_event() -> None:
    assert read(b"id: 4\n\nretry: 10\n\n: only a comment\n\n\n\n") == []


def test_an_id_is_that_of_its_own_frame() -> None:
    assert [one.id for one in read(b"id: 4\ndata: a\n\ndata: b\n\n")] == ["4", ""]


def test_data_cannot_end_its_frame() -> None:
    assert read(frame(b"a\n\ndata: forged\r\n\r\nid: 9")) == [Frame(b"a\n\ndata: forged\n\nid: 9")]


@pytest.mark.parametrize("cut", [1000, 7])
def test_a_frame_that_grows_without_end_is_refused(cut: int) -> None:
    reader = SseReader(limit=100)
    with pytest.raises(InvalidAgentResponse, match="100 bytes"):
        for _ in range(1000):
            reader.feed(b"x" * cut)


def test_a_whole_frame_that_is_too_large_is_refused_too() -> None:
    with pytest.raises(InvalidAgentResponse):
        SseReader(limit=100).feed(b"data: " + b"x" * 100 + b"\n\n")


@pytest.mark.parametrize(("cut", "copies"), [(0, 2.1), (64 << 10, 3.3)], ids=["in one piece", "in pieces"])
def test_a_large_event_is_not_copied_more_often_than_it_has_to_be(cut: int, copies: float) -> None:
    size = 4 << 20
    stream = b"id: 1\ndata: %b\n\n" % (b"x" * size)
    pieces = [stream[i : i + cut] for i in range(0, len(stream), cut)] if cut else [stream]
    reader = SseReader()
    reader.feed(KEEP_ALIVE)
    tracemalloc.start()
    try:
        found = [one for piece in pieces for one in reader.feed(piece)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(len(one.data), one.id) for one in found] == [(size, "1")]
    assert peak < copies * size
