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
from dragoman.cli.reach import FAILURE, add_fail, add_options, binding, exit_code, failed, options, target
from dragoman.cli.save import save_files
from dragoman.client import SyncClient, connect_sync, file
from dragoman.client.reply import describe_end
from dragoman.client.sync import SyncReply
from dragoman.errors import A2AError
from dragoman.model.content import Part
from dragoman.model.task import TaskState

ABOUT = """\
Talk with an agent, line by line. An agent that asks is answered with the next line. Ctrl-C cancels the task that is
running; at the prompt, Ctrl-C or Ctrl-D leaves. /help at the prompt shows what else there is.
"""

EPILOG = """\
  dragoman chat http://127.0.0.1:8000
  dragoman chat http://127.0.0.1:8000 --auth env:TOKEN
  dragoman chat http://127.0.0.1:8000 < questions.txt        one question on a line
"""

COMMANDS = """\
/help             this
/file PATH        send a file (or its URL) with the next line
/skill [NAME]     the skill that the next lines are for; without a name, the agent chooses
/save DIR         save the files of the last answer
/new              begin another conversation
/quit             leave
A line that begins with // is sent with one of them."""

HISTORY_LINES = 1000


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "chat",
        help="talk with an agent, line by line",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    add_fail(parser)
    parser.add_argument("--skill", default="", help="the skill that is meant")
    parser.add_argument("--context-id", default="", metavar="ID", help="go on with this conversation")
    parser.add_argument(
        "-f", "--file", action="append", default=[], help="a file (or its URL) to send with the first line"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if left := target(args):
        args.refuse(f"{left[0]!r} is one word too many: chat reads what you say from standard input")
    connected = False
    try:
        files = [file(each) for each in args.file]
        chosen = asyncio.run(binding(args))
        with connect_sync(args.url, **options(args), binding=chosen) as agent:
            connected = True
            if sys.stdin.isatty():
                show.say(f"{agent.card.name} (A2A {agent.version}). /help, or Ctrl-D to leave.", sys.stderr)
                _edit_lines()
            return _Chat(agent, args, files).run()
    except BrokenPipeError:
        raise
    except (A2AError, TimeoutError, OSError, ValueError) as error:
        return failed(error, args, connected=connected)


def _edit_lines() -> None:
    """Let lines be edited, and those of earlier chats be had again with the arrow keys."""
    try:
        import atexit
        import readline
    except ImportError:  # there is none on Windows, whose terminals do it themselves
        return
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dragoman"
    kept = folder / "chat_history"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept.touch(mode=0o600)
        readline.read_history_file(kept)
    readline.set_history_length(HISTORY_LINES)

    def keep() -> None:
        with suppress(OSError):
            readline.write_history_file(kept)

    atexit.register(keep)


class _Chat:
    def __init__(self, agent: SyncClient, args: argparse.Namespace, files: list[Part]) -> None:
        self._agent, self._args = agent, args
        self._files, self._skill, self._context = files, args.skill, args.context_id
        self._last: SyncReply | None = None
        """The answer before, if it asks for something."""
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
                    if not self._obey(line):
                        return self._code
                elif line.strip():
                    self._say(line[1:] if self._prompt and line.startswith("//") else line)
            except (A2AError, TimeoutError, OSError, ValueError) as error:
                self._code = failed(error, self._args)

    def _obey(self, line: str) -> bool:
        """Do what a line that begins with / says. False: leave."""
        word, _, rest = line.partition(" ")
        match word, rest.strip():
            case "/quit" | "/exit", _:
                return False
            case "/new", _:
                self._context, self._last, self._files = "", None, []
                print("another conversation", file=sys.stderr)
            case "/skill", name:
                known = [skill.id for skill in self._agent.card.skills]
                if name and name not in known:
                    show.say(f"there is no skill {name!r}; there is {', '.join(known) or 'none'}", sys.stderr)
                else:
                    self._skill = name
            case "/file", path if path:
                self._files.append(file(path))
                print("it goes with the next line", file=sys.stderr)
            case "/save", folder if folder:
                save_files(self._saved, Path(folder).expanduser())
            case _:
                if word != "/help":
                    show.say(
                        f"{line}: there is no such command; // sends a line that begins with /", sys.stderr
                    )
                print(COMMANDS, file=sys.stderr)
        return True

    def _say(self, text: str) -> None:
        files, self._files = self._files, []
        stream = self._agent.stream(
            text,
            *files,
            task=self._last if self._last is not None else "",
            context=self._context,
            skill=self._skill,
            metadata=_REMEMBER if self._agent.link.peer.is_dragoman else None,
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
            print("the agent needs an authorisation before it goes on", file=sys.stderr)

    def _cancel(self, task: str) -> None:
        self._last = None
        if task:
            with suppress(A2AError):
                self._agent.cancel(task)
        self._code = FAILURE if self._args.fail else 0
        print("canceled", file=sys.stderr)


_REMEMBER = {"contextHistory": True}
"""Agents of a hub that are documents are reminded of what was said before in this conversation."""
