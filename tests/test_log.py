"""Logging touches one logger, says once what is said once, and leaves a program's own set-up alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from octavo.log import OnceFilter, configure_logging, get_logger, log_once


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Put the logger back as it was."""
    logger = logging.getLogger("octavo")
    before = (logger.level, list(logger.handlers), logger.propagate, list(logging.getLogger().handlers))
    yield
    logger.level, logger.handlers, logger.propagate, logging.getLogger().handlers = before


def test_messages_of_the_level_and_above_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().handlers = []
    logging.getLogger("octavo").handlers = []
    configure_logging("warning")
    logger = get_logger("octavo.some.module")
    logger.warning("seen %d", 1)
    logger.info("not seen")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("WARNING octavo.some.module: seen 1\n")
    assert captured.err.count("\n") == 1


def test_configuring_again_changes_the_level_only() -> None:
    logging.getLogger().handlers = []
    logging.getLogger("octavo").handlers = []
    configure_logging("warning")
    configure_logging("debug")
    logger = logging.getLogger("octavo")
    assert (logger.level, len(logger.handlers)) == (logging.DEBUG, 1)


def test_a_programs_own_handlers_are_kept() -> None:
    own = logging.NullHandler()
    logging.getLogger().handlers = [own]
    logging.getLogger("octavo").handlers = []
    configure_logging("info")
    assert logging.getLogger("octavo").handlers == []
    assert logging.getLogger("octavo").propagate
    assert logging.getLogger().handlers == [own]


def test_once_is_once_for_each_text(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("octavo.once.test")
    handler = logging.StreamHandler()
    handler.addFilter(OnceFilter())
    logger.handlers, logger.propagate = [handler], False
    for name in ("a", "a", "b", "a"):
        log_once(logger, logging.WARNING, "no kernel for %s", name)
    logger.warning("plain")
    logger.warning("plain")
    assert capsys.readouterr().err.splitlines() == ["no kernel for a", "no kernel for b", "plain", "plain"]
