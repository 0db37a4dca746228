"""A hub with the real model inside: offline, streaming, over both ways in."""

from __future__ import annotations

import pytest

from dragoman.hub.models import local
from tests.hub.house import house, message

pytestmark = pytest.mark.skipif(not local.available(), reason="the embedded model is not installed")


async def test_the_embedded_model_answers_over_a2a_and_over_the_native_api() -> None:
    async with house(model=local.EmbeddedModel(max_tokens=12)) as hub:
        acme = await hub.tenant("acme")
        stream = acme.open_rpc("index", "message/stream", message("What is the capital of France?"))
        stream.patience = 60.0
        results = (await stream.end()).results()
        deltas = [e for e in results if e["kind"] == "artifact-update" and not e["lastChunk"]]
        assert len(deltas) > 2, "it streams"
        assert results[-1]["status"]["state"] == "completed"
        live = acme.open("POST", "/v1/orchestrate", {"message": "What is the capital of Spain?"})
        live.patience = 60.0
        frames = (await live.end()).frames()
        assert frames[-1].event == "done" and sum(frame.event == "text" for frame in frames) > 2
