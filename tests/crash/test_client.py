"""Our own client on a server that keeps dying: it hears each event once, and nobody has to tell it anything."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dragoman import connect
from dragoman.client import Policy
from dragoman.model.task import ArtifactUpdate, TaskState
from tests import raw
from tests.crash.checks import OUTCOME, check_log, check_steps, story_of, whole_story
from tests.crash.stage import Stage


@pytest.mark.parametrize("every", [3, 4])
async def test_the_client_finishes_a_dialog_with_a_server_that_is_killed_repeatedly(
    every: int, tmp_path: Path
) -> None:
    stage = Stage(tmp_path, PACE="0.02")
    seen: list[tuple[str, str]] = []
    async with stage.server, asyncio.TaskGroup() as group:
        async with connect(
            stage.server.url, policy=Policy(attempts=200, shortest=0.02, longest=0.1)
        ) as agent:
            task, kills = "", list[asyncio.Task[None]]()
            for text in ("killed", "Ann", "3"):
                async with agent.stream(text, skill="story", task=task) as stream:
                    async for piece in stream:
                        if isinstance(piece.event, ArtifactUpdate):
                            seen.append((piece.event.artifact.artifact_id, piece.event.artifact.text))
                        if len(seen) % every == 0 and all(kill.done() for kill in kills):
                            kills.append(group.create_task(stage.restart()))
                task = stream.reply.id
            assert stream.reply.state is TaskState.COMPLETED
            if kills:
                await asyncio.wait(kills)
            document = await raw.result(stage.server.url, "GetTask", {"id": task})
            assert story_of(document) == whole_story("killed")
            assert stage.deaths >= 2
            received = "".join(text for artifact, text in seen if artifact == "result")
            assert OUTCOME.sub(r"chapter \1: ...", received) == whole_story("killed")["text"]["result"]
            check_steps(stage.steps, document, stage.deaths)
            await check_log(stage.store, task)
