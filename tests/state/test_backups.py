"""Backups in folders: what survives when files are torn, flipped, missing or in the way."""

from __future__ import annotations

import json
import logging
import resource
import threading
from pathlib import Path

import fsspec
import numpy as np
import pytest

from drumbeat.errors import ConfigError, StateError
from drumbeat.state.backups import Backups, Content, join_archive, split_archive
from drumbeat.state.folders import TEMPORARY_PREFIX, LocalFolder, open_folder
from drumbeat.state.format import State
from drumbeat.state.manifest import About
from drumbeat.state.memory import SnapshotMemory
from drumbeat.state.writer import BackupWriter

HOUR_S = 3600.0
PHASE = b"the end of a phase" * 100


def content(step: int, *phases: bytes) -> Content:
    about = About(job="a job", step=step, phase=len(phases), epoch=step // 10, world_size=2, seed=7)
    return Content(about=about, snapshot=f"snapshot {step} ".encode() * 50, phases=phases)


def backups(folder: Path | str, *, keep: int = 5, ahead_s: float = 0.0) -> Backups:
    import time

    return Backups(
        open_folder(folder),
        keep=keep,
        clock=lambda: time.time() + ahead_s,
        pause=lambda _: None,
    )


def newest_step(folder: Path | str) -> int | None:
    found = backups(folder).newest()
    if found is None:
        return None
    assert found.snapshot == content(found.about.step).snapshot
    return found.about.step


def states(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("drumbeat-state-*.bin")}


def files_of(folder: Path, number: int) -> list[Path]:
    """The files that only backup `number` has: its manifest and its snapshot."""
    (manifest,) = folder.glob(f"drumbeat-backup-{number:06d}-*.json")
    return [manifest, folder / json.loads(manifest.read_text())["snapshot"]["name"]]


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "new" / "folder")
    fsspec.filesystem("memory").store.clear()
    return "memory://bucket/job"


def test_the_newest_of_several_comes_back_whole(place: str) -> None:
    store = backups(place)
    store.folder.check()
    assert store.newest() is None
    for step in (30, 10, 20):  # a job that went back in steps goes on from its last word
        store.write(content(step, PHASE))
    found = backups(place).newest()
    assert found is not None
    assert (found.snapshot, found.phases) == (content(20).snapshot, (PHASE,))
    assert (found.about.step, found.about.seed, found.about.job) == (20, 7, "a job")
    assert found.about.time.endswith("+00:00")
    about = backups(place).newest_about()
    assert about == found.about


def test_only_the_last_are_kept_and_nothing_of_others_is_touched(place: str) -> None:
    store = backups(place, keep=2)
    store.folder.check()
    foreign = ["model.keras", "drumbeat-notes.txt", "drumbeat-backup-1.json", "state.bin"]
    for name in foreign:
        store.folder.write(name, b"mine")
    for step in range(5):
        store.write(content(step, PHASE))
    names = set(store.folder.entries())
    assert set(foreign) < names
    assert len(names - set(foreign)) == 2 + 2 + 1  # manifests, snapshots, the phase they share
    assert newest_step(place) == 4


def damage_cut(path: Path, part: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])


def damage_flip(path: Path, part: float) -> None:
    data = bytearray(path.read_bytes())
    data[int((len(data) - 1) * part)] ^= 1
    path.write_bytes(data)


def damage_remove(path: Path, part: float) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [damage_cut, damage_flip, damage_remove])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_a_damaged_backup_is_named_and_the_one_before_is_used(
    tmp_path: Path, damage, which: int, part: float, caplog: pytest.LogCaptureFixture
) -> None:
    store = backups(tmp_path)
    for step in (1, 2, 3):
        store.write(content(step, PHASE))
    path = files_of(tmp_path, 3)[which]
    damage(path, part)
    assert newest_step(tmp_path) == 2
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    if which == 0 and damage is damage_remove:
        assert told == []  # without its manifest it never was there
    else:
        assert len(told) == 1
        assert "drumbeat-backup-000003" in told[0]
        assert str(tmp_path) in told[0]
        assert "the one before is used" in told[0]


