"""Time one scheduling step: 256 running decodes, alone and with long prompts waiting.

    python benchmarks/scheduler.py [--running 256] [--steps 400]

No model: the worker's answer is made up. The bound is 1 ms for schedule() at 256 running requests.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def _main() -> None:
    from octavo.config.sections import SchedulerConfig
    from octavo.engine.messages import EngineRequest
    from octavo.kvcache.manager import KVCacheManager
    from octavo.kvcache.spec import KVCacheSpec, KVGroup
    from octavo.scheduler.plan import SchedulerOutput, StepOutput, StepTiming
    from octavo.scheduler.scheduler import Scheduler
    from octavo.types import SamplingParams

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    def make(*, window: bool) -> Scheduler:
        kinds = [("full", None)] + ([("sliding_window", 512)] if window else [])
        groups = [
            KVGroup(
                KVCacheSpec(kind=kind, block_size=16, num_kv_heads=8, head_dim=128, dtype="bf16", window=span), (0,)
            )
            for kind, span in kinds
        ]
        cache = KVCacheManager(groups, 60_000, enable_prefix_caching=True, hash_secret=b"benchmark")
        config = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=args.running + 8)
        return Scheduler(config, cache, max_model_len=8192)

    def request(name: str, length: int, first: int) -> EngineRequest:
        params = SamplingParams(max_tokens=4000, temperature=0.0)
        prompt = [first, *range(2, length + 1)]
        return EngineRequest(id=name, prompt=prompt, params=params, arrival=0.0, max_new_tokens=4000)

    def answer(plan: SchedulerOutput) -> StepOutput:
        rows = [row for row, samples in zip(plan.rows, plan.samples, strict=True) if samples]
        return StepOutput(plan.step, rows, [[7]] * len(rows), [None] * len(rows), {}, [], StepTiming())

    def measure(scheduler: Scheduler, steps: int, before: Callable[[int], None]) -> tuple[list[float], list[float]]:
        schedules, updates = [], []
        for step in range(steps):
            before(step)
            begin = time.perf_counter()
            plan = scheduler.schedule()
            middle = time.perf_counter()
            assert plan is not None
            output = answer(plan)
            start = time.perf_counter()
            scheduler.update(plan, output, step_s=0.05)
            updates.append(time.perf_counter() - start)
            schedules.append(middle - begin)
        return schedules, updates

    print("| running | case | schedule() median ms | p99 ms | update() median ms | p99 ms |\n|--:|---|--:|--:|--:|--:|")
    for case in ("decodes", "decodes, two KV groups", "decodes and long prompts"):
        scheduler = make(window="two" in case)
        for index in range(args.running):
            scheduler.add(request(f"r{index}", 100, 1000 + index))
        while any(not running.is_decoding for running in scheduler.running) or scheduler.num_waiting:
            plan = scheduler.schedule()
            assert plan is not None
            scheduler.update(plan, answer(plan))

        def before(step: int, scheduler: Scheduler = scheduler, case: str = case) -> None:
            if "prompts" in case and scheduler.num_waiting < 4:
                scheduler.abort([f"p{step - 40}"])
                scheduler.add(request(f"p{step}", 4000, 100_000 + step))

        schedules, updates = measure(scheduler, args.steps, before)
        cells = [
            f"{1000 * value:.2f}"
            for times in (schedules, updates)
            for value in (statistics.median(times), sorted(times)[int(0.99 * len(times))])
        ]
        print(f"| {args.running} | {case} | {' | '.join(cells)} |")


if __name__ == "__main__":
    _main()
