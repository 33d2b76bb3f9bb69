"""A loaded model as the engine runs it: its body over a layout, its head, its adapter, its reference.

Everything here runs in the engine's thread. The body is transformers' own modules with our attention function; the
head is applied by us, to chosen positions only.
"""

__all__ = ["Policy"]

import contextlib
import warnings
from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from rllm.backends.local.arithmetic import ROWS, round_up
from rllm.backends.local.attention import ATTENTION, Capture, ForestLayout, Layout, register_attention
from rllm.backends.local.loading import LoadedModel
from rllm.backends.local.logprobs import LogitTransform, head_output
from rllm.backends.local.precision import refresh, use_bf16_linears
from rllm.errors import ModelError
from rllm.update.packing import Forest, chain_chunks, forest_of, square_chunks

RUN_TOKENS = 128
"""Queries of a forest that attend at a time."""


class Policy:
    """One set of weights that can be run and trained.

    ``is_mixed``: bf16 linear layers. ``lora_rank`` 0 trains all weights. Raises ModelError where the model can't be
    run by its layers' attention function.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        is_mixed: bool,
        lora_rank: int = 0,
        lora_alpha: float = 0.0,
        seed: int = 0,
        trains: bool = True,
        gradient_checkpointing: bool = False,
    ) -> None:
        self.network = loaded.network
        self.device = loaded.device
        self.head: nn.Linear = self.network.get_output_embeddings()
        self.transform = _transform_of(self.network)
        self.body: nn.Module = self.network.base_model
        self.kv_bytes_per_token = 0
        """Of keys and values, over all layers."""
        check_body(self)
        for parameter in self.network.parameters():
            parameter.requires_grad_(trains and lora_rank == 0)
        if is_mixed:
            use_bf16_linears(self.network, self.head)
        self._adapted: Any = None
        if lora_rank > 0:
            self._adapted = _with_lora(self.network, lora_rank, lora_alpha, seed)
        self._checkpoints = gradient_checkpointing and trains
        if self._checkpoints:
            with _without_deprecations():
                self.network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    @property
    def adapter(self) -> Any:
        """The peft model around the network; None in full fine-tuning."""
        return self._adapted

    def trainable(self) -> list[nn.Parameter]:
        """What the optimizer moves."""
        return [p for p in self.network.parameters() if p.requires_grad]

    def weights_changed(self) -> None:
        """To be called after an optimizer step."""
        refresh(self.network)

    @contextlib.contextmanager
    def training(self) -> Generator[None]:
        """Around a forward with gradients: transformers checkpoints in training mode only (dropout is off in both)."""
        if self._checkpoints:
            self.network.train()
        try:
            yield
        finally:
            self.network.eval()

    @contextlib.contextmanager
    def without_adapter(self) -> Generator[None]:
        """The weights before training, in a LoRA run."""
        with self._adapted.disable_adapter():
            yield

    def run_forest(self, forest: Forest, *, is_exact: bool, capture: Capture | None = None) -> Tensor:
        """Hidden states [N, H] of a forest's nodes.

        ``is_exact`` gives each node the bits that it has alone in its sequence (cut into runs along single paths);
        else runs are large, for speed, and equal up to rounding.
        """
        padded = _padded(forest)
        if is_exact:
            chunks = chain_chunks(padded.ends, padded.positions, RUN_TOKENS)
        else:
            chunks = square_chunks(padded.ends, RUN_TOKENS)
        layout = ForestLayout(padded, chunks, self.device, capture)
        tokens = torch.from_numpy(padded.tokens).to(self.device)[None]
        positions = torch.from_numpy(padded.positions).to(self.device)[None]
        return self.run_body(tokens, positions, layout)[0, : len(forest)]

    def run_body(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Last hidden states [B, T, H] of int64[B, T] tokens."""
        output = self.body(input_ids=tokens, position_ids=positions, use_cache=False, rllm_layout=layout)
        return output.last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """float32[n, V] of [n, H] hidden states, at temperature 1; no gradient."""
        return self.transform.forward(head_output(hidden, self.head.weight, self.head.bias))


def _padded(forest: Forest) -> Forest:
    """With lone nodes at the end, so that their number is a multiple of ROWS."""
    n = len(forest)
    extra = round_up(n, ROWS) - n
    if not extra:
        return forest
    zeros = np.zeros(extra, np.int64)
    return Forest(
        np.concatenate([forest.tokens, zeros]),
        np.concatenate([forest.positions, zeros]),
        np.concatenate([forest.ends, np.arange(n + 1, n + extra + 1)]),
        forest.paths,
    )


def _transform_of(network: Any) -> LogitTransform:
    """What lies between the head and the logits, by the names that transformers' configurations have for it."""
    config: dict[str, Any] = network.config.get_text_config().to_dict()
    scale = float(config.get("logit_scale") or 1.0) / float(config.get("logits_scaling") or 1.0)
    return LogitTransform(scale=scale, softcap=config.get("final_logit_softcapping"))


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


@torch.no_grad()
def check_body(policy: Policy) -> None:
    """Compare a small forest with transformers' own forward of the same sequences, and switch to our attention.

    Raises ModelError where they differ: the model does something with its tokens that we don't know of.
    """
    network = policy.network
    vocab = policy.head.weight.shape[0]
    draw = np.random.default_rng(0)
    stem = draw.integers(0, vocab, 5)
    both = [np.concatenate([stem, draw.integers(0, vocab, n)]).astype(np.int32) for n in (6, 9)]
    # Eager is the one that honours everything: before 5.24, Gemma 2's default left its soft cap out.
    network.set_attn_implementation("eager")
    expected = [network(input_ids=torch.from_numpy(s)[None].long().to(policy.device)).logits[0].float() for s in both]
    register_attention()
    try:
        network.set_attn_implementation(ATTENTION)
        forest = forest_of(both)
        kv_bytes: list[int] = []

        def measure(layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
            kv_bytes.append((keys.nbytes + values.nbytes) // keys.shape[1])

        hidden = policy.run_forest(forest, is_exact=True, capture=measure)
        if not kv_bytes:
            raise ModelError("its layers do not call the attention function that transformers lets one choose")
        policy.kv_bytes_per_token = sum(kv_bytes)
        got = policy.logits(hidden)
    except (ModelError, ValueError, TypeError, AttributeError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"{type(network).__name__} can't be run with one attention over shared prefixes: {error}"
        ) from error
    for path, logits in zip(forest.paths, expected, strict=True):
        gap = (got[torch.from_numpy(path).to(policy.device)] - logits).abs().max().item()
        if not gap <= 1e-3 * (logits.max() - logits.min()).item():
            raise ModelError(
                f"{type(network).__name__} gives other logits over shared prefixes than alone (by up to {gap:.2g})"
            )
