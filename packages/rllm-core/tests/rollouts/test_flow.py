"""What counts as an agent, how it is called, and how one is found by name."""

import asyncio
import contextvars
import threading

import pytest

import rllm
from rllm.config import AgentConfig
from rllm.errors import ConfigError, UnknownNameError
from rllm.plugins import PluginManager
from rllm.rollouts import Rollout, as_flow
from rllm.types import Task

TASK = Task(id="1", prompt="hi")
CONFIG = AgentConfig(
    base_url="http://127.0.0.1:1/v1",
    api_key="k",
    model="m",
    session_id="s",
    task_id="1",
    sample=0,
    is_training=True,
    max_tokens=5,
)


@pytest.fixture
def plugins() -> PluginManager:
    return PluginManager(load_installed=False)


async def test_a_flow_may_take_the_task_or_the_configuration_too(plugins):
    async def coroutine(task, config):
        return task.id, config.session_id

    class Callable:
        def __call__(self, task):
            return "object"

    assert await as_flow(lambda task: task.prompt, plugins).run(TASK, CONFIG) == "hi"
    assert await as_flow(coroutine, plugins).run(TASK, CONFIG) == ("1", "s")
    assert await as_flow(Callable(), plugins).run(TASK, CONFIG) == "object"
    assert await as_flow(lambda task, temperature=0.5: temperature, plugins).run(TASK, CONFIG) == 0.5
    assert await as_flow(lambda task, config=None: config.model, plugins).run(TASK, CONFIG) == "m"


@pytest.mark.parametrize("function", [lambda: 1, lambda a, b, c: 1, lambda a, *, must: 1])
def test_a_function_that_can_not_be_called_so_is_refused(function):
    with pytest.raises(ConfigError, match=r"must be callable as agent\(task\) or agent\(task, config\)"):
        Rollout(function)


async def test_a_plain_function_runs_in_a_thread_with_the_context_of_its_caller():
    variable = contextvars.ContextVar("v", default="unset")
    variable.set("carried")

    def flow(task):
        return threading.current_thread() is threading.main_thread(), variable.get()

    assert await Rollout(flow).run(TASK, CONFIG) == (False, "carried")


async def test_sixty_four_blocking_agents_run_at_the_same_time():
    barrier = threading.Barrier(64)

    def flow(task):
        return barrier.wait(timeout=20)

    done = await asyncio.gather(*(Rollout(flow).run(TASK, CONFIG) for _ in range(64)))
    assert sorted(done) == list(range(64))


@pytest.mark.parametrize("raised", [SystemExit, StopIteration])
async def test_what_a_future_or_a_loop_would_choke_on_arrives_as_an_error(raised):
    def flow(task):
        raise raised(3)

    with pytest.raises(RuntimeError, match=f"{raised.__name__} was raised in a thread: 3"):
        await asyncio.wait_for(Rollout(flow).run(TASK, CONFIG), timeout=10)


def test_the_decorator_leaves_the_function_callable():
    @rllm.rollout
    def solve(task):
        "Solves."
        return task.prompt

    @rllm.rollout(name="other")
    def named(task):
        return 1

    assert solve(TASK) == "hi"
    assert (solve.__doc__, solve.name, named.name) == ("Solves.", "solve", "other")


def test_an_agent_is_found_in_a_file_and_what_is_missing_is_named(tmp_path, plugins):
    file = tmp_path / "mine.py"
    file.write_text("from openai import OpenAI\nclient = OpenAI()\ndef solve(task):\n    return 1\nvalue = 3\n")
    assert as_flow(f"{file}:solve", plugins).name == "solve"
    with pytest.raises(UnknownNameError, match=r"'solv'.*'solve'"):
        as_flow(f"{file}:solv", plugins)
    with pytest.raises(ConfigError, match="it must be a function of the task"):
        as_flow(f"{file}:value", plugins)
    with pytest.raises(ConfigError, match="No module named 'no_such_module'"):
        as_flow("no_such_module:solve", plugins)
    (tmp_path / "broken.py").write_text("1/0")
    with pytest.raises(ConfigError, match=r"broken\.py.*ZeroDivisionError"):
        as_flow(f"{tmp_path / 'broken.py'}:solve", plugins)
