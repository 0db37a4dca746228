"""After a stream broke anywhere, the events add up to the task, whatever the peer sends when it is asked again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.client.deduplicate import ReplayFilter, missed_events, parts_after
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.fold import Fold
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

texts = st.text(alphabet="ab", max_size=3).map(lambda text: Part(text=text))
others = st.integers(0, 2).map(lambda n: Part(data=n))
parts = st.lists(texts | others, min_size=1, max_size=3).map(tuple)


def chunk(id: str, parts: tuple[Part, ...], append: bool) -> ArtifactUpdate:
    artifact = Artifact(artifact_id=id, parts=parts)
    return ArtifactUpdate(task_id="t", context_id="c", artifact=artifact, append=append)


def report(n: int) -> StatusUpdate:
    message = Message(message_id=f"m{n}", role=Role.AGENT, parts=(Part(text=str(n)),))
    return StatusUpdate(
        task_id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING, message=message)
    )


@st.composite
def stories(draw: st.DrawFn, replacing: bool = True) -> list[Event]:
    """The events of a task, as a server would tell them. `replacing`: an artifact may begin again as another."""
    begun: set[str] = set()
    events: list[Event] = []
    for n in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            id = draw(st.sampled_from("xy"))
            events.append(
                chunk(id, draw(parts), append=id in begun and not (replacing and draw(st.booleans())))
            )
            begun.add(id)
        else:
            events.append(report(n))
    done = TaskStatus(state=TaskState.COMPLETED)
    return [*events, StatusUpdate(task_id="t", context_id="c", status=done)]


def folded(events: list[Event]) -> Fold:
    fold = Fold()
    for event in events:
        fold.apply(event)
    return fold


def same(one: Fold, other: Fold) -> bool:
    ids = one.artifacts.keys() | other.artifacts.keys()
    for id in ids:
        a = one.artifacts[id].parts if id in one.artifacts else []
        b = other.artifacts[id].parts if id in other.artifacts else []
        if parts_after(a, b) != () or parts_after(b, a) != ():
            return False
    return one.state is other.state


@given(stories(), st.data())
def test_the_current_task_shows_the_missed_events(story: list[Event], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(story)))
    reader, whole = folded(story[:cut]), folded(story)
    task = whole.task
    assert isinstance(task, Task)
    for event in missed_events(reader, task):
        reader.apply(event)
    assert same(reader, whole)
    assert missed_events(reader, task) == []


@given(stories(replacing=False), st.data())
def test_events_of_a_repeated_stream_come_once(story: list[Event], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(story)))
    reader, whole = folded(story[:cut]), folded(story)
    replay = ReplayFilter(reader, [event.status for event in story[:cut] if isinstance(event, StatusUpdate)])
    news: list[Event] = []
    for event in story:
        for new in replay.read(event):
            reader.apply(new)
            news.append(new)
    assert same(reader, whole)
    assert reports(news) == reports(story[cut:])
    assert amount(news) == amount(story[cut:])


def reports(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, StatusUpdate)]


def amount(events: list[Event]) -> int:
    """How much was told, in letters and values."""
    chunks = [event.artifact for event in events if isinstance(event, ArtifactUpdate)]
    return sum(1 if part.text is None else len(part.text) for chunk in chunks for part in chunk.parts)


@given(stories(), st.data())
def test_events_after_the_current_task_come_once(story: list[Event], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(story)))
    at = data.draw(st.integers(cut, len(story)))
    reader, whole = folded(story[:cut]), folded(story)
    snapshot = folded(story[:at]).task
    replay = ReplayFilter(reader)
    if snapshot is not None:
        for new in replay.read(snapshot):
            reader.apply(new)
    for n, event in enumerate(story[at:], at + 1):
        now = folded(story[:n]).task
        assert now is not None
        for new in replay.read(event) if replay.is_continuous(event) else replay.catch_up(event, now):
            reader.apply(new)
    assert same(reader, whole)


def test_text_continues_wherever_it_was_cut() -> None:
    whole = [Part(text="one "), Part(text="two"), Part(data=1), Part(text="three")]
    assert parts_after(whole, [Part(text="one t")]) == (Part(text="wo"), Part(data=1), Part(text="three"))
    assert parts_after(whole, [Part(text="one two"), Part(data=1), Part(text="three")]) == ()
    assert parts_after(whole, [Part(text="one two"), Part(data=2)]) is None
    assert parts_after(whole, [Part(text="one two three")]) is None
    assert parts_after(whole[:1], whole) is None
