"""Whatever arrives, however tight the memory: every read is right, every request ends once, every block comes back."""

from __future__ import annotations

import pytest

from octavo.types import FinishReason
from tests.scheduler.simulator import Scenario, Simulation

WINDOWS: dict[str, tuple[int | None, ...]] = {
    "full": (None,),
    "window": (10,),
    "full and window": (None, 10),
    "windows and full": (6, None, 6),
}
FIELDS: dict[str, dict[str, object]] = {
    "default": {},
    "priority": {"policy": "priority", "priority_ageing_s": 0.2},
    "whole prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 96},
    "no cache": {"enable_prefix_caching": False},
    "no prefix wait": {"prefix_wait": False, "max_step_stretch": 0.0},
    "small chunks": {"long_prefill_threshold": 5, "max_num_batched_tokens": 12},
}


def _tight(windows: tuple[int | None, ...]) -> int:
    """Blocks for little more than one request of the longest length."""
    return 3 + 26 * len(windows)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("windows", WINDOWS)
def test_random_traffic_with_room(windows: str, fields: str, depth: int) -> None:
    for seed in range(2):
        Simulation(Scenario(seed, WINDOWS[windows], depth=depth, fields=FIELDS[fields])).run()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("windows", WINDOWS)
def test_random_traffic_in_tight_memory(windows: str, fields: str, depth: int) -> None:
    preemptions = 0
    for seed in range(2):
        kinds = WINDOWS[windows]
        simulation = Simulation(
            Scenario(seed, kinds, depth=depth, num_blocks=_tight(kinds), failure_rate=0.01, fields=FIELDS[fields])
        )
        simulation.run()
        preemptions += simulation.scheduler.stats().preemptions
    if windows == "full":
        assert preemptions > 0


def test_failed_rows_end_with_an_error_and_leave_no_trace() -> None:
    simulation = Simulation(Scenario(5, failure_rate=1.0, abort_rate=0.0))
    simulation.run()
    finishes = {output.finish for output in simulation.ends.values()}
    assert finishes <= {FinishReason.ERROR, FinishReason.ABORT}
    assert simulation.cache.pool.num_cached == 0


def test_shared_prefixes_are_computed_once() -> None:
    simulation = Simulation(Scenario(6, abort_rate=0.0, num_requests=60))
    simulation.run()
    assert simulation.scheduler.stats().prefix_hits > 0
