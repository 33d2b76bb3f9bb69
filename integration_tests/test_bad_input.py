"""Whatever a user gets wrong ends in one message that names it and says what to do, with finished work kept."""

import json
import math
import time
from pathlib import Path

import pytest
import torch

import rllm


def read_steps(path: str = "run") -> list[dict]:
    """The metrics of the batches."""
    lines = [json.loads(line) for line in (Path(path) / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "rollout/count" in line]


async def ask(task, config):
    """A good agent."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=config.base_url, api_key=config.api_key) as client:
        reply = await client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": task.prompt}]
        )
    return reply.choices[0].message.content


# --- names and settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": "chain_sums"}, "no task 'chain_sums'.*'chain_sum'"),
        ({"model": "smolm2-135m"}, "'smolm2-135m'.*'smollm2-135m'"),
        ({"agent": "chatt"}, "no agent 'chatt'.*'chat'"),
        ({"evaluator": "numbr"}, "no evaluator 'numbr'.*'number'"),
        ({"agent": "nowhere.py:solve"}, "nowhere.py.*doesn't exist"),
        ({"tasks": [{"prompt": "Say hello."}, {"prompt": "Say goodbye."}]}, "no evaluator: .*--evaluator"),
        ({"estimator": "gpro"}, "'grpo'"),
        ({"sampling__top_p": 0.9}, r"sampling\.top_p=0\.9 cuts the distribution"),
        ({"sampling__temperature": 0.0}, r"sampling\.temperature=0"),
        ({"group_size": 1}, "group_size=1, but the estimator 'grpo'"),
        ({"minibatches": 9}, "minibatches=9, but a batch has only 3 groups"),
        ({"optimizer__schedule": "cosine", "steps": None, "time_limit_s": 5}, "needs to know the last step"),
    ],
)
def test_a_wrong_name_or_setting_is_refused_before_anything_starts(run, arguments, message):
    with pytest.raises(rllm.RLLMError, match=message):
        run(**arguments)
    assert not Path("run/metrics.jsonl").exists()


def test_a_precision_in_which_sampler_and_trainer_differ_needs_the_correction(run):
    with pytest.raises(rllm.RLLMError, match=r"ratio_cap=null, but .*tinker\.precision=fp32"):
        run(ratio_cap=None, tinker__precision="bf16")
    run(tinker__precision="bf16", run_dir="corrected")
    assert '"update/ratio_capped"' in Path("corrected/metrics.jsonl").read_text()


# --- the user's tasks --------------------------------------------------------------------------------------------


def test_a_broken_line_of_a_task_file_is_named(run):
    Path("tasks.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n{"prompt": "2 + 2"}\n')
    with pytest.raises(rllm.TaskError, match=r'tasks\.jsonl line 2: "answer" is missing'):
        run(tasks="tasks.jsonl", evaluator="exact")


# --- agents ------------------------------------------------------------------------------------------------------


def test_an_agent_that_raises_stops_the_run_with_its_traceback(run):
    async def broken(task, config):
        await ask(task, config)
        return task.nonsense

    with pytest.raises(
        rllm.RolloutError, match=r"(?s)the agent failed in the same way.*agent_error.*return task.nonsense"
    ):
        run(agent=broken, evaluator=lambda task, episode: episode.output.strip() == task.answer)


def test_an_agent_that_never_calls_the_model_is_named_and_not_trained_as_zero(run):
    with pytest.raises(rllm.RolloutError, match=r"no_model_call.*config\.base_url"):
        run(agent=lambda task: "42")


def test_an_agent_that_hangs_is_stopped_by_the_clock(run):
    def hangs(task):
        time.sleep(60)

    with pytest.raises(rllm.RolloutError, match=r"timeout.*rollout\.timeout_s=0\.5"):
        run(agent=hangs, rollout__timeout_s=0.5, rollout__retries=0)


def test_an_agent_that_fails_now_and_then_is_graded_or_gets_the_failure_reward_and_the_run_goes_on(run):
    async def shaky(task, config):
        answer = await ask(task, config)
        if config.sample == 0 and config.is_training:
            raise ValueError("unlucky")
        return answer

    def grade(task, episode):
        return float(len(episode.output)) / 100

    run(agent=shaky, evaluator=grade)
    first = read_steps()[0]
    assert first["failure/agent_error"] == 3  # one of four rollouts of each of three tasks
    assert first["groups/incomplete"] == 0  # they stay in their groups


def test_an_agent_with_a_wrong_signature_is_refused(run):
    with pytest.raises(rllm.ConfigError, match=r"must be callable as agent\(task\) or agent\(task, config\)"):
        run(agent=lambda a, b, c: None)


def test_a_prompt_longer_than_the_context_is_said_so(run):
    async def long(task, config):
        return await ask(task.model_copy(update={"prompt": "word " * 20000}), config)

    with pytest.raises(rllm.RolloutError, match="the model's context is"):
        run(agent=long)


# --- evaluators --------------------------------------------------------------------------------------------------


def hangs(task, episode):
    time.sleep(60)


def raises(task, episode):
    return 1 / 0


@pytest.mark.parametrize(
    ("evaluator", "message"),
    [
        (raises, "(?s)the evaluator failed in the same way.*ZeroDivisionError"),
        (lambda task, episode: math.nan, "the evaluator failed.*nan"),
        (lambda task, episode: "good", "the evaluator failed.*'good'"),
        (hangs, r"the evaluator failed.*0\.3"),
    ],
)
def test_a_broken_evaluator_is_named_and_stops_the_run(run, evaluator, message):
    with pytest.raises(rllm.EvaluatorError, match=message):
        run(agent=ask, evaluator=evaluator, rollout__evaluator_timeout_s=0.3)


def test_an_evaluator_without_a_grade_leaves_the_rollout_out_and_counts_it(run):
    run(agent=ask, evaluator=lambda task, episode: None if episode.sample == 1 else float(episode.sample))
    first = read_steps()[0]
    assert first["left_out/no_reward"] == 3
    assert first["groups/incomplete"] == 3


# --- models ------------------------------------------------------------------------------------------------------


def test_a_model_without_a_chat_template_says_what_to_do(run, tmp_path):
    import shutil

    folder = tmp_path / "bare"
    shutil.copytree(rllm_tiny_folder(), folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(rllm.TemplateError, match="has no chat template"):
        run(model=str(folder))


def rllm_tiny_folder() -> str:
    from rllm.models import resolve_model

    return resolve_model("rllm-tiny").path


# --- finished work is kept ---------------------------------------------------------------------------------------


def test_a_run_that_is_stopped_keeps_its_metrics_and_the_model_as_it_was(run):
    class Stop:
        @rllm.hookimpl
        def rllm_update_finished(self, report):
            if report.step == 2:
                raise KeyboardInterrupt

    stop = Stop()
    rllm.get_plugins().register(stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(steps=5)
    finally:
        rllm.get_plugins().unregister(stop)
    assert [line["step"] for line in read_steps()] == [1, 2]
    assert Path("run/model/model.safetensors").exists()


def test_the_folder_of_a_run_that_never_began_may_be_taken_again(run):
    absent = "cuda" if torch.backends.mps.is_available() else "mps"
    for _ in range(2):
        with pytest.raises(rllm.ModelError, match=f"tinker.device={absent}"):
            run(tinker__device=absent)
    run()
    assert read_steps()
    with pytest.raises(rllm.ConfigError, match="already holds a run"):
        run()
