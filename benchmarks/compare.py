"""Run engines side by side on the same model file and workloads, alternating them, and print a table with the spread.

    python benchmarks/compare.py [--model FILE.gguf] [--engines octavo,transformers] [--repeats 3] [--threads 2]

Each engine lives in a process of its own, loaded once; only one works at a time. Float32, greedy, end of sequence
ignored. transformers batches statically: prompts padded on the left, every sequence runs until the longest is done.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from datasets import Workload, mixed, single

VOCAB = 30_000  # prompts use ids below this: every model compared has more


class Engine(Protocol):
    """One engine under test."""

    def run(self, workload: Workload) -> dict[str, float]:
        """Serve the workload; return seconds: total, and ttft and decode where there is one request."""
        ...


class OctavoEngine:
    """octavo's offline API."""

    def __init__(self, model: str, threads: int) -> None:
        octavo = importlib.import_module("octavo")
        self.params = octavo.SamplingParams
        self.llm = octavo.LLM(model, threads=threads, enable_prefix_caching=False, max_model_len=1024)

    def run(self, workload: Workload) -> dict[str, float]:
        """Generate all prompts at once."""
        params = [self.params(temperature=0, max_tokens=n, ignore_eos=True) for n in workload.output_lens]
        begin = time.perf_counter()
        outputs = self.llm.generate([list(p) for p in workload.prompts], params, use_tqdm=False)
        total = time.perf_counter() - begin
        assert [len(o.outputs[0].token_ids) for o in outputs] == list(workload.output_lens)
        if len(outputs) > 1:
            return {"total": total}
        timing = outputs[0].timing
        return {
            "total": total,
            "ttft": timing.first_token - timing.arrival,
            "decode": timing.last_token - timing.first_token,
        }


class TransformersEngine:
    """transformers' generate, static batch."""

    def __init__(self, model: str, threads: int) -> None:
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(threads)
        auto = importlib.import_module("transformers").AutoModelForCausalLM
        path = Path(model)
        self.model = auto.from_pretrained(path.parent, gguf_file=path.name, dtype=self.torch.float32).eval()

    def _generate(self, workload: Workload, new_tokens: int) -> float:
        width = max(map(len, workload.prompts))
        ids = self.torch.tensor([[0] * (width - len(p)) + list(p) for p in workload.prompts])
        mask = self.torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in workload.prompts])
        begin = time.perf_counter()
        with self.torch.inference_mode():
            self.model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
                pad_token_id=0,
            )
        return time.perf_counter() - begin

    def run(self, workload: Workload) -> dict[str, float]:
        """Generate the batch; for one request also with one token, which is its time to first token."""
        total = self._generate(workload, max(workload.output_lens))
        if len(workload.prompts) > 1:
            return {"total": total}
        ttft = self._generate(workload, 1)
        return {"total": total, "ttft": ttft, "decode": total - ttft}


ENGINES = {"octavo": OctavoEngine, "transformers": TransformersEngine}
WORKLOADS = {"single": single, "mixed": mixed}


def serve(name: str, model: str, threads: int) -> None:
    """Be one engine: read workload names from stdin, answer with JSON lines."""
    engine: Engine = ENGINES[name](model, threads)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(engine.run(WORKLOADS[line.strip()](VOCAB))), flush=True)


class Child:
    """An engine's process."""

    def __init__(self, name: str, model: str, threads: int) -> None:
        command = [sys.executable, __file__, "--serve", name, "--model", model, "--threads", str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise SystemExit(f"{self.process.args} ended with {self.process.wait()}")

    def run(self, workload: str) -> dict[str, float]:
        """Run one workload once."""
        assert self.process.stdin is not None
        print(workload, file=self.process.stdin, flush=True)
        return self._read()


def report(results: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    """Print medians, spreads and ratios as a Markdown table."""
    print("| workload | figure | " + " | ".join(results) + " | ratio |\n|---|---|" + "--:|" * (len(results) + 1))
    for workload, make in WORKLOADS.items():
        work = make(VOCAB)
        figures = {"output tok/s, all": lambda r, w=work: w.output_tokens / r["total"]}
        if workload == "single":
            figures |= {
                "TTFT, ms": lambda r: 1000 * r["ttft"],
                "decode tok/s": lambda r, w=work: (w.output_tokens - 1) / r["decode"],
            }
        for figure, compute in figures.items():
            columns = [[compute(run) for run in runs[workload]] for runs in results.values()]
            medians = [statistics.median(column) for column in columns]
            cells = [f"{m:.1f} ({min(c):.1f}-{max(c):.1f})" for m, c in zip(medians, columns, strict=True)]
            ratio = f"{medians[0] / medians[1]:.2f}" if len(medians) > 1 else ""
            print(f"| {work.name} | {figure} | " + " | ".join(cells) + f" | {ratio} |")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file; default: the demo model")
    parser.add_argument("--engines", default="octavo,transformers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    model = args.model or str(importlib.import_module("octavo.hf.hub").resolve_model(None))
    if args.serve:
        serve(args.serve, model, args.threads)
        return
    children = {name: Child(name, model, args.threads) for name in args.engines.split(",")}
    results: dict[str, dict[str, list[dict[str, float]]]] = {name: {w: [] for w in WORKLOADS} for name in children}
    for workload in WORKLOADS:
        for repeat in range(args.repeats + 1):
            for name, child in children.items():
                run = child.run(workload)
                if repeat:  # the first run warms up
                    results[name][workload].append(run)
                print(f"{workload} {repeat} {name}: {run}", file=sys.stderr, flush=True)
    report(results)


if __name__ == "__main__":
    main()
