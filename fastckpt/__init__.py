"""Durable, checked, compact checkpoints of nested plain-data training state.

from fastckpt import load, save

save("checkpoint.fastckpt", state)           # durable when it returns
state = load("checkpoint.fastckpt", TrainState)
"""

from .container import VERSION, Source
from .errors import (
    CheckpointError,
    CheckpointWarning,
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
from .manager import CheckpointManager, SaveStats
from .twin import from_json, to_json

__version__ = VERSION

__all__ = [
    "CheckpointError",
    "CheckpointManager",
    "CheckpointWarning",
    "ConflictError",
    "CorruptError",
    "DurabilityError",
    "EncodeError",
    "Info",
    "JsonError",
    "LimitError",
    "LockedError",
    "MissingFieldError",
    "NotACheckpointError",
    "NotFoundError",
    "Problem",
    "ReplacedError",
    "SaveInfo",
    "SaveStats",
    "SchemaError",
    "Source",
    "StepAlreadyExistsError",
    "StorageError",
    "VersionError",
    "__version__",
    "from_json",
    "inspect",
    "load",
    "save",
    "to_json",
    "verify",
]
