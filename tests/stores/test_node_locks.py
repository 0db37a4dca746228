"""Locks of nodes: who is alive on this machine."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dragoman.stores.node_locks import NodeLocks


def test_a_node_that_starts_is_never_taken_for_dead(tmp_path: Path) -> None:
    ours, theirs, over, wrong = NodeLocks(tmp_path / "n"), NodeLocks(tmp_path / "n"), threading.Event(), []

    def look() -> None:
        while not over.is_set():
            with theirs.dead_nodes() as dead:
                wrong.extend(dead)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for n in range(1_000):
            ours.hold(f"node-{n}")
            ours.drop(f"node-{n}")
    finally:
        over.set()
        looking.join()
    assert wrong == []


def test_a_node_that_ended_without_leaving_is_dead_once(tmp_path: Path) -> None:
    ours, locks = NodeLocks(tmp_path / "n"), NodeLocks(tmp_path / "n")
    ours.hold("alive")
    (tmp_path / "n" / "killed.lock").touch()
    with locks.dead_nodes() as dead:
        assert dead == ["killed"]
        with pytest.raises(RuntimeError, match="another process is running as node 'killed'"):
            ours.hold("killed")  # not while somebody frees what it had
    with locks.dead_nodes() as dead:
        assert dead == []
    ours.hold("killed")
    with locks.dead_nodes() as dead:
        assert dead == []


def test_a_node_stays_dead_if_what_it_held_could_not_be_freed(tmp_path: Path) -> None:
    locks = NodeLocks(tmp_path)
    (tmp_path / "killed.lock").touch()
    with pytest.raises(OSError, match="away"), locks.dead_nodes() as dead:
        assert dead == ["killed"]
        raise OSError("the database is away")
    with locks.dead_nodes() as dead:
        assert dead == ["killed"]
