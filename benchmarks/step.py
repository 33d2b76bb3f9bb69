"""A whole GRPO step of 64 rollouts: ``rllm.AgentTrainer``, with agent, gateway and traces, against TRL's GRPOTrainer.

8 short sums × 8 completions of at most 24 tokens, rewarded by a coin (so that every group has a signal), one update.
"""

import itertools
import tempfile
import time

from common import MODEL, arguments, model_path, questions
from harness import RUNS, Commands, compare

PROMPTS, SAMPLES, TOKENS, LR = 8, 8, 24, 1e-7


def coin(text: str) -> float:
    return float(sum(text.encode()) % 2)


def ours(precision: str) -> None:
    import rllm

    commands, released = Commands(), []

    class Turns:
        """Waits for the command at the end of each step but the last; so the first one is not measured at all."""

        @rllm.hookimpl
        def rllm_update_finished(self, report):
            if released:
                commands.report({"seconds": time.perf_counter() - released.pop()})
            if commands.wait():
                released.append(time.perf_counter())

    rllm.get_plugins().register(Turns())
    tasks = [rllm.Task(id=str(k), prompt=q, answer="") for k, q in enumerate(questions(PROMPTS + 1))]
    with tempfile.TemporaryDirectory() as folder:
        trainer = rllm.AgentTrainer(
            tasks=tasks,
            evaluator=lambda task, episode: coin(episode.output),
            model=MODEL,
            settings={
                "steps": RUNS + 2, "batch_tasks": PROMPTS, "group_size": SAMPLES, "sampling.max_tokens": TOKENS,
                "validation.limit": 0, "optimizer.lr": LR, "tinker.precision": precision, "tinker.device": "cpu",
                "run_dir": f"{folder}/run",
            },
        )  # fmt: skip
        trainer.train()


def trl(precision: str) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    commands = Commands()
    prompts = [{"prompt": [{"role": "user", "content": q}]} for q in questions(PROMPTS)]

    class Turns(TrainerCallback):
        def on_step_begin(self, args, state, control, **rest):
            if not commands.wait():
                control.should_training_stop = True
            self.start = time.perf_counter()

        def on_step_end(self, args, state, control, **rest):
            commands.report({"seconds": time.perf_counter() - self.start})

    def reward(completions, **rest):
        return [coin(c[0]["content"]) for c in completions]

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=precision == "bf16", learning_rate=LR, max_steps=RUNS + 1,
            per_device_train_batch_size=16, gradient_accumulation_steps=PROMPTS * SAMPLES // 16,
            num_generations=SAMPLES, max_completion_length=TOKENS, temperature=1.0, top_k=0, top_p=1.0, beta=0.0,
            loss_type="dr_grpo", gradient_checkpointing=False, save_strategy="no", report_to=[], logging_steps=100,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32),
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(list(itertools.islice(itertools.cycle(prompts), 64))),
            processing_class=AutoTokenizer.from_pretrained(model_path()),
            callbacks=[Turns()],
        )
        trainer.train()


if __name__ == "__main__":
    chosen = arguments()
    if chosen.worker:
        {"ours": ours, "trl": trl}[chosen.worker](chosen.precision)
    else:
        work = {"prompts": PROMPTS, "samples": SAMPLES, "max_tokens": TOKENS, "model": MODEL}
        compare(__file__, "trl", work, with_memory=False)
