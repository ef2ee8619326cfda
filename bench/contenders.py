"""What is compared: ways to keep a training state on the disk, behind one small interface.

Every contender is handed a workload, and gives back the payload that the replaced module would have written. It imports what it
needs when it is made, in its own process, so that nobody pays for another's libraries.
"""

# ruff: noqa: D102 (what the methods owe stands in `Contender`)

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import os
import pickle
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from .shapes import CaseSample, Probation, RejectedEdit, SystemCasePack, ToolCasePack
from .workloads import Training, Workload


def write_durably(path: Path, data: bytes, *, fsync: bool = True) -> None:
    """Temporary file, fsync, rename, fsync of the directory: what a save without a library has to do to survive a power cut."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        if fsync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if fsync:
        sync(path.parent)


def sync(path: Path) -> None:
    """fsync of a file or a directory by name; nothing where directories cannot be opened (Windows)."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Contender(ABC):
    """One way to save and to load, in a directory of its own."""

    name: ClassVar[str]
    requires: ClassVar[str] = ""
    """The module that must be importable, of the extra `bench`; empty for what is always there."""
    optional: ClassVar[bool] = False
    """Whether a table without it is complete enough: it is then left out aloud where its module is missing."""
    slow: ClassVar[bool] = False
    """Whether it is given fewer steps of a long run."""
    durable: ClassVar[bool] = True
    ours: ClassVar[bool] = False
    """Whether it is what is measured, rather than what it is measured against: a state that it cannot hold is then an error."""

    def __init__(self, workspace: Path, work: Workload) -> None:
        self.workspace, self.work = workspace, work

    @abstractmethod
    def save(self, step: int) -> None:
        """All that an application waits for until the live state is as safe as this contender makes it."""

    def submit(self, step: int) -> None:
        """What the loop waits for; the rest of the save may go on in the background."""
        self.save(step)

    def finish(self) -> None:  # noqa: B027 (most have nothing there)
        """Wait for what goes on in the background."""

    @abstractmethod
    def load(self) -> Any:
        """The newest payload, in whatever objects this contender gives back."""

    def load_step(self, step: int) -> Any:
        """That of an earlier step, where all are kept."""
        raise TypeError(f"{self.name} keeps the last step alone, not step {step}")

    def close(self) -> None:  # noqa: B027 (most have nothing open)
        """Let go of the files."""

    def file_bytes(self) -> int:
        """What lies on the disk."""
        return sum(path.stat().st_size for path in self.workspace.iterdir() if not path.name.endswith((".tmp", ".lock")))


