"""A stranger's plugin with every hook that there is. Each call is a line of the file that ``EVERY_HOOK_JOURNAL`` names:
the hook, the thread, and what tells this call from the others."""

import contextlib
import json
import os
import threading

import rllm
from rllm.backends.builtin import embedded_engine
from rllm.tasks import ListedTasks


def note(what, **details):
    with open(os.environ["EVERY_HOOK_JOURNAL"], "a") as journal:
        journal.write(json.dumps({"what": what, "thread": threading.current_thread().name, **details}) + "\n")


def counting():
    tasks = [rllm.Task(id=str(n), prompt=f"{n} +", answer=str(n)) for n in range(8)]
    return ListedTasks(name="counting", train_tasks=tuple(tasks[:6]), held_out_tasks=tuple(tasks[6:]), max_tokens=6)


async def asks(task, config):
    from openai import AsyncOpenAI

    note("agent", task=task.id)
    async with AsyncOpenAI() as client:
        reply = await client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": task.prompt}]
        )
    return reply.choices[0].message.content


def vowels(task, episode):
    note("evaluator", task=task.id)
    return sum(c in "aeiou" for c in episode.output) / 10


def centred(rewards):
    note("estimator", groups=len(rewards))
    return [r - r.mean() for r in rewards]


def plain_loss(logprobs, inputs):
    note("loss")
    return -logprobs * inputs.advantages, {}


def engine(request):
    note("backend", model=request.model_name)
    return embedded_engine(request)


class Journal:
    def __init__(self, request):
        note("logger", run_id=request.run_id, lr=request.settings["optimizer.lr"])

    def log(self, metrics, step):
        note("logged", step=step, has_reward="reward/mean" in metrics)

    def close(self, error):
        note("logger_closed", error=error and str(error))


@rllm.hookimpl
def rllm_register_loggers(register):
    register("journal", Journal)


@rllm.hookimpl
def rllm_register_tasks(register):
    register("counting", counting)


@rllm.hookimpl
def rllm_register_agents(register):
    register("asks", asks)


@rllm.hookimpl
def rllm_register_evaluators(register):
    register("vowels", vowels)


@rllm.hookimpl
def rllm_register_estimators(register):
    register("centred", centred)


@rllm.hookimpl
def rllm_register_losses(register):
    register("plain", plain_loss)


@rllm.hookimpl
def rllm_register_backends(register):
    register("stranger", engine)


@rllm.hookimpl
def rllm_session_started(session):
    note("session_started", session=session.id)


@rllm.hookimpl
def rllm_rollout_context(session):
    @contextlib.contextmanager
    def around():
        note("context_entered", session=session.id)
        yield
        note("context_left", session=session.id)

    return around()


@rllm.hookimpl
def rllm_step_recorded(session, step):
    note("step_recorded", session=session.id, tokens=len(step.completion_ids))


@rllm.hookimpl
def rllm_episode_finished(episode):
    note("episode_finished", session=episode.id, reward=episode.reward.value if episode.reward else None)


@rllm.hookimpl
def rllm_group_scored(group, advantages):
    note("group_scored", advantages=advantages)


@rllm.hookimpl
def rllm_update_finished(report):
    note("update_finished", step=report.step)


@rllm.hookimpl
def rllm_run_finished(run_dir, error):
    note("run_finished", run_dir=run_dir, error=error and str(error))
