"""`dragoman chat AGENT`"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.cli import show
from dragoman.cli.arguments import add_command
from dragoman.cli.connect import (
    FAILURE,
    add_agent_options,
    add_fail,
    choose_binding,
    connect_options,
    exit_code,
    parse_agent,
    report_error,
)
from dragoman.client import SyncClient, connect_sync, file
from dragoman.client.reply import describe_end
from dragoman.client.sync import SyncReply
from dragoman.errors import A2AError
from dragoman.model.content import Part
from dragoman.model.task import TaskState

ABOUT = """\
Talk with an agent, line by line. If the agent asks something, the next line is the answer. Ctrl-C cancels the running task. At
the prompt, Ctrl-C or Ctrl-D ends the chat, and /help shows the commands.
"""

EPILOG = """\
  dragoman chat http://127.0.0.1:8000
  dragoman chat http://127.0.0.1:8000 --auth env:TOKEN
  dragoman chat http://127.0.0.1:8000 < questions.txt        one question per line
"""

COMMANDS = """\
/help             show this
/file PATH        send a file (or its URL) with the next line
/skill [NAME]     use this skill for the next lines; without a name, the agent chooses
/save DIR         save the files of the last answer
/new              start another conversation
/quit             end the chat
To send a line that starts with /, type //."""

HISTORY_LINES = 1000


def register(commands: Any) -> None:
    parser = add_command(commands, "chat", "talk with an agent, line by line", EPILOG, run, description=ABOUT)
    add_agent_options(parser)
    add_fail(parser)
    parser.add_argument("--skill", default="", help="the skill to use")
    parser.add_argument("--context-id", default="", metavar="ID", help="continue this conversation")
    parser.add_argument(
        "-f", "--file", action="append", default=[], help="a file (or its URL) to send with the first line"
    )


def run(args: argparse.Namespace) -> int:
    parse_agent(args)
    connected = False
    try:
        files = [file(each) for each in args.file]
        chosen = asyncio.run(choose_binding(args))
        with connect_sync(args.url, **connect_options(args), binding=chosen) as agent:
            connected = True
            if sys.stdin.isatty():
                show.say(
                    f"{agent.card.name} (A2A {agent.version}). /help shows the commands, Ctrl-D ends.",
                    sys.stderr,
                )
                _edit_lines()
            return _Chat(agent, args, files).run()
    except BrokenPipeError:
        raise
    except (A2AError, TimeoutError, OSError, ValueError) as error:
        return report_error(error, args, connected=connected)


def _edit_lines() -> None:
    """Enable line editing, with the lines of earlier chats in the history."""
    try:
        import atexit
        import readline
    except ImportError:  # not on Windows, whose terminals edit lines themselves
        return
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dragoman"
    history = folder / "chat_history"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        history.touch(mode=0o600)
        readline.read_history_file(history)
    readline.set_history_length(HISTORY_LINES)

    def write() -> None:
        with suppress(OSError):
            readline.write_history_file(history)

    atexit.register(write)


class _Chat:
    def __init__(self, agent: SyncClient, args: argparse.Namespace, files: list[Part]) -> None:
        self._agent, self._args = agent, args
        self._files, self._skill, self._context = files, args.skill, args.context_id
        self._last: SyncReply | None = None
        """The last answer, if it asks for input."""
        self._saved: tuple[Part, ...] = ()
        self._prompt = "> " if sys.stdin.isatty() else ""
        self._code = 0

    def run(self) -> int:
        while True:
            try:
                line = input(self._prompt)
            except (EOFError, KeyboardInterrupt):
                if self._prompt:
                    print()
                return self._code
            try:
                if self._prompt and line.startswith("/") and not line.startswith("//"):
                    if not self._run_command(line):
                        return self._code
                elif line.strip():
                    self._send(line[1:] if self._prompt and line.startswith("//") else line)
            except (A2AError, TimeoutError, OSError, ValueError) as error:
                self._code = report_error(error, self._args)

    def _run_command(self, line: str) -> bool:
        """Run a command line. Returns False to end the chat."""
        word, _, rest = line.partition(" ")
        match word, rest.strip():
            case "/quit" | "/exit", _:
                return False
            case "/new", _:
                self._context, self._last, self._files = "", None, []
                print("new conversation", file=sys.stderr)
            case "/skill", name:
                known = [skill.id for skill in self._agent.card.skills]
                if name and name not in known:
                    show.say(f"no skill {name!r}; the agent has {', '.join(known) or 'none'}", sys.stderr)
                else:
                    self._skill = name
            case "/file", path if path:
                self._files.append(file(path))
                print("the file goes with the next line", file=sys.stderr)
            case "/save", folder if folder:
                show.save_files(self._saved, Path(folder).expanduser())
            case _:
                if word != "/help":
                    show.say(
                        f"{line}: no such command; type // to send a line that starts with /", sys.stderr
                    )
                print(COMMANDS, file=sys.stderr)
        return True

    def _send(self, text: str) -> None:
        files, self._files = self._files, []
        stream = self._agent.stream(
            text,
            *files,
            task=self._last if self._last is not None else "",
            context=self._context,
            skill=self._skill,
            metadata=_SEND_HISTORY if self._agent.link.peer.is_dragoman else None,
        )
        answer = show.Answer()
        try:
            for piece in stream:
                if self._args.json:
                    show.event(piece)
                elif self._args.output == "text":
                    show.event_text(piece)
                else:
                    answer.piece(piece)
        except KeyboardInterrupt:
            answer.end()
            self._cancel(stream.task.id if stream.task is not None else "")
            return
        finally:
            answer.end()
        reply = stream.reply
        self._context, self._saved = reply.context_id, reply.files
        self._last = reply if reply.asks and reply.task is not None else None
        self._code = exit_code(self._args, reply.state)
        if reply.state.terminal and reply.state is not TaskState.COMPLETED:
            show.say(f"task {reply.id} {describe_end(reply.state)}", sys.stderr)
        elif reply.state is TaskState.AUTH_REQUIRED:
            print("the agent needs an authorization to continue", file=sys.stderr)

    def _cancel(self, task: str) -> None:
        self._last = None
        if task:
            with suppress(A2AError):
                self._agent.cancel(task)
        self._code = FAILURE if self._args.fail else 0
        print("canceled", file=sys.stderr)


_SEND_HISTORY = {"contextHistory": True}
"""A hub gives its constitution agents the earlier messages of the conversation."""