class OneFile(Contender):
    """Contenders that replace one file by the whole state with each save; `encode` and `decode` are all that they differ in."""

    file_name: ClassVar[str] = "checkpoint.json"

    @abstractmethod
    def encode(self, step: int) -> bytes:
        """The live state as bytes."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """The payload of `encode`."""

    def save(self, step: int) -> None:
        write_durably(self.workspace / self.file_name, self.encode(step), fsync=self.durable)

    def load(self) -> Any:
        return self.decode((self.workspace / self.file_name).read_bytes())


class Replaced(OneFile):
    """The replaced module as it is: asdict, indent=2 (which is CPython's slow encoder), rename, no fsync."""

    name = "replaced module"
    durable = False
    slow = True

    def encode(self, step: int) -> bytes:
        return json.dumps(self.work.plain(step), ensure_ascii=False, indent=2).encode()

    def decode(self, data: bytes) -> Any:
        # As text, line ends looked at: that is how the replaced module read.
        return json.load(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


class ReplacedDurably(Replaced):
    """The replaced module with an fsync of file and directory."""

    name = "replaced module + fsync"
    durable = True


class CompactJson(Replaced):
    """The least change to the replaced module: the same payload without whitespace (the C encoder), made durable."""

    name = "json compact + fsync"
    durable = True

    def encode(self, step: int) -> bytes:
        return json.dumps(self.work.plain(step), ensure_ascii=False, separators=(",", ":")).encode()


class Orjson(OneFile):
    """The fastest JSON: orjson walks the dataclasses itself, no asdict; made durable."""

    name = "orjson + fsync"
    requires = "orjson"

    def __init__(self, workspace: Path, work: Workload) -> None:
        super().__init__(workspace, work)
        self._library = importlib.import_module("orjson")

    def encode(self, step: int) -> bytes:
        return bytes(self._library.dumps(self.work.live(step)))

    def decode(self, data: bytes) -> Any:
        return self._library.loads(data)


class OrjsonUnsafe(Orjson):
    """The same without any fsync: what speed alone is to be had for."""

    name = "orjson, no fsync"
    durable = False


class Pickle(OneFile):
    """Pickle's newest protocol, which keeps the application's classes and runs code when it loads; made durable."""

    name = "pickle 5 + fsync"
    file_name = "checkpoint.pickle"

    def encode(self, step: int) -> bytes:
        return pickle.dumps(self.work.live(step), protocol=5)

    def decode(self, data: bytes) -> Any:
        return pickle.loads(data)


class Msgpack(OneFile):
    """The whole state as msgpack in zstd, in one file; made durable."""

    name = "ormsgpack + zstd + fsync"
    file_name = "checkpoint.msgpack.zst"
    requires = "ormsgpack"
    optional = True

    def __init__(self, workspace: Path, work: Workload) -> None:
        super().__init__(workspace, work)
        self._msgpack, self._zstd = importlib.import_module("ormsgpack"), importlib.import_module("zstandard")

    def encode(self, step: int) -> bytes:
        return bytes(self._zstd.ZstdCompressor(level=1).compress(self._msgpack.packb(self.work.live(step))))

    def decode(self, data: bytes) -> Any:
        return self._msgpack.unpackb(self._zstd.ZstdDecompressor().decompress(data))


class Sqlite(Contender):
    """A database that keeps every step: WAL, synchronous=FULL, one row with one blob a step (msgpack, by the fastest encoder there is)."""

    name = "SQLite, one blob a step"

    def __init__(self, workspace: Path, work: Workload) -> None:
        super().__init__(workspace, work)
        self._database = sqlite3.connect(workspace / "checkpoint.sqlite", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode=WAL",
            "PRAGMA synchronous=FULL",
            "CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY, state BLOB)",
        ):
            self._database.execute(statement)

    def save(self, step: int) -> None:
        self._database.execute("INSERT INTO steps VALUES (?, ?)", (step, msgspec.msgpack.encode(self.work.live(step))))

    def load(self) -> Any:
        return self._decoded("SELECT state FROM steps ORDER BY step DESC LIMIT 1")

    def load_step(self, step: int) -> Any:
        return self._decoded("SELECT state FROM steps WHERE step = ?", step)

    def _decoded(self, query: str, *arguments: int) -> Any:
        [state] = self._database.execute(query, arguments).fetchone()
        return msgspec.msgpack.decode(state)

    def close(self) -> None:
        self._database.close()


class LangGraph(Contender):
    """LangGraph's `SqliteSaver` as it comes, with its own serialiser: one thread, one checkpoint a step, the state in one channel."""

    name = "LangGraph SqliteSaver"
    requires = "langgraph.checkpoint.sqlite"
    optional = True
    slow = True

    def __init__(self, workspace: Path, work: Workload) -> None:
        super().__init__(workspace, work)
        self._empty = importlib.import_module("langgraph.checkpoint.base").empty_checkpoint
        saver = importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver
        serialiser = importlib.import_module("langgraph.checkpoint.serde.jsonplus").JsonPlusSerializer
        # Each class that it restores and was not told of is a warning.
        known = serialiser(allowed_msgpack_modules=[CaseSample, Probation, RejectedEdit, SystemCasePack, ToolCasePack])
        self._connection = sqlite3.connect(workspace / "checkpoint.sqlite", check_same_thread=False)
        self._saver = saver(self._connection, serde=known)
        self._config: Any = {"configurable": {"thread_id": "run", "checkpoint_ns": ""}}

    def save(self, step: int) -> None:
        # Its serialiser knows dataclasses: making plain data of them first would be half of its time, and no part of what it asks for.
        checkpoint = {**self._empty(), "channel_values": {"state": self.work.live(step)}, "channel_versions": {"state": step + 1}}
        self._config = self._saver.put(self._config, checkpoint, {"source": "loop", "step": step, "parents": {}}, {"state": step + 1})

    def load(self) -> Any:
        newest = self._saver.get_tuple({"configurable": {"thread_id": "run", "checkpoint_ns": ""}})
        return newest.checkpoint["channel_values"]["state"]

    def close(self) -> None:
        self._connection.close()


class Gepa(Contender):
    """GEPA's way: the state by pickle's default protocol, and its records as two indented JSON files for people; nothing is synced."""

    name = "GEPA's way, no fsync"
    optional = True
    slow = True
    durable = False

    def save(self, step: int) -> None:
        with open(self.workspace / "gepa_state.bin.tmp", "wb") as file:
            pickle.dump(self.work.live(step), file)
        os.replace(self.workspace / "gepa_state.bin.tmp", self.workspace / "gepa_state.bin")
        for name, part in self._records(self.work.plain(step)):
            with open(self.workspace / f"{name}.tmp", "w", encoding="utf-8") as text:
                json.dump(part, text, indent=2)
            os.replace(self.workspace / f"{name}.tmp", self.workspace / name)

    @staticmethod
    def _records(plain: Any) -> list[tuple[str, Any]]:
        """The traces as the log of the run, the rest of the records as candidates."""
        fields = plain.get("state", plain) if isinstance(plain, dict) else {"records": plain}
        log = {name: value for name, value in fields.items() if name.endswith(("packs", "records"))}
        return [("run_log.json", log), ("candidates.json", {name: value for name, value in fields.items() if name not in log})]

    def load(self) -> Any:
        return pickle.loads((self.workspace / "gepa_state.bin").read_bytes())


class Fastckpt(Contender):
    """Ours, one checkpoint in one file: by the functions of the replaced module where the state is its, else by `save` and `load`."""

    name = "fastckpt, one file"
    file_name: ClassVar[str] = "checkpoint.fastckpt"
    ours = True
    storage: Any = None
    """What stands in for the disk, if anything."""

    def __init__(self, workspace: Path, work: Workload) -> None:
        super().__init__(workspace, work)
        from fastckpt import dropin, file  # noqa: PLC0415 (in the process that needs it, and in no other)

        self._dropin, self._file = dropin, file

    def save(self, step: int) -> None:
        on = {} if self.storage is None else {"storage": self.storage}
        if isinstance(self.work, Training):
            around = self.work.around(step)
            self._dropin.write_checkpoint(self.workspace, state=self.work.state, **around, **on)
        else:
            self._file.save(self.workspace / self.file_name, self.work.typed(step), **on)

    def load(self) -> Any:
        on = {} if self.storage is None else {"storage": self.storage}
        if isinstance(self.work, Training):
            return self._dropin.load_checkpoint(self.workspace, **on)
        return self._file.load(self.workspace / self.file_name, **on)


class Run(Contender):
    """Ours as a run: every step kept in one file, durable when `save` returns; the manager's defaults."""

    name = "fastckpt run, sync"
    ours = True
    durability: ClassVar[Literal["sync", "async"]] = "sync"
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, workspace: Path, work: Workload) -> None:
        super().__init__(workspace, work)
        from fastckpt import CheckpointManager  # noqa: PLC0415 (as above)

        self.manager: Any = CheckpointManager(workspace, work.type, durability=self.durability, **self.options)

    def save(self, step: int) -> None:
        self.submit(step)
        self.finish()

    def submit(self, step: int) -> None:
        self.manager.save(step, self.work.typed(step))

    def finish(self) -> None:
        if self.durability == "async":
            self.manager.wait_until_finished()

    def load(self) -> Any:
        return self.manager.restore()

    def load_step(self, step: int) -> Any:
        return self.manager.restore(step)

    def close(self) -> None:
        self.manager.close()


class KeptRun(Run):
    """Ours as a run that keeps its newest 100 steps, so that compactions are part of its times."""

    name = "fastckpt run, newest 100"
    options: ClassVar[dict[str, Any]] = {"max_to_keep": 100}


class BackgroundRun(Run):
    """Ours as a run with `durability="async"`: the caller encodes, a thread does the rest."""

    name = "fastckpt run, async"
    durability = "async"

    def block(self, step: int) -> tuple[float, float]:
        """Thread seconds of a bare encode of the state, and of the caller in a save of the same; every other step the save comes first."""
        value = self.work.typed(step)
        calls: list[tuple[str, Callable[[], object]]] = [
            ("bare", lambda: msgspec.msgpack.encode(value)),
            ("save", lambda: self.manager.save(step, value)),
        ]
        times = {}
        for name, call in calls[:: -1 if step % 2 else 1]:
            # Without it the first of the two would fetch the state from memory for the other.
            msgspec.msgpack.encode(value)
            start = time.thread_time()
            call()
            times[name] = time.thread_time() - start
            self.manager.wait_until_finished()
        return times["bare"], times["save"]


class Bare(OneFile):
    """msgspec alone, as the type of the state: nothing can encode it and be faster than that."""

    name = "msgspec, bare"

    def __init__(self, workspace: Path, work: Workload) -> None:
        super().__init__(workspace, work)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(work.type)

    def encode(self, step: int) -> bytes:
        return msgspec.msgpack.encode(self.work.typed(step))

    def decode(self, data: bytes) -> Any:
        return self._decoder.decode(data)


class Ours(OneFile):
    """What fastckpt encodes and decodes: msgspec where it is lossless, our own types of value elsewhere."""

    name = "fastckpt codec"
    ours = True

    def __init__(self, workspace: Path, work: Workload) -> None:
        super().__init__(workspace, work)
        from fastckpt.codec import Codec  # noqa: PLC0415 (in the process that needs it)

        self._codec, self._has_ext = Codec(work.type, compact=True), False

    def encode(self, step: int) -> bytes:
        encoded = self._codec.encode(self.work.typed(step))
        self._has_ext = encoded.has_ext
        return bytes(memoryview(encoded.message))

    def decode(self, data: bytes) -> Any:
        return self._codec.decode(data, self._has_ext)


class Nothing(Contender):
    """A loop that saves nothing: what the others are compared with where a loop is timed."""

    name = "without saving"
    _step = 0

    def save(self, step: int) -> None:
        self._step = step

    def load(self) -> Any:
        return self.work.plain(self._step)


EVERY: tuple[type[Contender], ...] = (
    Replaced, ReplacedDurably, CompactJson, Orjson, OrjsonUnsafe, Pickle, Msgpack, Sqlite, LangGraph, Gepa,
    Fastckpt, Run, KeptRun, BackgroundRun, Bare, Ours, Nothing,
)  # fmt: skip
CONTENDERS: dict[str, type[Contender]] = {contender.name: contender for contender in EVERY}
BASELINE, ONE_FILE, SYNC, ASYNC = Replaced.name, Fastckpt.name, Run.name, BackgroundRun.name


def installed(contender: type[Contender]) -> bool:
    """Whether what it requires can be imported."""
    try:
        return not contender.requires or importlib.util.find_spec(contender.requires) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