def test_all_damaged_says_so_and_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = backups(tmp_path)
    for step in (1, 2):
        store.write(content(step, PHASE))
    (tmp_path / (states(tmp_path) - {files_of(tmp_path, n)[1].name for n in (1, 2)}).pop()).unlink()
    assert newest_step(tmp_path) is None
    assert "No backup" in caplog.text


def test_damaged_ones_do_not_count_and_are_replaced(tmp_path: Path) -> None:
    store = backups(tmp_path)
    for step in (1, 2):
        store.write(content(step, PHASE))
    damage_flip(files_of(tmp_path, 2)[1], 0.5)
    again = backups(tmp_path, keep=2)
    found = again.newest()
    assert found is not None
    assert found.about.step == 1
    again.write(content(3, PHASE))
    damage_remove(files_of(tmp_path, 3)[0], 0)
    assert newest_step(tmp_path) == 1  # not removed as the third of two
    again.write(content(2, PHASE))  # the same bytes as the damaged file should have
    assert newest_step(tmp_path) == 2


def test_leftovers_of_crashed_writes_go_once_they_are_old(tmp_path: Path) -> None:
    leftovers = [TEMPORARY_PREFIX + "0123", f"drumbeat-state-{'a' * 32}.bin"]
    for name in [*leftovers, "drumbeat-state-notes.bin"]:
        (tmp_path / name).write_bytes(b"half")
    backups(tmp_path).write(content(1))
    assert {path.name for path in tmp_path.iterdir()} > set(leftovers)  # may be another's work
    backups(tmp_path, ahead_s=2 * HOUR_S).write(content(2))
    names = {path.name for path in tmp_path.iterdir()}
    assert not names & set(leftovers)
    assert "drumbeat-state-notes.bin" in names
    assert newest_step(tmp_path) == 2


def test_a_write_that_dies_before_its_manifest_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = backups(tmp_path)
    store.write(content(1))
    original = LocalFolder.write

    def dies(self: LocalFolder, name: str, data: bytes) -> None:
        if name.endswith(".json"):
            raise KeyboardInterrupt
        original(self, name, data)

    monkeypatch.setattr(LocalFolder, "write", dies)
    with pytest.raises(KeyboardInterrupt):
        store.write(content(2))
    monkeypatch.undo()
    assert newest_step(tmp_path) == 1
    store.write(content(3))
    assert len(states(tmp_path)) == 2  # its own leftover needs no waiting


def test_two_writers_are_told_of_and_tear_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backups(tmp_path).write(content(0))  # of the job's own earlier life
    stores = [backups(tmp_path, keep=3) for _ in range(2)]

    def write(store: Backups, first: int) -> None:
        for step in range(first, first + 20):
            store.write(content(step, PHASE))

    threads = [threading.Thread(target=write, args=(s, 100 * i)) for i, s in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    told = [record for record in caplog.records if "Another process" in record.getMessage()]
    assert 1 <= len(told) <= 2
    found = backups(tmp_path).newest()
    assert found is not None
    assert found.about.step % 100 == 19
    assert "damaged" not in caplog.text
    assert len(list(tmp_path.glob("*.json"))) <= 4


def test_a_restarted_job_is_no_second_writer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for life in range(3):
        store = backups(tmp_path)
        for step in range(3):
            store.write(content(10 * life + step))
    assert "Another process" not in caplog.text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text("a file"), "is a file"),
        (lambda path: path.parent.joinpath("x").symlink_to("/proc/drumbeat"), None),
    ],
)
def test_a_place_that_can_not_be_a_folder_is_refused(tmp_path: Path, make, words) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(ConfigError, match=words):
        open_folder(path).check()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("", "empty"),
        ("abfs://container/job", "pip install adlfs"),
        ("oci://bucket/job", "pip install ocifs"),
        ("nope://bucket/job", "fsspec knows"),
        ("/proc/drumbeat", "can't be written"),
        ("/dev/null/folder", "can't be written"),
    ],
)
def test_a_place_nobody_can_write_to_is_refused(place: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_folder(place).check()


@pytest.mark.parametrize("keep", [0, -1, 1.5, "5", True, None])
def test_keep_is_a_number_of_backups(tmp_path: Path, keep) -> None:
    with pytest.raises(ConfigError, match="keep is"):
        Backups(open_folder(tmp_path), keep=keep)


def test_a_newer_format_is_not_taken_for_damage(tmp_path: Path) -> None:
    import hashlib

    backups(tmp_path).write(content(1))
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    del record["sha256"]
    record["format"] = 99
    record["sha256"] = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(record))
    with pytest.raises(StateError, match="format"):
        backups(tmp_path).newest()


