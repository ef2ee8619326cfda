"""The disk as it is: names, links, modes, what is no file, and two processes at one path.

FAULTS D1, F8, F9, I1, I5, and that the model of the fault harness answers as the real disk does.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import PUBLISH, BeforeCall, FaultyStorage, ModelStorage, RecordingStorage, Subject, creates, each_subject
from support import assert_same, everything_in, in_child, needs_linux, needs_posix, open_descriptors

import fastckpt.storage
from fastckpt import storage as storage_module
from fastckpt.errors import NotFoundError, StorageError
from fastckpt.storage import DISK, Storage, exists, is_temporary, open_file, publish, read_at, remove, temporary_name, walk


def mode_of(path: str | os.PathLike[str]) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def umask() -> Any:
    """The usual umask, whatever the machine has."""
    before = os.umask(0o022)
    yield
    os.umask(before)


# A save, and a look at it


@each_subject
def test_what_is_saved_is_loaded(subject: Subject, tmp_path: Path) -> None:
    """A value saved, and another over it, loads as it was; nothing else is left in the directory, and no descriptor open."""
    before = open_descriptors() if sys.platform == "linux" else set()
    for value in subject.values:
        subject.save(tmp_path / "f", value)
        assert_same(subject.load(tmp_path / "f"), value)
    assert everything_in(tmp_path) == ["f"]
    assert sys.platform != "linux" or open_descriptors() == before


def test_publish_of_nothing(tmp_path: Path) -> None:
    """An empty file can be published and read."""
    assert publish(tmp_path / "f", b"") == str(tmp_path / "f")
    with open_file(tmp_path / "f") as (fd, status):
        assert (status.st_size, read_at(fd, 10, 0)) == (0, b"")


def test_publish_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No write or read is larger than one system call can be; what is larger takes several."""
    monkeypatch.setattr(storage_module, "_WRITE_AT_MOST", 1000)
    recording = RecordingStorage(DISK)
    data = bytes(range(256)) * 12
    publish(tmp_path / "f", data, storage=recording)
    with open_file(tmp_path / "f", recording) as (fd, status):
        assert read_at(fd, status.st_size, 0, recording) == data
    assert [len(arguments[1]) for name, arguments in recording.calls if name == "write"] == [1000, 1000, 1000, 72]
    assert [arguments[1] for name, arguments in recording.calls if name == "read"] == [1000, 1000, 1000, 72]


def test_read_at_the_end(tmp_path: Path) -> None:
    """A read beyond the end returns what is there, from any offset."""
    (tmp_path / "f").write_bytes(b"0123456789")
    with open_file(tmp_path / "f") as (fd, _):
        assert [read_at(fd, 4, 2), read_at(fd, 40, 8), read_at(fd, 4, 10), read_at(fd, 4, 99)] == [b"2345", b"89", b"", b""]


def test_publish_without_sync(tmp_path: Path) -> None:
    """With `fsync=False` neither the file nor its directory is synced, once the directory is there."""
    publish(tmp_path / "f", b"old")
    recording = RecordingStorage(DISK)
    publish(tmp_path / "f", b"new", fsync=False, storage=recording)
    assert "sync" not in [name for name, _ in recording.calls]
    assert (tmp_path / "f").read_bytes() == b"new"


def test_publish_flushes_twice(tmp_path: Path) -> None:
    """A save over an older file asks the disk for two flushes, no more: the file's and its directory's."""
    publish(tmp_path / "f", b"old")
    recording = RecordingStorage(DISK)
    publish(tmp_path / "f", b"new", storage=recording)
    assert [name for name, _ in recording.calls].count("sync") == 2


@each_subject
def test_missing_directories_are_made(subject: Subject, tmp_path: Path) -> None:
    """Directories that are missing on the way are made."""
    subject.save(tmp_path / "a" / "b" / "f", subject.values[0])
    assert everything_in(tmp_path) == ["a", "a/b", "a/b/f"]


