"""`dragoman chat AGENT`"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import Any

from dragoman.cli import show
from dragoman.cli.reach import add_options, failed, options
from dragoman.client import SyncClient, connect_sync
from dragoman.client.reply import ended
from dragoman.errors import A2AError
from dragoman.model.task import TaskState

ABOUT = """\
Talk with an agent, line by line. An agent that asks is answered with the next line. Ctrl-C cancels the task that is
running; at the prompt, Ctrl-C or Ctrl-D leaves.
"""

EPILOG = """\
  dragoman chat http://127.0.0.1:8000
  dragoman chat http://127.0.0.1:8000 --auth env:TOKEN
  dragoman chat http://127.0.0.1:8000 < questions.txt        one question on a line
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "chat",
        help="talk with an agent, line by line",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        with connect_sync(args.url, **options(args)) as agent:
            if sys.stdin.isatty():
                show.say(f"{agent.card.name} (A2A {agent.version}). Ctrl-D leaves.", sys.stderr)
            return _Chat(agent, args).run()
    except BrokenPipeError:
        raise
    except (A2AError, TimeoutError, OSError, ValueError) as error:
        return failed(error)


class _Chat:
    def __init__(self, agent: SyncClient, args: argparse.Namespace) -> None:
        self._agent, self._json = agent, args.json
        self._task = self._context = ""
        self._prompt = "> " if sys.stdin.isatty() else ""
        self._code = 0

    def run(self) -> int:
        while True:
            try:
                text = input(self._prompt)
            except (EOFError, KeyboardInterrupt):
                if self._prompt:
                    print()
                return self._code
            if text.strip():
                try:
                    self._say(text)
                except (A2AError, TimeoutError) as error:
                    self._code = failed(error)

    def _say(self, text: str) -> None:
        stream = self._agent.stream(text, task=self._task, context=self._context)
        answer = show.Answer()
        try:
            for piece in stream:
                if self._json:
                    show.event(piece)
                else:
                    answer.piece(piece)
        except KeyboardInterrupt:
            answer.end()
            self._cancel(stream.task.id if stream.task is not None else "")
            return
        finally:
            answer.end()
        reply = stream.reply
        self._context = reply.context_id
        self._task = reply.id if reply.asks else ""
        self._code = 0 if reply.state is TaskState.COMPLETED else 2 if reply.asks else 1
        if reply.state.terminal and self._code:
            print(f"the task {ended(reply.state)}", file=sys.stderr)
        elif reply.state is TaskState.AUTH_REQUIRED:
            print("the agent needs an authorisation before it goes on", file=sys.stderr)

    def _cancel(self, task: str) -> None:
        self._task = ""
        if task:
            with suppress(A2AError):
                self._agent.cancel(task)
        print("canceled", file=sys.stderr)
