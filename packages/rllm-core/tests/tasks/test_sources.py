"""Tasks from Python: lists, functions, whole sources; and what else may be named as tasks."""

import itertools

import pytest

from rllm.errors import ConfigError, PluginError, TaskError, UnknownNameError
from rllm.hookspecs import hookimpl
from rllm.plugins import PluginManager
from rllm.protocols import TaskSource
from rllm.tasks import ListedTasks, as_task_source, load_task_source
from rllm.types import Episode, Task


@pytest.fixture
def plugins():
    return PluginManager(load_installed=False)


DICTS = [{"prompt": f"{n}?", "answer": str(n), "level": n % 3} for n in range(20)]
TASKS = [Task(id=f"q{n}", prompt=f"{n}?", answer=str(n)) for n in range(20)]


@pytest.mark.parametrize("tasks", [DICTS, TASKS, tuple(TASKS), lambda: DICTS, lambda: iter(TASKS)])
def test_lists_and_functions_of_dicts_and_tasks_are_sources(plugins, tasks):
    source = as_task_source(tasks, None, plugins)
    assert isinstance(source, TaskSource)
    every = [*source.train(), *source.held_out()]
    assert sorted(t.prompt for t in every) == sorted(t["prompt"] for t in DICTS)
    assert len(source.held_out()) == 2
    assert all(source.evaluator(t, Episode(output=f"It is {t.answer}.")).is_correct for t in every)


def test_a_source_is_taken_as_it_is_also_where_a_function_gives_it(plugins):
    source = ListedTasks("mine", tuple(TASKS))
    assert as_task_source(source, None, plugins) is source
    assert as_task_source(lambda: source, None, plugins) is source


def test_a_function_of_a_file_is_named_by_path_and_has_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def make():\n    for n in range(30):\n        yield {'prompt': f'{n}?', 'answer': str(n)}\n\nnumber = 3\n"
    )
    source = load_task_source("mine.py:make", {"held_out": 5, "max_tokens": 7})
    assert (source.name, len(source.train()), len(source.held_out()), source.max_tokens) == ("make", 25, 5, 7)
    with pytest.raises(UnknownNameError, match=r"there is no task function 'mak' in mine.py. Did you mean 'make'"):
        load_task_source("mine.py:mak")
    with pytest.raises(UnknownNameError, match=r"named by their function: mine.py:make_tasks"):
        load_task_source("mine.py")
    with pytest.raises(TaskError, match=r"number: expected tasks .*, got a int"):
        load_task_source("mine.py:number")
    with pytest.raises(ConfigError, match=r"the task function's file 'yours.py' doesn't exist"):
        load_task_source("yours.py:make")


def raises():
    raise KeyError("no such file")


def raises_later():
    yield DICTS[0]
    raise KeyError("no such file")


def never_ends():
    for n in itertools.count():
        yield {"prompt": str(n)}


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "tasks gives no tasks"),
        (lambda: None, "expected tasks .*, got a NoneType"),
        ("", "there is no task ''"),
        (5, "tasks is a int; give a name of `rllm task list`"),
        ({"prompt": "a"}, "expected tasks .*, got a dict"),
        ([DICTS[0], "text"], "tasks item 2: it is a str; each item must be a dict or an rllm.Task"),
        ([DICTS[0], {"answer": "1"}], 'tasks item 2: "prompt" is missing. Each item needs "prompt" and "answer"'),
        ([DICTS[0], {"prompt": "x"}], 'tasks item 2: "answer" is missing'),
        ([DICTS[0], {"prompt": "x", "answer": 1, 5: 6}], "tasks item 2: the names of the fields must be text"),
        ([TASKS[0], TASKS[0]], "tasks item 2: the \"id\" 'q0' stands already in tasks item 1"),
        (raises, "the task function 'raises' raised KeyError: 'no such file'"),
        (raises_later, "the task function 'raises_later' raised KeyError: 'no such file'"),
        (never_ends, "never_ends gives more than 100000 tasks. Let it end, or raise python.limit"),
    ],
)
def test_what_gives_no_tasks_is_told_why(plugins, tasks, message):
    with pytest.raises((TaskError, UnknownNameError), match=message):
        as_task_source(tasks, None, plugins)


def test_a_plugin_that_gives_no_source_is_named(plugins):
    class Strange:
        @hookimpl
        def rllm_register_tasks(self, register):
            register("strange", lambda: [1, 2])

    plugins.register(Strange(), name="strange-plugin")
    with pytest.raises(PluginError, match="plugin 'strange-plugin': task 'strange' gave a list"):
        as_task_source("strange", None, plugins)


def test_a_misspelt_task_is_answered_with_the_nearest(plugins):
    with pytest.raises(UnknownNameError, match=r"no task 'chainsum'. Did you mean 'chain_sum'"):
        as_task_source("chainsum", None, plugins)
