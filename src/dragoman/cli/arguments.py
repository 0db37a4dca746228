"""Commands and their options, for argparse: what commands have in common, and values such as numbers, times and secrets."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:  # a client needs no server
    from dragoman.server.limits import Limits


class CommandParser(argparse.ArgumentParser):
    """A parser that shows its texts as they are written, and answers a wrong option with a sentence."""

    intermixed = False
    """Accept `AGENT --option TEXT`. Without this, argparse reports TEXT as missing at the first option."""
    _parses = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._parses:  # argparse calls this method again
            return super().parse_known_args(args, namespace)
        self._parses = True
        parse = self.parse_known_intermixed_args if self.intermixed else super().parse_known_args
        try:
            found, unknown = parse(args, namespace)
        finally:
            self._parses = False
        if unknown:  # reported here, by the command that does not know it
            self.error(self._describe_unknown(unknown))
        return found, unknown

    def _describe_unknown(self, words: Sequence[str]) -> str:
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        if option is None:
            return f"{words[0]!r} is one word too many"
        close = get_close_matches(option, self._option_string_actions, 1)
        return f"there is no option {option}" + (f": did you mean {close[0]}?" if close else "")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            close = get_close_matches(str(value), [str(each) for each in action.choices], 1)
            if close and isinstance(action, argparse._SubParsersAction):
                what = str(action.metavar).lower()
                raise argparse.ArgumentError(
                    None, f"there is no {what} {value!r}: did you mean {close[0]!r}?"
                )
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Print the error without the usage, which argparse prints above it: the usage of `serve` fills a screen."""
        self.exit(2, f"{self.prog}: error: {message}\n`{self.prog} --help` shows what it takes\n")


def add_command(
    commands: Any,
    name: str,
    about: str,
    epilog: str | None = None,
    run: Callable[[argparse.Namespace], Any] | None = None,
    **more: Any,
) -> CommandParser:
    """Add a command that calls `run`; without `run`, one that has verbs."""
    parser: CommandParser = commands.add_parser(name, help=about, epilog=epilog, **more)
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def add_verbs(parser: argparse.ArgumentParser) -> Any:
    """What the verbs of a command are added to, with `add_command`."""
    return parser.add_subparsers(metavar="VERB", required=True)


def add_flag(parser: argparse._ActionsContainer, *names: str, help: str, **more: Any) -> None:
    parser.add_argument(*names, action="store_true", help=help, **more)


def add_repeated(parser: argparse._ActionsContainer, name: str, metavar: str, help: str, **more: Any) -> None:
    """An option that may be given several times."""
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=help, **more)


def describe(error: object) -> str:
    """What an error says, without the number that the operating system gives it: `a.txt: No such file or directory`."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


@contextmanager
def exit_on(*errors: type[Exception], about: str = "") -> Iterator[None]:
    """End the command with the text of such an error."""
    try:
        yield
    except errors as error:
        raise SystemExit(f"dragoman: {about}{describe(error)}") from None


def checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """The type of an option whose text `check` accepts, or raises `ValueError` for."""

    def read(text: str) -> str:
        try:
            check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return read


LIMITS = {
    "max_body": "bytes in the body of a request",
    "max_connections": "open connections; 0: any number",
    "head_timeout": "seconds until a connection has sent the head of a request",
    "body_timeout": "seconds until it has sent the body",
    "write_timeout": "seconds that a client may take to read what we wrote",
    "read_rate": "bytes per second that a client has to read meanwhile",
}
"""The fields of `Limits` that an operator can set, as options of `serve` and settings of `hub`."""


def add_limits(parser: argparse.ArgumentParser) -> None:
    from dragoman.server.limits import Limits

    group = parser.add_argument_group("limits of one request")
    for name, about in LIMITS.items():
        default = getattr(Limits(), name)
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=positive_number if isinstance(default, float) else natural_number if default == 0 else count,
            default=default,
            metavar="SECONDS" if isinstance(default, float) else "N",
            help=f"{about} (default: %(default)s)",
        )


def read_limits(args: argparse.Namespace) -> Limits:
    from dragoman.server.limits import Limits

    return Limits(**{name: getattr(args, name) for name in LIMITS})


def add_address(parser: argparse._ActionsContainer, port: int = 8000) -> None:
    """Where to listen."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback only)")
    parser.add_argument(
        "--port", type=int, default=port, help="port to listen on; 0 takes a free one (default: %(default)s)"
    )


def add_tls(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--tls-cert", default="", metavar="FILE", help="serve TLS with this certificate chain (PEM)"
    )
    parser.add_argument(
        "--tls-key", default="", metavar="FILE", help="key of --tls-cert, if it is in another file"
    )


def add_serving(parser: argparse.ArgumentParser) -> None:
    """What `serve` and `dev` have in common, beside the address."""
    parser.add_argument(
        "--grpc-port", type=int, metavar="PORT", help="also serve gRPC on this port; 0 takes a free one"
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="lowest level that is logged (default: %(default)s)",
    )
    add_flag(parser, "--insecure", help="allow a public address without authentication")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_const",
        const="warning",
        dest="log_level",
        help="log only warnings and errors: --log-level warning",
    )


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} should be 0 or more, and finite")
    return value


def positive_number(text: str) -> float:
    if not (value := number(text)):
        raise argparse.ArgumentTypeError(f"{text} should be more than 0")
    return value


def days(text: str) -> float:
    """Parse a number of days as seconds."""
    return positive_number(text) * 86_400


def natural_number(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} should be 0 or more")
    return value


def count(text: str) -> int:
    if not (value := natural_number(text)):
        raise argparse.ArgumentTypeError(f"{text} should be 1 or more")
    return value


def duration(text: str) -> float:
    """Parse a time as seconds: `30`, `1.5`, `500ms`, `2m`, `1h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: use 30, 500ms or 2m")
    return float(found[1]) * {"ms": 0.001, "m": 60, "h": 3600}.get(found[2], 1)


def iso_time(text: str) -> str:
    """Check that `text` is a time."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError("use 2026-11-15 or 2026-11-15T14:00:00Z") from None
    return text


def secret(text: str) -> str:
    """A secret, or the value of a variable (`env:NAME`): anybody on the machine can list the arguments of a process."""
    if not text.startswith("env:"):
        return text
    name = text.removeprefix("env:")
    if not os.environ.get(name):
        raise argparse.ArgumentTypeError(f"the variable {name!r} is not set")
    return os.environ[name]
