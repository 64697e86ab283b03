"""Generate offline: completions, a chat, and a stream of one answer.

python examples/offline.py [MODEL]    MODEL: a folder, a GGUF file or a hub name; default: the demo model
"""

from __future__ import annotations

import sys

from octavo import LLM, SamplingParams


def main() -> None:
    """Run the three ways of asking."""
    llm = LLM(sys.argv[1] if len(sys.argv) > 1 else None, max_num_seqs=8)

    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=32, seed=1)
    for output in llm.generate(["The capital of France is", "The three primary colours are"], params):
        print(repr(output.outputs[0].text), output.outputs[0].finish_reason)

    messages = [{"role": "user", "content": "Name one planet."}]
    answer = llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=32))[0]
    print(answer.outputs[0].text)

    for delta in llm.stream("Once upon a time", SamplingParams(temperature=0.0, max_tokens=24)):
        print(delta.outputs[0].text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
