"""docs/sampling.md names every field, and its example of a custom processor works as printed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import InvalidRequestError
from octavo.sampling.custom import load, validate
from octavo.types import BeamSearchParams, SamplingParams
from tests.sampling.table import Bench

TEXT = (Path(__file__).parents[2] / "docs/sampling.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("field", [*SamplingParams.__struct_fields__, *BeamSearchParams.__struct_fields__])
def test_every_field_has_a_row(field: str) -> None:
    assert re.search(rf"^\| [^|]*`{field}`", TEXT, re.MULTILINE)


def test_the_custom_processor_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "documented_processor.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    custom = load(["documented_processor:Digits"], 20)
    bench = Bench(20, custom=custom)
    x = np.zeros((2, 20), np.float32)
    x[:, 3] = 1
    for row, boost in ((0, 5.0), (1, 0)):
        params = SamplingParams(temperature=0, extra_args={"boost": boost})
        validate(custom, params)
        bench.add(row, params)
    assert bench.sample(x, [0, 1]).tokens == [15, 3]
    with pytest.raises(InvalidRequestError, match="boost has to be a number"):
        validate(custom, SamplingParams(extra_args={"boost": "high"}))
