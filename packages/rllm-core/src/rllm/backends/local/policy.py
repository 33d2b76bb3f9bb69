"""A loaded model as the engine runs and trains it: its body, its head, its adapter.

Everything here runs in the engine's thread. The body is transformers' own modules (``bodies``); the head is applied by
us, to chosen positions only.
"""

__all__ = ["Policy"]

import contextlib
import warnings
from collections.abc import Generator
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from rllm.backends.local.choosing import choose_body, is_invariant
from rllm.backends.local.loading import LoadedModel
from rllm.backends.local.logprobs import LogitTransform, head_output
from rllm.backends.local.precision import MixedLinear, refresh
from rllm.backends.local.products import Multiply, OneDnnLinear, by_bf16, by_onednn, by_torch, replace_linears
from rllm.backends.local.recompute import keep_less


class Policy:
    """One set of weights that can be run and trained.

    ``is_mixed``: bf16 linear layers. ``has_onednn``: float32 products by oneDNN. ``lora_rank`` 0 trains all weights.
    ``checkpoints``: whether ``training`` may compute layers again. Raises ModelError where the model's logits can't be
    made from its hidden states.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        is_mixed: bool,
        has_onednn: bool = False,
        lora_rank: int = 0,
        lora_alpha: float = 0.0,
        seed: int = 0,
        trains: bool = True,
        checkpoints: bool = False,
    ) -> None:
        self.network = loaded.network
        self.device = loaded.device
        self.head: nn.Linear = self.network.get_output_embeddings()
        multiply = by_onednn if has_onednn else by_torch
        # Gradients of the head may be rounded as the layers' are; its logits are not, for the sampler's are not.
        self.transform = _transform_of(self.network, multiply, by_bf16 if is_mixed else multiply)
        self.body, self.kv_bytes_per_token = choose_body(self.network, self.device, self.logits)
        for parameter in self.network.parameters():
            parameter.requires_grad_(trains and lora_rank == 0)
        if is_mixed or has_onednn:
            replace_linears(self.network, self.head, MixedLinear.of if is_mixed else OneDnnLinear.of)
        if trains:
            keep_less(self.network, self.device)
        self.adapted: Any = None
        """peft's model around the network; None where all weights are trained."""
        if lora_rank > 0:
            self.adapted = _with_lora(self.network, lora_rank, lora_alpha, seed)
            if has_onednn:
                replace_linears(self.network, self.head, OneDnnLinear.of)  # the adapter's own
        self.is_invariant = is_invariant(self.body, self.network, self.device, self.logits)
        """Whether a sequence's logits have the same bits however it is read and whatever else is."""
        if checkpoints and trains:
            with _without_deprecations():
                self.network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def trainable(self) -> list[nn.Parameter]:
        """What the optimizer moves."""
        return [p for p in self.network.parameters() if p.requires_grad]

    def weights_changed(self) -> None:
        """To be called after an optimizer step."""
        refresh(self.network)

    @contextlib.contextmanager
    def training(self, *, checkpoints: bool) -> Generator[None]:
        """Around a forward with gradients: transformers checkpoints in training mode only (dropout is off in both)."""
        if checkpoints:
            self.network.train()
        try:
            yield
        finally:
            self.network.eval()

    @contextlib.contextmanager
    def without_adapter(self) -> Generator[None]:
        """The weights before training, in a LoRA run."""
        with self.adapted.disable_adapter():
            yield

    def logits(self, hidden: Tensor) -> Tensor:
        """float32[n, V] of [n, H] hidden states, at temperature 1; no gradient."""
        return self.transform.forward(head_output(hidden, self.head.weight, self.head.bias, self.transform.multiply))


def _transform_of(network: Any, multiply: Multiply, multiply_gradients: Multiply) -> LogitTransform:
    """What lies between the head and the logits, by the names that transformers' configurations have for it."""
    config: dict[str, Any] = network.config.get_text_config().to_dict()
    scale = float(config.get("logit_scale") or 1.0) / float(config.get("logits_scaling") or 1.0)
    return LogitTransform(
        scale=scale,
        softcap=config.get("final_logit_softcapping"),
        multiply=multiply,
        multiply_gradients=multiply_gradients,
    )


def _with_lora(network: Any, rank: int, alpha: float, seed: int) -> Any:
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType]  # peft divides by it and takes any number
        lora_dropout=0.0,
        target_modules="all-linear",
        bias="none",
    )
    with torch.random.fork_rng(), _without_deprecations():
        torch.manual_seed(seed)
        return get_peft_model(network, config)


@contextlib.contextmanager
def _without_deprecations() -> Generator[None]:
    """transformers 5.24 renamed checkpointing and warns of the old names, the only ones that 5.5 has and peft uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield
