"""Time from process start to the first token, and what of it is importing torch.

    python benchmarks/startup.py [--model FILE.gguf] [--repeats 5]

Each run is a new process; the first is cold (file cache, byte code) and left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

PROGRAM = """
import json, sys, time
begin = time.perf_counter()
{torch}
torch_s = time.perf_counter() - begin
from octavo import LLM, SamplingParams
llm = LLM({model!r})
loaded = time.perf_counter()
llm.generate("Hello", SamplingParams(max_tokens=1, temperature=0), use_tqdm=False)
now = time.perf_counter()
print(json.dumps({{"torch_s": torch_s, "load_s": loaded - begin - torch_s, "first_token_s": now - loaded}}))
"""


def measure(model: str | None) -> dict[str, float]:
    """Start one process and return its seconds by stage."""
    program = PROGRAM.format(model=model, torch="import torch")
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    total = time.perf_counter() - begin
    stages = json.loads(done.stdout.splitlines()[-1])
    return {"total_s": total, "all_but_torch_s": total - stages["torch_s"], **stages}


def main() -> None:
    """Print medians and spreads as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    measure(args.model)
    runs = [measure(args.model) for _ in range(args.repeats)]
    print("| stage | median s | min-max |\n|---|--:|--:|")
    for stage in runs[0]:
        values = [run[stage] for run in runs]
        print(f"| {stage} | {statistics.median(values):.2f} | {min(values):.2f}-{max(values):.2f} |")


if __name__ == "__main__":
    main()
