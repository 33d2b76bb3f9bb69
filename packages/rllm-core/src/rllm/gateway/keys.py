"""What a call's random numbers and tool-call ids come from: the run's seed and what is asked, never when it arrived."""

__all__ = ["CallKey", "prompt_digest"]

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class CallKey:
    """The same for the same call of the same rollout in every run, and for no two calls of a run."""

    run_seed: int
    phase: str
    task_id: str
    sample: int
    role: str
    prompt: str
    """``prompt_digest``."""
    occurrence: int
    """How often this role of the rollout had asked the same before."""

    def seed(self) -> int:
        """63 bits; the choices of one call differ by their place, which is the sampler's to see to."""
        return self._number("seed") >> 1

    def tool_call_id(self, choice: int, place: int) -> str:
        """Nine letters and digits, the one form that every template takes."""
        number = self._number("tool call", choice, place)
        return "".join(_LETTERS[number // 62**k % 62] for k in range(9))

    def _number(self, *what: str | int) -> int:
        fields = [self.run_seed, self.phase, self.task_id, self.sample, self.role, self.prompt, self.occurrence]
        data = json.dumps([*fields, *what]).encode()
        return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def prompt_digest(prompt: Sequence[int] | bytes) -> str:
    """Of token ids, or of what stands for them where there are none."""
    data = prompt if isinstance(prompt, bytes) else np.asarray(prompt, dtype="<i4").tobytes()
    return hashlib.blake2b(data, digest_size=16).hexdigest()
