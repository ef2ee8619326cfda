"""Durable, checked, compact checkpoints of nested plain-data training state.

from fastckpt import load, save

save("checkpoint.fastckpt", state)           # durable when it returns
state = load("checkpoint.fastckpt", TrainState)
"""

from .changes import Change
from .compaction import Compaction
from .container import VERSION, Source
from .errors import (
    CheckpointError,
    CheckpointWarning,
    ConfigMismatchError,
    ConflictError,
    CorruptError,
    DurabilityError,
    EncodeError,
    JsonError,
    LimitError,
    LockedError,
    MissingFieldError,
    NotACheckpointError,
    NotFoundError,
    ReplacedError,
    SchemaError,
    StepAlreadyExistsError,
    StorageError,
    VersionError,
)
from .file import Info, Problem, SaveInfo, inspect, load, save, verify
from .history import History, Point
from .manager import CheckpointManager, SaveStats
from .preempt import OnSignal
from .resume import ConfigDifference, Fingerprint, RngState, capture_rng, restore_rng
from .retention import Plan
from .tree import ABSENT
from .twin import from_json, to_json

__version__ = VERSION

__all__ = [
    "ABSENT",
    "Change",
    "CheckpointError",
    "CheckpointManager",
    "CheckpointWarning",
    "Compaction",
    "ConfigDifference",
    "ConfigMismatchError",
    "ConflictError",
    "CorruptError",
    "DurabilityError",
    "EncodeError",
    "Fingerprint",
    "History",
    "Info",
    "JsonError",
    "LimitError",
    "LockedError",
    "MissingFieldError",
    "NotACheckpointError",
    "NotFoundError",
    "OnSignal",
    "Plan",
    "Point",
    "Problem",
    "ReplacedError",
    "RngState",
    "SaveInfo",
    "SaveStats",
    "SchemaError",
    "Source",
    "StepAlreadyExistsError",
    "StorageError",
    "VersionError",
    "__version__",
    "capture_rng",
    "from_json",
    "inspect",
    "load",
    "restore_rng",
    "save",
    "to_json",
    "verify",
]