def test_missing_root_ends() -> None:
    """A drive that does not exist (a Windows path) is an error, not an endless search for a directory above it."""
    faulty = FaultyStorage(ModelStorage(), kind="stat", error=lambda: FileNotFoundError(2, "No such file or directory"), times=10**6)
    with pytest.raises(StorageError):
        publish("/z/f", b"new", storage=faulty)


# Names


def test_temporary_names_are_known_again() -> None:
    """A temporary name is in the same directory, fresh each time, at most 255 bytes, and known again for its target alone."""
    for name in ("f", "checkpoint.fastckpt", "x" * 255, "é" * 127, "检" * 85, os.fsdecode(b"\xff" * 255), ".hidden", "a.b.c", " "):
        made = {temporary_name(os.path.join("runs", name)) for _ in range(50)}
        assert len(made) == 50
        for path in made:
            folder, temporary = os.path.split(path)
            assert folder == "runs"
            assert len(os.fsencode(temporary)) <= 255
            assert is_temporary(temporary)
            assert is_temporary(temporary, name)
            assert not is_temporary(temporary, "other")


def test_temporary_name_cuts_between_characters() -> None:
    """The temporary name of a long name in UTF-8 is UTF-8 itself; some filesystems take no other."""
    for filler in range(4):
        temporary_name("x" * filler + "检" * 80 + "é" * 7).encode("utf-8")


@pytest.mark.parametrize(
    "name",
    ["f", "checkpoint.fastckpt", ".fastckpt-tmp", ".f.fastckpt-tmp", ".f.0123.fastckpt-tmp", "f.0123456789abcdef.fastckpt-tmp",
     ".f.0123456789abcdeX.fastckpt-tmp", ".f.0123456789abcdef.fastckpt-tmp2", ".f.0123456789ABCDEF.fastckpt-tmp", ""],
)  # fmt: skip
def test_other_names_are_not_temporary(name: str) -> None:
    """A name that only looks like one of our temporaries is somebody else's file."""
    assert not is_temporary(name)


@each_subject
@pytest.mark.parametrize("name", ["x" * 255, "检" * 85, " ", "a\nb", "-f", "*", "..f", "f.fastckpt-tmp"], ids=ascii)
def test_f8_odd_names(subject: Subject, tmp_path: Path, name: str) -> None:
    """FAULTS F8: whatever is a file name is used exactly."""
    subject.save(tmp_path / name, subject.values[0])
    subject.save(tmp_path / name, subject.values[1])
    assert_same(subject.load(tmp_path / name), subject.values[1])
    assert os.listdir(tmp_path) == [name]


@needs_linux
@each_subject
@pytest.mark.parametrize("raw", [b"caf\xe9", b"\xff" * 255])
def test_f8_names_that_are_not_utf8(subject: Subject, tmp_path: Path, raw: bytes) -> None:
    """FAULTS F8, I5: a name that is not UTF-8, as Python spells it, is used exactly, and an error about it can be printed."""
    path = os.path.join(tmp_path, os.fsdecode(raw))
    subject.save(path, subject.values[0])
    assert_same(subject.load(path), subject.values[0])
    assert os.listdir(os.fsencode(tmp_path)) == [raw]
    os.unlink(path)
    with pytest.raises(NotFoundError) as caught:
        subject.load(path)
    str(caught.value).encode("utf-8")


@each_subject
@pytest.mark.parametrize("name", ["nul\0inside", "\ud800", "x" * 256, "f/", "x" * 200 + "/" + "y" * 256], ids=ascii)
def test_f8_names_that_cannot_be(subject: Subject, tmp_path: Path, name: str) -> None:
    """FAULTS F8: a name that no file can have is refused with a StorageError on one line, by load and by save, and nothing appears."""
    path = f"{tmp_path}/{name}"
    for attempt in (lambda: subject.save(path, subject.values[0]), lambda: subject.load(path)):
        with pytest.raises(StorageError) as caught:
            attempt()
        assert "\n" not in str(caught.value)
        str(caught.value).encode("utf-8")
    assert [path for path in everything_in(tmp_path) if not os.path.isdir(tmp_path / path)] == []


