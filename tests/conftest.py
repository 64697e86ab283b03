"""What every test gets: one compute thread, no network, and a clean environment of debug switches."""

from __future__ import annotations

import os

# Before any library starts its threads: the tests run several processes on few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.pop("OCTAVO_TRACEBACK", None)

pytest_plugins = ["tests.models_on_disk"]
