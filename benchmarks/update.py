"""One optimizer step: the embedded engine against a padded transformers step with logits of the completions alone.

2 groups × 8 rows of 100 prompt and 50 completion tokens; the peer's micro-batches are the groups. AdamW on both sides.

bf16 has two peers: ``bf16``, float32 weights under autocast, as transformers' own Trainer has it with bf16=True (and as
we do: what small learning rates change is lost in bfloat16 weights); ``bf16-weights``, all of it in bfloat16.
"""

import asyncio

import numpy as np
from common import MODEL, arguments, model_path
from harness import compare, serve

GROUPS, SIZE, PROMPT, COMPLETION = 2, 8, 100, 50


def groups() -> list[list[np.ndarray]]:
    """Per group its rows, int32[150] each, with one prompt."""
    draw = np.random.default_rng(0)
    found = []
    for _ in range(GROUPS):
        prompt = draw.integers(20, 40_000, PROMPT)
        found.append(
            [np.concatenate([prompt, draw.integers(20, 40_000, COMPLETION)]).astype(np.int32) for _ in range(SIZE)]
        )
    return found


def ours(precision: str) -> None:
    from rllm.backends.builtin import embedded_engine
    from rllm.backends.local.settings import TinkerSettings
    from rllm.protocols import AdamParams, BackendRequest, LossSpec
    from rllm.types import Row

    backend = embedded_engine(
        BackendRequest(
            model_name=MODEL, model_path=model_path(), seed=0, lora_rank=0, lora_alpha=0.0,
            settings=TinkerSettings(device="cpu", precision=precision.removesuffix("-weights")),
        )
    )  # fmt: skip
    trained = np.concatenate([np.zeros(PROMPT), np.ones(COMPLETION)]).astype(np.float32)
    versions = np.where(trained == 0, -1, 0).astype(np.int32)
    mask = trained / (GROUPS * SIZE * COMPLETION)
    rows = [Row(tokens, mask, -trained, trained, versions, 1.0) for group in groups() for tokens in group]
    loss = LossSpec("likelihood", lambda logprobs, inputs: (-logprobs * inputs.advantages, {}))

    async def step() -> None:
        await backend.train_step(rows, loss, AdamParams(lr=1e-9))
        await backend.publish()

    serve(lambda: asyncio.run(step()))


def transformers(precision: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if precision == "bf16-weights" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(model_path(), dtype=dtype).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9, fused=True)
    batches = [torch.from_numpy(np.stack(group)).long() for group in groups()]

    def step() -> None:
        for ids in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                logits = model(ids, use_cache=False, logits_to_keep=COMPLETION + 1).logits[:, :-1].float()
            logprobs = logits.log_softmax(-1).gather(-1, ids[:, -COMPLETION:, None])
            (-logprobs.mean() / GROUPS).backward()
        optimizer.step()
        optimizer.zero_grad()

    serve(step)


if __name__ == "__main__":
    chosen = arguments()
    if chosen.worker:
        {"ours": ours, "transformers": transformers}[chosen.worker](chosen.precision)
    else:
        compare(
            __file__,
            "transformers",
            {"groups": GROUPS, "rows": GROUPS * SIZE, "prompt": PROMPT, "completion": COMPLETION, "model": MODEL},
            bf16=("bf16", "bf16-weights"),
        )
