"""The settings of the embedded engine, the section ``tinker`` of the configuration."""

__all__ = ["TinkerSettings"]

from typing import Literal

from pydantic import Field

from rllm.config import Settings


class TinkerSettings(Settings):
    """How the embedded engine computes. None of these changes what is computed, but ``precision`` (and
    ``products``, in the last bits)."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """``auto``: a CUDA GPU where there is one, else the CPU."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """``bf16``: the layers' matrices are multiplied in bfloat16; master weights, residuals, attention and the softmax
    stay float32. ``auto``: bf16 on CUDA, and on a CPU that multiplies it at least 1.5 times as fast when the engine
    starts; else fp32, in which sampler and trainer agree to the last digits. bf16 needs ``ratio_cap`` in training."""
    products: Literal["auto", "torch", "onednn"] = "auto"
    """Whose float32 matrix products are taken on a CPU: torch's own, or oneDNN's; ``auto``: oneDNN's where they are at
    least 1.5 times as fast when the engine starts, as on AMD's processors with AVX-512, or where torch's give a token
    other bits in other company, as on Intel's (not with ``deterministic=false``)."""
    deterministic: bool | None = None
    """Whether a completion must have the same bits whoever shares its batch, so that a run can be repeated. It costs
    nothing, it is how the engine computes; ``true`` refuses a device, a precision or a model where it is not so, None
    says so in the log."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; None takes one for models under 5M parameters, else all cores."""
    max_batch: int = Field(default=64, ge=1)
    """Completions drawn at a time; further ones wait."""
    prefill_tokens: int = Field(default=1024, ge=1)
    """Prompt tokens that are read between two decode steps; longer prompts are read in pieces."""
    kv_cache_tokens: int | None = Field(default=None, ge=1)
    """Tokens whose keys and values may be held at once; None takes what fits in 4 GiB. More completions wait; what
    they leave keeps what was read before, for the next turns of a conversation and the rest of a group."""
    micro_batch_tokens: int | None = Field(default=None, ge=1)
    """Distinct input tokens in one forward and backward of the trainer; a longer row goes alone. None: what fits in
    half the memory, 2048 at most, for more is not faster."""
    gradient_checkpointing: bool | None = None
    """Compute each layer again in the backward: about half the memory for a fifth more time. None: for the rows that
    need it, which are too long to fit otherwise."""
    context_tokens: int | None = Field(default=None, ge=2)
    """Longest prompt plus completion; None takes the model's own."""