@each_subject
def test_empty_path(subject: Subject) -> None:
    """An empty path is refused by name, not taken for the current directory."""
    for attempt in (lambda: subject.save("", subject.values[0]), lambda: subject.load("")):
        with pytest.raises(StorageError, match="empty"):
            attempt()


@each_subject
def test_nothing_there(subject: Subject, tmp_path: Path) -> None:
    """A load where nothing is, or where the directory is missing, is a NotFoundError that names the path; nothing is made."""
    for path in (tmp_path / "f", tmp_path / "a" / "f"):
        with pytest.raises(NotFoundError) as caught:
            subject.load(path)
        assert str(path) in str(caught.value)
    assert everything_in(tmp_path) == []


@each_subject
def test_file_in_the_way(subject: Subject, tmp_path: Path) -> None:
    """A path that goes through a file is refused, and the file is as it was."""
    (tmp_path / "file").write_bytes(b"mine")
    for attempt in (lambda path: subject.save(path, subject.values[0]), subject.load):
        for path in (tmp_path / "file" / "f", tmp_path / "file" / "a" / "f"):
            with pytest.raises(StorageError):
                attempt(path)
    assert (tmp_path / "file").read_bytes() == b"mine"


# I1: modes and links


@needs_posix
@each_subject
def test_i1_new_file_obeys_the_umask(subject: Subject, tmp_path: Path) -> None:
    """FAULTS I1: a new file gets mode 0666 under the umask, as any program's would, not a temporary file's 0600."""
    for mask, expected in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664), (0, 0o666)):
        before = os.umask(mask)
        try:
            subject.save(tmp_path / f"{mask:o}", subject.values[0])
        finally:
            os.umask(before)
        assert mode_of(tmp_path / f"{mask:o}") == expected


@needs_posix
@each_subject
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o666, 0o444, 0o755])
def test_i1_replace_keeps_the_mode(subject: Subject, tmp_path: Path, umask: None, mode: int) -> None:
    """FAULTS I1: a file that is replaced keeps its permission bits, whatever the umask."""
    subject.save(tmp_path / "f", subject.values[0])
    os.chmod(tmp_path / "f", mode)
    subject.save(tmp_path / "f", subject.values[1])
    assert mode_of(tmp_path / "f") == mode
    assert_same(subject.load(tmp_path / "f"), subject.values[1])


@needs_posix
@each_subject
def test_i1_private_file_is_never_open_to_others(subject: Subject, tmp_path: Path, umask: None) -> None:
    """FAULTS I1: while a file of mode 0600 is replaced, the temporary one holds no data that others may read."""
    subject.save(tmp_path / "f", subject.values[0])
    os.chmod(tmp_path / "f", 0o600)
    modes = []

    def look() -> None:
        modes.extend(mode_of(tmp_path / name) for name in os.listdir(tmp_path) if is_temporary(name) and os.stat(tmp_path / name).st_size)

    for kind in ("sync", "close", "replace"):
        subject.save(tmp_path / "f", subject.values[1], BeforeCall(DISK, look, kind=kind))
    assert set(modes) == {0o600}


@needs_posix
@each_subject
@pytest.mark.parametrize("relative", [True, False])
def test_i1_link_is_written_through(subject: Subject, tmp_path: Path, relative: bool) -> None:
    """FAULTS I1: a symbolic link stays a link, and what it points to is replaced, in its own directory."""
    (tmp_path / "real").mkdir()
    (tmp_path / "links").mkdir()
    subject.save(tmp_path / "real" / "f", subject.values[0])
    os.symlink("../real/f" if relative else tmp_path / "real" / "f", tmp_path / "links" / "one")
    os.symlink("one", tmp_path / "links" / "two")
    subject.save(tmp_path / "links" / "two", subject.values[1])
    assert (tmp_path / "links" / "one").is_symlink()
    assert (tmp_path / "links" / "two").is_symlink()
    assert not (tmp_path / "real" / "f").is_symlink()
    for path in ("real/f", "links/one", "links/two"):
        assert_same(subject.load(tmp_path / path), subject.values[1])
    assert everything_in(tmp_path) == ["links", "links/one", "links/two", "real", "real/f"]


