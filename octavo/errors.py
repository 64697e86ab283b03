"""The exception tree.

OctavoError
├── InvalidRequestError (ValueError)   one request is wrong; names the parameter            -> HTTP 400
│   └── ContextLengthError             prompt and max_tokens do not fit the context         -> HTTP 400
├── ConfigError (ValueError)           a configuration value or combination is wrong
├── ModelNotFoundError                 no such model here, and how to get it
├── CheckpointError (ValueError)       a model file is damaged, hostile or incomplete
│   └── UnsupportedModelError          a sound file that this version cannot run
├── TemplateError (ValueError)         a chat template failed or exceeded its budget        -> HTTP 400
├── CapacityError                      a queue or memory limit; try again later             -> HTTP 429
├── RequestFailedError                 one request failed inside the engine; others go on   -> HTTP 500
├── EngineDeadError                    the engine cannot serve any more; carries the cause  -> HTTP 503
└── MissingExtraError (ImportError)    an optional package is needed; names the extra
"""

from __future__ import annotations

__all__ = [
    "CapacityError",
    "CheckpointError",
    "ConfigError",
    "ContextLengthError",
    "EngineDeadError",
    "InvalidRequestError",
    "MissingExtraError",
    "ModelNotFoundError",
    "OctavoError",
    "RequestFailedError",
    "TemplateError",
    "UnsupportedModelError",
]


class OctavoError(Exception):
    """Root of every error that octavo raises on purpose."""


class InvalidRequestError(OctavoError, ValueError):
    """Reject one request; `param` names the field at fault (dotted path) or is None."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(InvalidRequestError):
    """Reject a request whose prompt and max_tokens do not fit the model's context."""


class ConfigError(OctavoError, ValueError):
    """Reject a configuration; `field` names the field at fault or is None."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ModelNotFoundError(OctavoError):
    """Say that a model is not here and how to get it."""


class CheckpointError(OctavoError, ValueError):
    """Reject a model file that is damaged, hostile or incomplete."""


class UnsupportedModelError(CheckpointError):
    """Reject a sound checkpoint that this version cannot run."""


class TemplateError(OctavoError, ValueError):
    """Report a chat template that failed, or exceeded its time or size budget."""


class CapacityError(OctavoError):
    """Refuse work for now: a queue or memory limit is reached."""


class RequestFailedError(OctavoError):
    """Report a request that failed inside the engine."""


class EngineDeadError(OctavoError):
    """Report an engine that cannot serve any more."""


class MissingExtraError(OctavoError, ImportError):
    """Name the optional package that is needed and the extra that brings it."""
