"""Logging: one logger tree, one formatter, and messages that are said once."""

from __future__ import annotations

import logging

__all__ = ["OnceFilter", "configure_logging", "get_logger", "log_once"]

_ROOT = "octavo"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TIME = "%H:%M:%S"
_ONCE = "octavo_once"


class OnceFilter(logging.Filter):
    """Let a record marked by log_once pass once per level and text. The memory is the handler's own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, int, str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether the record is shown."""
        if not record.__dict__.get(_ONCE, False):
            return True
        key = (record.name, record.levelno, record.getMessage())
        if key in self.seen:
            return False
        self.seen.add(key)
        return True


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module; `name` is its __name__."""
    return logging.getLogger(name)


def configure_logging(level: str) -> None:
    """Show octavo's messages of `level` ("debug" ... "error") and above on stderr.

    Touches only the logger "octavo". A program that has set up logging itself keeps its own handlers and format.
    Mutates the process's logging configuration; calling it again changes the level only.
    """
    logger = logging.getLogger(_ROOT)
    logger.setLevel(level.upper())
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT, _TIME))
    handler.addFilter(OnceFilter())
    logger.addHandler(handler)
    logger.propagate = False


def log_once(logger: logging.Logger, level: int, message: str, *args: object) -> None:
    """Log a message that a handler shows once, however often it is said: a fallback and why it was chosen."""
    logger.log(level, message, *args, extra={_ONCE: True}, stacklevel=2)
