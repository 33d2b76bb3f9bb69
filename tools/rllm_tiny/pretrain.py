"""Makes rllm-tiny from nothing: tokenizer, weights, and the folder that is shipped in the package.

    python tools/rllm_tiny/pretrain.py [--steps N] [--out FOLDER]

One thread, float32, a fixed seed, synthetic data (data.py). Every step takes conversations without tools, conversations
with tools, and drills, each in a batch of its own. The loss is on what the assistant says, and a tenth of it on the
rest; in a drill it is on the second half.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import torch
from data import LONG, SHORT, drills, examples
from tokens import CONTEXT, build_tokenizer, encode
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 0
STEPS = 2600
WARMUP = 50
LR = 2.5e-3
SHORT_ROWS, LONG_ROWS, DRILL_ROWS = 40, 6, 32
POOL = 16
"""So many batches are drawn at a time, sorted by length and cut, or half of the work would be padding."""
PROMPT_WEIGHT = 0.1
DRILL_WEIGHT = 1.0

SHIPPED = Path(__file__).parents[2] / "packages/rllm-core/src/rllm/models/rllm_tiny"

Marked = tuple[list[int], list[float]]
"""Token ids, and the weight of each as a target."""


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of 0.7M parameters, ready to learn to copy."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.04,
        )
    )
    _start_as_lookup(model)
    return model


@torch.no_grad()
def _start_as_lookup(model: LlamaForCausalLM) -> None:
    """Attention starts out looking for tokens like the current one and passing them on as they are.

    Queries equal keys, and output undoes value ("mimetic initialization", Trockman & Kolter 2023,
    arXiv:2305.09828, with the sign of the value path turned). From random weights copying did not emerge in the time.
    """
    width = model.config.hidden_size
    for layer in model.model.layers:
        lookup, value = (torch.linalg.qr(torch.randn(width, width))[0] for _ in range(2))
        layer.self_attn.q_proj.weight.copy_(0.7 * lookup)
        layer.self_attn.k_proj.weight.copy_(0.7 * lookup)
        layer.self_attn.v_proj.weight.copy_(value)
        layer.self_attn.o_proj.weight.copy_(model.config.initializer_range * value.T)


def conversations(tokenizer: PreTrainedTokenizerFast, kinds: dict[str, float]) -> Iterator[Marked]:
    """Conversations with the weights of their tokens."""
    for example in examples(SEED, kinds):
        ids, is_reply = encode(tokenizer, example)
        yield ids, [1.0 if said else PROMPT_WEIGHT for said in is_reply]


def marked_drills(tokenizer: PreTrainedTokenizerFast) -> Iterator[Marked]:
    """Drills with a target in their second half, after its first token."""
    for line in drills(SEED):
        ids: list[int] = tokenizer(line, add_special_tokens=False)["input_ids"]
        half = len(ids) // 2
        yield ids, [0.0] * (half + 1) + [1.0] * (len(ids) - half - 1)


def batches(stream: Iterator[Marked], rows: int, seed: int) -> Iterator[list[Marked]]:
    """Batches of conversations of like length, in random order within a pool."""
    random = Random(seed)
    while True:
        pool = sorted(islice(stream, POOL * rows), key=lambda row: len(row[0]))
        for index in random.sample(range(POOL), POOL):
            yield pool[index * rows : (index + 1) * rows]


def batch_loss(model: LlamaForCausalLM, rows: list[Marked], pad: int) -> torch.Tensor:
    """The weighted mean over the batch's tokens, nats. Padding is on the right, where causal attention can't see it."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), width), pad)
    weights = torch.zeros(len(rows), width)
    for row, (tokens, marks) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weights[row, : len(tokens)] = torch.tensor(marks)
    logits = model(input_ids=ids).logits[:, :-1]
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    targets = weights[:, 1:].flatten()
    return (losses * targets).sum() / targets.sum()


def train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    """AdamW with a linear warm-up and decay."""
    parts = {
        "short": (batches(conversations(tokenizer, SHORT), SHORT_ROWS, SEED), 1.0),
        "tools": (batches(conversations(tokenizer, LONG), LONG_ROWS, SEED), 1.0),
        "drill": (batches(marked_drills(tokenizer), DRILL_ROWS, SEED), DRILL_WEIGHT),
    }
    means = dict.fromkeys(parts, 0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.98), weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP, 1.0) * max(0.02, 1 - step / steps)
    )
    started = time.process_time()
    for step in range(steps):
        for name, (stream, weight) in parts.items():
            loss = batch_loss(model, next(stream), int(tokenizer.pad_token_id))
            (weight * loss).backward()
            means[name] += (0.02 if step > 50 else 1.0) * (loss.item() - means[name])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 99:
            losses = "  ".join(f"{name} {mean:.3f}" for name, mean in means.items())
            print(f"step {step + 1}  nats a token: {losses}  {time.process_time() - started:.0f} s of CPU", flush=True)


def main() -> None:
    """Train and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=SHIPPED)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer = build_tokenizer(SEED)
    model = build_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    train(model, tokenizer, arguments.steps)
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    # safetensors lets only its owner read what it writes; a package is for everyone.
    for path in arguments.out.iterdir():
        path.chmod(0o644)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