@needs_posix
@each_subject
def test_i1_hard_link_keeps_the_old(subject: Subject, tmp_path: Path) -> None:
    """FAULTS I1: another hard link of the old file keeps the old content, as documented."""
    subject.save(tmp_path / "f", subject.values[0])
    os.link(tmp_path / "f", tmp_path / "kept")
    subject.save(tmp_path / "f", subject.values[1])
    assert_same(subject.load(tmp_path / "kept"), subject.values[0])
    assert_same(subject.load(tmp_path / "f"), subject.values[1])


# F9: what is no file


@needs_posix
@each_subject
def test_f9_dangling_link(subject: Subject, tmp_path: Path) -> None:
    """FAULTS F9: a dangling link loads as "nothing there" and saves to where it points."""
    os.symlink("elsewhere/f", tmp_path / "link")
    with pytest.raises(NotFoundError):
        subject.load(tmp_path / "link")
    subject.save(tmp_path / "link", subject.values[0])
    assert (tmp_path / "link").is_symlink()
    assert_same(subject.load(tmp_path / "elsewhere" / "f"), subject.values[0])


@needs_posix
@each_subject
def test_f9_links_in_a_circle(subject: Subject, tmp_path: Path) -> None:
    """FAULTS F9: links that go round in a circle are refused by load and by save, and stay."""
    os.symlink("b", tmp_path / "a")
    os.symlink("a", tmp_path / "b")
    for attempt in (lambda: subject.save(tmp_path / "a", subject.values[0]), lambda: subject.load(tmp_path / "a")):
        with pytest.raises(StorageError):
            attempt()
    assert everything_in(tmp_path) == ["a", "b"]
    assert (tmp_path / "a").is_symlink()


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.mkdir()


def make_socket(path: Path) -> None:
    # A path of a socket holds 108 bytes at most: by a relative one.
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


def make_device(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may make a device")
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # never /dev/null itself: a wrong save would replace it
    except OSError as error:
        pytest.skip(f"cannot make a device here: {error}")


@needs_posix
@each_subject
@pytest.mark.parametrize("make", [make_fifo, make_directory, make_socket, make_device])
@pytest.mark.parametrize("by_link", [False, True], ids=["", "by_link"])
def test_f9_what_is_no_file(subject: Subject, tmp_path: Path, make: Callable[[Path], None], by_link: bool) -> None:
    """FAULTS F9: a fifo, a directory, a socket, a device, by itself or by a link: load never blocks, both refuse, it stays as it is."""
    path = tmp_path / "thing"
    make(path)
    before = os.lstat(path)
    if by_link:
        os.symlink("thing", tmp_path / "link")
        path = tmp_path / "link"

    def attempts() -> None:
        for attempt in (lambda: subject.save(path, subject.values[0]), lambda: subject.load(path)):
            with pytest.raises(StorageError) as caught:
                attempt()
            assert str(path) in str(caught.value)
            assert not isinstance(caught.value, NotFoundError)

    in_child(attempts, timeout=10)
    after = os.lstat(tmp_path / "thing")
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert [name for name in os.listdir(tmp_path) if name not in ("thing", "link")] == []


@needs_posix
@each_subject
@pytest.mark.parametrize("plant", ["link", "dangling link", "fifo", "directory", "file"])
@pytest.mark.parametrize("moment", ["before", "between check and open"])
def test_f9_planted_at_the_temporary_name(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: str, moment: str) -> None:
    """FAULTS F9: what somebody planted at the temporary name is not written through and not removed; the old checkpoint stays."""
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    folder.mkdir()
    victim.write_bytes(b"precious")
    subject.save(folder / "f", subject.values[0])
    planted = folder / "planted"
    monkeypatch.setattr(storage_module, "temporary_name", lambda path: str(planted))

    def do_plant() -> None:
        if plant in ("link", "dangling link"):
            os.symlink(victim if plant == "link" else tmp_path / "nowhere", planted)
        elif plant == "fifo":
            os.mkfifo(planted)
        elif plant == "directory":
            planted.mkdir()
        else:
            planted.write_bytes(b"another writer's")

    storage: Storage = DISK
    if moment == "before":
        do_plant()
    else:
        storage = BeforeCall(DISK, do_plant, kind="open", on=creates)

    def attempt() -> None:
        with pytest.raises(StorageError):
            subject.save(folder / "f", subject.values[1], storage)
        assert os.path.lexists(planted)

    in_child(attempt, timeout=10)
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "nowhere").exists()
    assert_same(subject.load(folder / "f"), subject.values[0])
    assert plant != "file" or planted.read_bytes() == b"another writer's"


