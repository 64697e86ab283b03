"""octavo: an LLM inference and serving engine, fast on the machine you have."""
