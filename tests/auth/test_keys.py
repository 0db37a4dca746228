"""Our own keys, in a directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dragoman.auth import keys
from dragoman.auth.keys import KeyRing
from dragoman.auth.signing import Trust
from tests.auth.issuer import Pages
from tests.auth.test_canonical import CARD


def kids(ring: KeyRing) -> list[str]:
    return [key["kid"] for key in ring.public()["keys"]]


def signers(ring: KeyRing) -> set[str]:
    return {key.kid for key in ring.keys if key.signs}


def test_a_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys")
    key = ring.add()
    file = tmp_path / "keys" / f"{key.kid}.json"
    assert file.stat().st_mode & 0o777 == 0o600 and (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (tmp_path / "keys").iterdir()] == [file.name]


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    key = KeyRing(tmp_path).add()
    (tmp_path / f"{key.kid}.json").chmod(0o644)
    with pytest.raises(ValueError, match="read by others"):
        assert KeyRing(tmp_path).keys


@pytest.mark.parametrize("algorithm", ["ES256", "EdDSA", "RS256"])
def test_only_the_public_half_is_published(tmp_path: Path, algorithm: str) -> None:
    ring = KeyRing(tmp_path)
    ring.add(algorithm)
    [key] = ring.public()["keys"]
    assert key["alg"] == algorithm and key["use"] == "sig"
    assert not {"d", "p", "q", "dp", "dq", "qi", "k"} & set(key)


def test_several_keys_sign_together(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    first, second = ring.add("ES256"), ring.add("EdDSA")
    assert signers(ring) == {first.kid, second.kid} == signers(KeyRing(tmp_path))


async def test_after_a_rotation_the_new_key_signs_and_what_the_old_one_signed_can_be_checked(
    tmp_path: Path,
) -> None:
    ring = KeyRing(tmp_path)
    old = ring.add()
    before = {**CARD, "signatures": [_plain(s) for s in ring.sign(CARD)]}
    new = ring.rotate()
    assert signers(ring) == {new.kid} and set(kids(ring)) == {old.kid, new.kid}
    assert (await Trust(ring.public()).verify(before, Pages())).kid == old.kid
    after = {**CARD, "signatures": [_plain(s) for s in ring.sign(CARD)]}
    assert (await Trust(ring.public()).verify(after, Pages())).kid == new.kid


def test_a_retired_key_is_published_for_a_while_and_then_deleted(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    ring.add()
    second = ring.rotate(keep=0)
    assert kids(ring) == [second.kid]
    third = ring.rotate(keep=1000)
    assert {path.stem for path in tmp_path.iterdir()} == {second.kid, third.kid}


def test_a_running_server_notices_new_keys(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    ring.add()
    before = ring.stamp
    added = KeyRing(tmp_path).add()
    ring._checked_at = float("-inf")  # a second later
    assert ring.stamp != before and added.kid in signers(ring)


@pytest.mark.parametrize(
    "name", ["..json", ".hidden.json", "a b.json", "a.json.new", "x.txt", "-\u00e9.json"]
)
def test_files_that_cannot_be_keys_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("not a key")
    assert KeyRing(tmp_path).keys == ()


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"created": 1, "jwk": {}}', '{"created": 1, "jwk": {"kty": "oct", "k": "AAAA"}}'],
)
def test_a_file_that_is_not_a_key_is_an_error_with_its_name(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key.json"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(ValueError, match=r"key\.json"):
        assert KeyRing(tmp_path).keys


def test_a_public_key_is_not_ours(tmp_path: Path) -> None:
    key = KeyRing(tmp_path).add()
    file = tmp_path / f"{key.kid}.json"
    stored = json.loads(file.read_text())
    del stored["jwk"]["d"]
    file.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="private key"):
        assert KeyRing(tmp_path).keys


def test_the_name_of_a_key_in_its_file_is_ignored(tmp_path: Path) -> None:
    """A name inside a file could otherwise lead a deletion somewhere else."""
    key = KeyRing(tmp_path / "keys").add()
    file = tmp_path / "keys" / f"{key.kid}.json"
    stored = json.loads(file.read_text())
    stored["jwk"]["kid"] = "../precious"
    stored["retired"] = 1.0
    file.write_text(json.dumps(stored))
    (tmp_path / "precious.json").write_text("precious")
    ring = KeyRing(tmp_path / "keys")
    assert [each.kid for each in ring.keys] == [key.kid]
    ring.rotate()
    assert (tmp_path / "precious.json").exists() and not file.exists()


def test_a_link_in_the_place_of_a_new_key_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keys.new_key()
    monkeypatch.setattr(keys, "new_key", lambda algorithm: made)
    target = tmp_path / "target"
    (tmp_path / "keys").mkdir()
    os.symlink(target, tmp_path / "keys" / f"{made.kid}.new")
    with pytest.raises(OSError):
        KeyRing(tmp_path / "keys").add()
    assert not target.exists()


def test_an_algorithm_that_we_do_not_sign_with_is_refused(tmp_path: Path) -> None:
    for algorithm in ("none", "HS256", "ES512"):
        with pytest.raises(ValueError, match="we sign with"):
            KeyRing(tmp_path).add(algorithm)


def test_a_directory_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    with pytest.raises(ValueError, match="not a directory"):
        KeyRing(tmp_path / "keys")


def _plain(signature: object) -> dict[str, str]:
    return {"protected": signature.protected, "signature": signature.signature}  # type: ignore[attr-defined]


def test_a_file_that_is_not_a_key_does_not_take_the_keys_of_a_running_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keys, "_RELOAD_SECONDS", 0.0)
    KeyRing(tmp_path).add()
    ring = KeyRing(tmp_path)
    before = kids(ring)
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    broken.chmod(0o600)
    assert kids(ring) == kids(ring) == before
    assert caplog.text.count("broken.json is not a key") == 1
    broken.unlink()
    added = KeyRing(tmp_path).add().kid
    assert kids(ring) == [added, *before]
