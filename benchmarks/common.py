"""What the benchmarks share: the model, the questions, the command line of a worker."""

import argparse

MODEL = "smollm2-135m"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker")
    parser.add_argument("--precision", default="fp32")
    return parser.parse_known_args()[0]


def model_path() -> str:
    from rllm.models import resolve_model

    return resolve_model(MODEL).path


def questions(n: int) -> list[str]:
    """The first ``n`` short sums."""
    from rllm.tasks import load_task_source

    return [task.prompt for task in load_task_source("chain_sum").train()[:n]]
