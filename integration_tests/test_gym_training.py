"""`rllm train NAME` on generators of reasoning-gym: three of them, from the command to the report."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from rllm.cli.app import root

SMALL = ("--model", "rllm-tiny", "steps=2", "batch_tasks=4", "validation.limit=8", "validation.samples=2")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        # The number that a reply ends with, right or wrong.
        ("chain_sum", ("chain_sum.held_out=20",)),
        # The verifiers' own scores: of a word problem, and letter by letter.
        ("gsm_symbolic", ("gsm_symbolic.size=60", "gsm_symbolic.held_out=10", "sampling.max_tokens=16")),
        ("spell_backward", ("spell_backward.max_word_len=4", "spell_backward.size=60", "spell_backward.held_out=10")),
    ],
)
def test_a_generator_trains_by_its_name(name, settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(root, ["train", name, *SMALL, *settings, "run_dir=run"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report = json.loads(Path("run/report.json").read_text())
    assert (report["tasks"], report["steps"]) == (name, 2)
    assert report["before"]["n_tasks"] == report["after"]["n_tasks"] == 8
    metrics = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward/mean"] for line in metrics if "reward/mean" in line]
    assert len(rewards) == 2
    assert all(math.isfinite(reward) and 0 <= reward <= 1 for reward in rewards)
    assert f"reward {rewards[-1]:.3f}" in done.output
    assert f"validation after: reward {report['after']['reward']:.3f}" in done.output
