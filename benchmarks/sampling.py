"""Drawing completions: the embedded engine, with logprobs, against transformers' ``generate``, without.

8 prompts × 8 samples of 32 tokens each, from the full softmax at temperature 1.
"""

import asyncio

from common import MODEL, arguments, model_path, questions
from harness import compare, serve

PROMPTS, SAMPLES, TOKENS = 8, 8, 32


def prompts_of(tokenizer) -> list[list[int]]:
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_dict=False)
        for q in questions(PROMPTS)
    ]


def ours(precision: str) -> None:
    from rllm.backends.builtin import embedded_engine
    from rllm.backends.local.settings import TinkerSettings
    from rllm.protocols import BackendRequest
    from rllm.types import Prompt, SamplingParams

    backend = embedded_engine(
        BackendRequest(
            model_name=MODEL, model_path=model_path(), seed=0, lora_rank=0, lora_alpha=0.0,
            settings=TinkerSettings(device="cpu", precision=precision), trains=False,
        )
    )  # fmt: skip
    # Both sides draw as many tokens: an end of text does not end a completion here.
    backend._engine._loop._stop_ids = frozenset()
    prompts = [Prompt(ids) for ids in prompts_of(backend.model.tokenizer)]

    async def draw() -> None:
        calls = [
            backend.sampler().sample(p, SamplingParams(max_tokens=TOKENS)) for p in prompts for _ in range(SAMPLES)
        ]
        for (completion,) in await asyncio.gather(*calls):
            assert len(completion.ids) == TOKENS
        # What was kept of the prompts is no part of a first drawing.
        backend._thread.submit(backend._engine._loop.rest).result()

    serve(lambda: asyncio.run(draw()))


def transformers(precision: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = AutoModelForCausalLM.from_pretrained(model_path(), dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_path(), padding_side="left")
    prompts = [ids for ids in prompts_of(tokenizer) for _ in range(SAMPLES)]
    batch = tokenizer.pad({"input_ids": prompts}, return_tensors="pt")

    def draw() -> None:
        with torch.inference_mode():
            out = model.generate(
                **batch, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=True, top_k=0, pad_token_id=2
            )
        assert out.shape[1] == batch["input_ids"].shape[1] + TOKENS

    serve(draw)


if __name__ == "__main__":
    chosen = arguments()
    if chosen.worker:
        {"ours": ours, "transformers": transformers}[chosen.worker](chosen.precision)
    else:
        compare(__file__, "transformers", {"prompts": PROMPTS, "samples": SAMPLES, "tokens": TOKENS, "model": MODEL})
