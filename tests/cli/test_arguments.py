"""Secrets that are not for everybody who lists processes."""

from __future__ import annotations

import pytest

from dragoman.cli import parser


def test_the_secrets_of_notifications_can_be_in_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "abc")
    args = parser(["listen"]).parse_args(
        ["listen", "--token", "env:HOOK", "--secret", "env:HOOK", "--secret", "x"]
    )
    assert (args.token, args.secret) == ("abc", ["abc", "x"])
    args = parser(["send"]).parse_args(["send", "http://a", "hi", "--push-token", "env:HOOK"])
    assert args.push_token == "abc"
