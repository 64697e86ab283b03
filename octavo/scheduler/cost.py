"""What steps cost, measured: how long a pure decode step takes, and a prefill token."""

from __future__ import annotations

__all__ = ["StepCost"]

SMOOTHING = 0.25  # weight of the newest measurement


class StepCost:
    """Running estimates, in seconds; 0.0 while nothing is known."""

    def __init__(self) -> None:
        self.decode_step_s = 0.0
        self.prefill_token_s = 0.0

    def observe(self, step_s: float, num_decodes: int, num_prefill_tokens: int) -> None:
        """Take one step's duration in: pure decodes, or what prefill tokens added to them."""
        if num_prefill_tokens == 0:
            if num_decodes:
                self.decode_step_s = _blend(self.decode_step_s, step_s)
        else:
            base = self.decode_step_s if num_decodes else 0.0
            self.prefill_token_s = _blend(self.prefill_token_s, max(0.0, step_s - base) / num_prefill_tokens)

    def prefill_budget(self, stretch: float, fallback: int) -> int:
        """Return how many prefill tokens make a decode step `stretch` times as long."""
        if not self.decode_step_s or not self.prefill_token_s:
            return fallback
        return int((stretch - 1) * self.decode_step_s / self.prefill_token_s)


def _blend(old: float, new: float) -> float:
    return new if not old else old + SMOOTHING * (new - old)