def test_what_can_not_be_read_now_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups(tmp_path).write(content(1))
    failures = [OSError(5, "Input/output error")] * 2
    original = LocalFolder.read

    def flaky(self: LocalFolder, name: str) -> bytes:
        if failures:
            raise failures.pop()
        return original(self, name)

    monkeypatch.setattr(LocalFolder, "read", flaky)
    assert newest_step(tmp_path) == 1
    failures += [OSError(5, "Input/output error")] * 99
    with pytest.raises(StateError, match="Input/output error"):
        backups(tmp_path).newest()


def test_a_full_disk_stops_no_training_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = backups(tmp_path)
    writer = BackupWriter(store)
    writer.put(content(1))
    assert writer.flush(10)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (100, before[1])
    )  # each file ends early, as on ENOSPC
    try:
        for step in (2, 3, 4):
            writer.put(content(step))
            assert not writer.flush(10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "could not be written" in told[0]
    assert str(tmp_path) in told[0]
    assert not list(tmp_path.glob(TEMPORARY_PREFIX + "*"))
    assert newest_step(tmp_path) == 1
    writer.put(content(5))
    assert writer.flush(10)
    assert newest_step(tmp_path) == 5


def test_a_vanished_folder_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "mounted"
    store = backups(folder)
    store.folder.check()
    writer = BackupWriter(store)
    folder.rmdir()
    for step in (1, 2):
        writer.put(content(step))
        assert not writer.flush(10)
    assert len(caplog.records) == 1
    folder.mkdir()
    writer.put(content(3))
    assert writer.flush(10)
    assert newest_step(folder) == 3


class _SlowFolder(LocalFolder):
    gate = threading.Event()

    def write(self, name: str, data: bytes) -> None:
        assert self.gate.wait(30)
        super().write(name, data)


def test_a_newer_backup_takes_the_place_of_one_that_waits(tmp_path: Path) -> None:
    store = Backups(_SlowFolder(tmp_path))
    writer = BackupWriter(store)
    for step in range(1, 6):
        writer.put(content(step))
        if step == 1:
            assert not writer.flush(0.2)  # it is being written
            assert writer.is_busy
    _SlowFolder.gate.set()
    assert writer.flush(10)
    assert len(list(tmp_path.glob("*.json"))) == 2  # the first and the last
    assert newest_step(tmp_path) == 5


def test_the_archive_is_cut_into_phases_and_put_together_again() -> None:
    memory, other = SnapshotMemory.create(), SnapshotMemory.create()
    try:
        for number in range(3):
            weights = np.arange(20_000, dtype=np.float32) + number
            memory.archive_append(State(10 * number, {"phase": number}, {"w": weights}))
        memory.archive_drop(1)
        parts = split_archive(memory.archive_bytes())
        assert len(parts) == 3
        assert len(parts[1]) < 1000 < len(parts[0])
        other.put_archive(join_archive(parts))
        there = other.archive()
        assert [state.meta["phase"] for state in there] == [0, 1, 2]
        assert there[2].arrays["w"][0] == 2
        assert not there[1].arrays
        assert split_archive(b"") == ()
    finally:
        memory.close()
        other.close()
