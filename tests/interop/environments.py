"""Other people's A2A libraries, each in an environment of its own under `.peers/`.

    python -m tests.interop.environments all            # install what is missing
    python -m tests.interop.environments a2a-sdk-1.3.0

`command` gives the command line of a program in `peers/` in its environment. Nothing here is imported by the package,
and no library of another project is ever in our own environment.
"""

from __future__ import annotations

import fcntl
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
HOME = ROOT / ".peers"
PROGRAMS = Path(__file__).parent / "peers"

PYTHON = {
    "a2a-sdk-1.3.0": ("a2a-sdk[http-server,grpc,signing]==1.3.0", "uvicorn", "uvloop", "httptools"),
    "a2a-sdk-0.3.26": ("a2a-sdk[http-server,grpc]==0.3.26", "uvicorn"),
    "a2a-sdk-0.2.16": ("a2a-sdk[grpc]==0.2.16", "uvicorn"),
    "fasta2a-2.1.1": ("fasta2a==2.1.1", "uvicorn", "uvloop", "httptools"),
    "mcp-servers-python": ("mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19"),
}
FRAMEWORKS = {
    "langgraph": ("langgraph==1.2.20", "langchain==1.4.7", "langchain-openai", "xllamacpp"),
    "pydantic-ai": ("pydantic-ai-slim[openai]==2.66.0", "xllamacpp"),
    "openai-agents": ("openai-agents==0.24.0", "xllamacpp"),
    "google-adk": ("google-adk==2.13.0",),
    "agent-framework": ("agent-framework-core==1.23.0",),
    "strands": ("strands-agents==1.62.0",),
    "llama-index-workflows": ("llama-index-workflows==2.26.1", "llama-index-core==0.14.25"),
    "crewai": ("crewai==1.15.30",),
    "smolagents": ("smolagents==1.26.0",),
    "wrapped-a2a-sdk-1": ("a2a-sdk==1.3.0",),
    "wrapped-a2a-sdk-0.3": ("a2a-sdk==0.3.26",),
}
"""Frameworks whose agents `dragoman.wrap` serves: each with Dragoman itself in one environment."""
NODE = {
    "a2a-js-1.3.0": ("@a2a-js/sdk@1.3.0", "express@5", "@grpc/grpc-js@1", "@bufbuild/protobuf@2"),
    "mcp-sdk-js": ("@modelcontextprotocol/sdk@1.32.2",),
    "mcp-servers-node": (
        "@modelcontextprotocol/server-everything@2026.8.31",
        "@modelcontextprotocol/server-filesystem@2026.8.31",
        "@modelcontextprotocol/server-memory@2026.8.31",
    ),
}
NODE_VERSION = 20
NAMES = (*PYTHON, *FRAMEWORKS, *NODE)


def installed(name: str) -> bool:
    """Whether the environment is there, with what is asked of it now."""
    stamp = HOME / name / ".ready"
    return stamp.exists() and stamp.read_text() == _wanted(name)


def install(name: str) -> None:
    """Make the environment, unless it is there already. Two who want the same one at once make it once."""
    if installed(name):
        return
    HOME.mkdir(exist_ok=True)
    with (HOME / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if installed(name):
            return
        print(f"installing {name} into {HOME.relative_to(ROOT)}/ ...", flush=True)
        shutil.rmtree(HOME / name, ignore_errors=True)
        try:
            _install_node(name) if name in NODE else _install_python(name)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"{name} could not be installed: {shlex.join(error.cmd)} failed") from None
        (HOME / name / ".ready").write_text(_wanted(name))


def _install_python(name: str) -> None:
    home = HOME / name
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    ours = ["--editable", str(ROOT)] if name in FRAMEWORKS else []
    subprocess.run([*pip, *_packages(name), *ours], check=True)


def _install_node(name: str) -> None:
    if not _has_node():
        raise SystemExit(
            f"{name} needs Node {NODE_VERSION} or newer, and npm; `node --version` and `npm --version` should both answer"
        )
    home = HOME / name
    home.mkdir()
    (home / "package.json").write_text('{"private": true, "type": "module"}')
    npm = ["npm", "install", "--no-fund", "--no-audit", "--no-package-lock", "--loglevel=error"]
    subprocess.run([*npm, *NODE[name]], cwd=home, check=True)


def _has_node() -> bool:
    if shutil.which("npm") is None or shutil.which("node") is None:
        return False
    said = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout  # v20.20.2
    number = said.removeprefix("v").partition(".")[0]
    return number.isdigit() and int(number) >= NODE_VERSION


def command(name: str, program: str, *arguments: str) -> list[str]:
    """How to run `peers/<program>` in the environment `name`."""
    source = PROGRAMS / program
    if name in PYTHON:
        return [str(HOME / name / "bin" / "python"), str(source), *arguments]
    # node looks for packages beside the program, so the program goes to the packages
    copy = HOME / name / program
    if not copy.exists() or copy.read_bytes() != source.read_bytes():
        shutil.copy(source, copy)
    return ["node", str(copy), *arguments]


def python(name: str) -> str:
    """The Python of an environment."""
    return str(HOME / name / "bin" / "python")


def program(name: str, script: str) -> str:
    """A program that a package of an environment has installed."""
    folder = HOME / name / ("node_modules/.bin" if name in NODE else "bin")
    return str(folder / script)


def _packages(name: str) -> tuple[str, ...]:
    return (PYTHON | FRAMEWORKS | NODE)[name]


def _wanted(name: str) -> str:
    return "\n".join(_packages(name))


def main(names: list[str]) -> None:
    for name in NAMES if names in ([], ["all"]) else names:
        if name not in NAMES:
            raise SystemExit(f"no such environment: {name}; there are {', '.join(NAMES)}")
        install(name)


if __name__ == "__main__":
    main(sys.argv[1:])
