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
    MissingFieldError,
    NotACheckpointError,
    NotFoundError,
    SchemaError,
    StorageError,
    VersionError,
)
from .file import Info, Problem, SaveInfo, inspect, load, save, verify
from .twin import from_json, to_json

__version__ = VERSION

__all__ = [
    "CheckpointError",
    "CheckpointWarning",
    "ConflictError",
    "CorruptError",
    "DurabilityError",
    "EncodeError",
    "Info",
    "JsonError",
    "LimitError",
    "MissingFieldError",
    "NotACheckpointError",
    "NotFoundError",
    "Problem",
    "SaveInfo",
    "SchemaError",
    "Source",
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