@needs_posix
@each_subject
def test_f9_target_becomes_a_link(subject: Subject, tmp_path: Path) -> None:
    """FAULTS F9: a link planted at the path itself, after the check, is replaced and not written through."""
    (tmp_path / "victim").write_bytes(b"precious")
    subject.save(tmp_path / "f", subject.values[0])

    def plant() -> None:
        os.unlink(tmp_path / "f")
        os.symlink("victim", tmp_path / "f")

    subject.save(tmp_path / "f", subject.values[1], BeforeCall(DISK, plant, kind="replace"))
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert not (tmp_path / "f").is_symlink()
    assert_same(subject.load(tmp_path / "f"), subject.values[1])


# I5: where we are


@needs_linux
@each_subject
def test_i5_current_directory_removed(subject: Subject, tmp_path: Path) -> None:
    """FAULTS I5: with the current directory gone an absolute path works and a relative one is refused by a StorageError."""
    gone = tmp_path / "gone"
    gone.mkdir()

    def without_directory() -> None:
        os.chdir(gone)
        gone.rmdir()
        subject.save(tmp_path / "f", subject.values[0])
        assert_same(subject.load(tmp_path / "f"), subject.values[0])
        for attempt in (lambda: subject.save("f", subject.values[0]), lambda: subject.load("f")):
            with pytest.raises(StorageError):
                attempt()

    in_child(without_directory)
    assert everything_in(tmp_path) == ["f"]


