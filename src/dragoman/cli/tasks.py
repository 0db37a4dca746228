"""`dragoman tasks AGENT`, which is `dragoman task list AGENT`"""

from __future__ import annotations

import argparse
from contextlib import aclosing
from typing import Any

from dragoman.cli import show
from dragoman.cli.connect import add_agent_options, parse_agent, run_with_agent
from dragoman.client import Client
from dragoman.model.task import Task, TaskState

_STATES = [state.word for state in TaskState if state is not TaskState.UNSPECIFIED]

EPILOG = """\
  dragoman tasks http://127.0.0.1:8000
  dragoman tasks http://127.0.0.1:8000 --state working
  dragoman tasks http://127.0.0.1:8000 --since 2026-11-01T00:00:00Z -n 10 --json
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "tasks",
        help="list an agent's tasks, newest first",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_list(parser)


def add_list(parser: argparse.ArgumentParser) -> None:
    add_agent_options(parser)
    parser.add_argument("--state", default="", choices=_STATES, metavar="STATE", help=", ".join(_STATES))
    parser.add_argument("--context-id", default="", metavar="ID", help="only tasks of this conversation")
    parser.add_argument(
        "--since", default="", metavar="TIME", help="only tasks that changed after this time (ISO 8601)"
    )
    parser.add_argument(
        "-n", "--limit", type=_number, default=50, help="at most this number of tasks (default: 50)"
    )
    parser.set_defaults(run=run)


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


async def run(args: argparse.Namespace) -> int:
    parse_agent(args)

    async def work(agent: Client) -> int:
        found: list[Task] = []
        size = min(args.limit, 100)
        listed = agent.list(
            context=args.context_id,
            state=args.state,
            since=args.since,
            history=1,
            artifacts=True,
            page_size=size,
        )
        async with aclosing(listed) as tasks:  # type: ignore[type-var]
            async for task in tasks:
                found.append(task)
                if len(found) >= args.limit:
                    break
        if args.json:
            show.json({"tasks": found})
        else:
            show.table(
                ("task", "state", "since", "about"),
                [(task.id, task.state.word, task.status.timestamp, summarize(task)) for task in found],
            )
        return 0

    return await run_with_agent(args, work)


def summarize(task: Task) -> str:
    """One line of a task's answer, or of its last message."""
    text = task.text or (task.history[-1].text if task.history else "")
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"
