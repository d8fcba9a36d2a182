from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from waystation.errors import LocalError
from waystation.node import keyfile


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.rule("ID-1")
def test_only_its_owner_can_read_a_key_file(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        made = keyfile.create(tmp_path / "key")
    finally:
        os.umask(former)
    assert mode_of(tmp_path / "key") == 0o600
    assert keyfile.load(tmp_path / "key").identifier == made.identifier


@pytest.mark.rule("ID-1")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_key_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    keyfile.create(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(LocalError, match=f"has mode {mode:04o}"):
        keyfile.load(tmp_path / "key")
    with pytest.raises(LocalError, match="chmod 600"):
        keyfile.rotate(tmp_path / "key")


@pytest.mark.rule("ID-5")
def test_a_rotated_key_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "key"
    made = keyfile.create(path)
    before = path.read_bytes()
    rotated = keyfile.rotate(path)
    assert rotated.identifier == made.identifier
    assert rotated.public.follows(made.public)
    assert keyfile.load(path).public == rotated.public
    assert path.read_bytes() != before
    assert mode_of(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.rule("ID-5")
def test_a_rotation_that_fails_leaves_the_old_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    keyfile.create(path)
    before = path.read_bytes()

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, f"no space for {self} at {target}")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        keyfile.rotate(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    keyfile.create(tmp_path / "key")
    with pytest.raises(FileExistsError):
        keyfile.create(tmp_path / "key")


@pytest.mark.parametrize(
    "content",
    ["", "{}", "not a key", '{"waystation": "identity"}', "\xff", "x" * 70_000],
    ids=["empty", "no fields", "text", "incomplete", "not ASCII", "too long"],
)
def test_what_is_no_key_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content, "latin-1")
    path.chmod(0o600)
    with pytest.raises(LocalError, match="cannot be used"):
        keyfile.load(path)
    with pytest.raises(LocalError, match="cannot be used"):
        keyfile.read_public(path)


def test_a_directory_is_no_key_file(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(LocalError, match="it is no file"):
        keyfile.load(tmp_path)


@pytest.mark.rule("ID-1")
def test_a_key_of_another_history_is_not_told_in_the_error(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    keyfile.create(one)
    keyfile.create(two)
    key_of_two = two.read_text().split('"key": "')[1].split('"')[0]
    mixed = one.read_text().split('"key": "')[0] + f'"key": "{key_of_two}"}}'
    one.write_text(mixed)
    with pytest.raises(LocalError, match="do not belong together") as caught:
        keyfile.load(one)
    error: BaseException | None = caught.value
    while error is not None:
        assert key_of_two not in repr(error)
        error = error.__cause__


def test_anybody_may_read_what_was_exported(tmp_path: Path) -> None:
    made = keyfile.create(tmp_path / "key")
    (tmp_path / "public").write_text(made.public.history.hex() + "\n")
    assert keyfile.read_public(tmp_path / "public") == made.public
    assert keyfile.read_public(tmp_path / "key") == made.public