@each_subject
def test_i5_relative_path(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is taken from the current directory at the call, `..` and a bare name too."""
    monkeypatch.chdir(tmp_path)
    subject.save("f", subject.values[0])
    subject.save("a/../b/f", subject.values[1])
    assert_same(subject.load(tmp_path / "f"), subject.values[0])
    assert_same(subject.load(tmp_path / "b" / "f"), subject.values[1])


@needs_linux
def test_i5_locale_without_utf8(tmp_path: Path) -> None:
    """FAULTS I5: in a locale without UTF-8 a path with any bytes works, and so does the message about it."""
    code = (
        "import sys\n"
        "from fastckpt.errors import NotFoundError\n"
        "from fastckpt.storage import open_file, publish, read_at\n"
        "assert sys.getfilesystemencoding() != 'utf-8'\n"
        "publish(sys.argv[1], b'content')\n"
        "with open_file(sys.argv[1]) as (fd, status):\n"
        "    assert read_at(fd, status.st_size, 0) == b'content'\n"
        "try:\n"
        "    open_file(sys.argv[1] + 'x').__enter__()\n"
        "except NotFoundError as error:\n"
        "    str(error).encode('utf-8')\n"
    )
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PATH": os.environ["PATH"]}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(fastckpt.storage.__file__).parents[1]), *filter(None, sys.path)])
    name = "检查点-é".encode() + b"\xff"
    done = subprocess.run([sys.executable, "-c", code, os.fsencode(tmp_path) + b"/" + name], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    assert os.listdir(os.fsencode(tmp_path)) == [name]


# Looking, listing, removing


def test_exists(tmp_path: Path) -> None:
    """Whatever is at a path is there; what is missing, also below a file, is not; what cannot be told is an error."""
    (tmp_path / "file").touch()
    os.symlink("nowhere", tmp_path / "dangling")
    os.symlink("circle", tmp_path / "circle")
    assert [exists(tmp_path / name) for name in ("", "file", "missing", "file/below", "dangling")] == [True, True, False, False, False]
    with pytest.raises(StorageError):
        exists(tmp_path / "circle")


def test_walk(tmp_path: Path) -> None:
    """The regular files below a directory, sorted, those behind links to files too; links to directories are not entered, so it ends."""
    for name in ("b/f", "a/f", "a/c/f", "z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "a" / "fifo")
    os.symlink("..", tmp_path / "a" / "up")
    os.symlink("nowhere", tmp_path / "a" / "dangling")
    os.symlink("f", tmp_path / "a" / "link")
    assert list(walk(tmp_path)) == [str(tmp_path / name) for name in ("a/c/f", "a/f", "a/link", "b/f", "z")]
    assert list(walk(tmp_path / "z")) == [str(tmp_path / "z")]
    with pytest.raises(NotFoundError):
        list(walk(tmp_path / "missing"))


def test_remove(tmp_path: Path) -> None:
    """A file is removed, of a link the link; False where nothing is; a directory is refused."""
    (tmp_path / "file").touch()
    os.symlink("file", tmp_path / "link")
    assert [remove(tmp_path / name) for name in ("link", "missing", "missing/below")] == [True, False, False]
    assert everything_in(tmp_path) == ["file"]
    assert remove(tmp_path / "file") is True
    with pytest.raises(StorageError):
        remove(tmp_path)
    assert tmp_path.is_dir()


# D1: many at a time


def version(subject: Subject, n: int) -> Any:
    """The n-th version: all of it says n, and its length differs from its neighbours'."""
    if subject is PUBLISH:
        return b"%09d" % n * (1000 + n % 977)
    return {"n": n, "filler": [n] * (500 + n % 499), "text": f"{n} " * (300 + n % 211)}


def number(subject: Subject, found: Any) -> int:
    return int(found[:9]) if subject is PUBLISH else found["n"]


@needs_posix
@each_subject
def test_d1_two_processes_save_the_same_path(subject: Subject, tmp_path: Path) -> None:
    """FAULTS D1: two processes save to one path as fast as they can, two others load: each read is one whole version; nothing is left over."""
    path, end = tmp_path / "f", time.monotonic() + 2.5
    subject.save(path, version(subject, 0))

    def write(first: int) -> Callable[[], None]:
        def run() -> None:
            n = first
            while time.monotonic() < end:
                subject.save(path, version(subject, n))
                n += 2
            assert n - first > 40, "too slow to show anything"

        return run

    def read() -> None:
        seen = set()
        while time.monotonic() < end:
            found = subject.load(path)
            n = number(subject, found)
            assert_same(found, version(subject, n))
            seen.add(n)
        assert len(seen) > 10, "too slow to show anything"

    in_child(write(1), write(2), read, read)
    assert os.listdir(tmp_path) == ["f"]


# The model and the disk


def script(storage: Storage, root: str) -> list[object]:
    """Everything a filesystem is asked for, right and wrong; what came of it, with descriptors and inode numbers made comparable."""
    outcomes: list[object] = []
    known: dict[int, int] = {}

    def path(name: str) -> str:
        return os.path.join(root, name)

    def do(name: str, *arguments: Any) -> Any:
        try:
            result = getattr(storage, name)(*arguments)
        except OSError as error:
            outcomes.append((name, error.errno, type(error).__name__))
            return None
        if isinstance(result, os.stat_result):
            inode = known.setdefault(result.st_ino, len(known))
            directory = stat.S_ISDIR(result.st_mode)
            outcomes.append((name, oct(result.st_mode), inode, None if directory else result.st_size))
        elif name == "open":
            outcomes.append((name, "opened"))
        elif name == "list":
            outcomes.append((name, sorted(result)))
        elif name != "resolve":
            outcomes.append((name, result))
        return result

    create = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    do("mkdir", path("d"))
    do("mkdir", path("d"))
    do("mkdir", path("missing/d"))
    do("open", path("f"), os.O_RDONLY)
    fd = do("open", path("f"), create)
    do("open", path("f"), create)
    do("open", path("missing/f"), create)
    do("open", path("f/f"), create)
    do("open", path("x" * 256), create)
    do("open", path("f"), os.O_RDONLY | os.O_DIRECTORY)
    do("open", path("d"), os.O_WRONLY)
    do("write", fd, memoryview(b"hello"), 0)
    do("write", fd, memoryview(b"world"), 10)
    do("write", fd, memoryview(b""), 100)
    do("read", fd, 5, 0)
    do("chmod", fd, 0o640)
    do("stat", fd)
    do("stat", path("f"))
    do("stat", path("missing"))
    do("stat", path("f/f"))
    do("stat", path("d"))
    do("sync", fd)
    do("close", fd)
    do("close", fd)
    do("write", fd, memoryview(b"late"), 0)
    do("sync", fd)
    reader = do("open", path("f"), os.O_RDONLY)
    do("read", reader, 100, 0)
    do("read", reader, 3, 12)
    do("read", reader, 3, 100)
    do("write", reader, memoryview(b"no"), 0)
    do("unlink", path("missing"))
    do("unlink", path("d"))
    do("list", root)
    do("list", path("missing"))
    do("list", path("f"))
    do("replace", path("missing"), path("f"))
    do("replace", path("f"), path("d"))
    do("replace", path("d"), path("f"))
    do("replace", path("f"), path("missing/f"))
    do("replace", path("f"), path("f"))
    do("replace", path("f"), path("d/g"))
    do("stat", path("d/g"))
    do("stat", reader)
    do("unlink", path("d/g"))
    do("read", reader, 5, 0)
    do("stat", path("d/g"))
    both = do("open", path("g"), os.O_RDWR | os.O_CREAT)
    do("write", both, memoryview(b"12345"), 0)
    again = do("open", path("g"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    do("read", both, 5, 0)
    do("write", both, memoryview(b"12345"), 0)
    do("truncate", both, 2)
    do("truncate", both, 6)
    do("read", both, 10, 0)
    do("truncate", reader, 1)
    do("sync_data", both)
    do("link", path("g"), path("h"))
    do("link", path("g"), path("h"))
    do("link", path("missing"), path("i"))
    do("link", path("d"), path("i"))
    do("link", path("g"), path("missing/i"))
    do("stat", path("h"))
    do("lock", both)
    do("lock", both)
    do("lock", again)
    folder = do("open", path("d"), os.O_RDONLY | os.O_DIRECTORY)
    do("sync", folder)
    do("read", folder, 1, 0)
    do("list", path("d"))
    do("close", both)
    do("lock", again)
    do("lock", both)
    for open_fd in (reader, again, folder):
        do("close", open_fd)
    return outcomes


@needs_linux
def test_model_answers_as_the_disk_does(tmp_path: Path, umask: None) -> None:
    """Each call on the model returns, or fails, as the same call on the real disk."""
    assert_same(script(ModelStorage(folders=["/disk"]), "/disk"), script(DISK, str(tmp_path)))


@needs_posix
def test_in_child_reports_a_failure(tmp_path: Path) -> None:
    """The helper that runs a piece of a test in a child fails when the piece fails, hangs or dies."""
    in_child(lambda: None)
    for wrong in (lambda: pytest.fail("as it should"), lambda: os._exit(3), lambda: time.sleep(5)):
        with pytest.raises(pytest.fail.Exception):
            in_child(wrong, timeout=1)
