"""``@rllm.evaluator``, what may stand for an evaluator, and the built-in graders."""

import json

import pytest

import rllm
from rllm.errors import ConfigError, UnknownNameError
from rllm.plugins import PluginManager
from rllm.reward import NamedEvaluator, as_evaluator, evaluator
from rllm.types import Episode, Task


@pytest.fixture(scope="module")
def plugins():
    return PluginManager(load_installed=False)


def mine(task, episode):
    """Compares."""
    return episode.output == task.answer


def test_a_marked_function_is_called_as_before_and_keeps_its_name():
    assert rllm.evaluator is evaluator
    marked = evaluator(mine)
    assert isinstance(marked, NamedEvaluator)
    assert (marked.name, marked.__name__, marked.__doc__) == ("mine", "mine", "Compares.")
    assert marked(Task(id="1", answer=3), Episode(output=3)) is True
    assert evaluator(name="other")(mine).name == "other"
    assert evaluator(mine, name="third").name == "third"


def test_a_marked_function_can_be_an_object_with_a_name():
    class Strict:
        name = "strict"

        def __call__(self, task, episode):
            return 1

    assert evaluator(Strict()).name == "strict"
    assert evaluator(lambda task, episode: 1).name == "<lambda>"


@pytest.mark.parametrize("function", [lambda task, episode: 1, lambda *a: 1, lambda task, episode, strict=True: 1])
def test_whatever_can_be_called_with_a_task_and_an_episode_is_taken(function, plugins):
    assert as_evaluator(function, plugins)(Task(id="1"), Episode()) == 1


@pytest.mark.parametrize("function", [lambda: 1, lambda task: 1, lambda a, b, c: 1, lambda task, *, episode: 1])
def test_other_parameters_are_refused_before_anything_runs(function, plugins):
    with pytest.raises(ConfigError, match=r"it must be callable as <lambda>\(task, episode\)"):
        as_evaluator(function, plugins)


@pytest.mark.parametrize("thing", [5, None, object()])
def test_what_can_not_be_called_is_refused(thing, plugins):
    with pytest.raises(ConfigError, match="an evaluator must be a function of the task and the episode, got"):
        as_evaluator(thing, plugins)


def test_names_files_and_modules_are_found(tmp_path, monkeypatch, plugins):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import rllm\nlimit = 3\n\n@rllm.evaluator(name='shown')\ndef grade(task, episode):\n    return limit\n"
    )
    found = as_evaluator("mine.py:grade", plugins)
    assert (found.name, found(Task(id="1"), Episode())) == ("shown", 3)
    assert as_evaluator("mine.py:grade", plugins) is found  # loaded once: it shares its state with the agent
    assert as_evaluator("exact", plugins).name == "exact"
    assert as_evaluator("operator:eq", plugins).name == "eq"
    with pytest.raises(ConfigError, match=r"the evaluator 'mine.py:limit' is a int; it must be a function"):
        as_evaluator("mine.py:limit", plugins)
    with pytest.raises(UnknownNameError, match=r"no evaluator 'grad' in mine.py. Did you mean 'grade'"):
        as_evaluator("mine.py:grad", plugins)
    with pytest.raises(UnknownNameError, match=r"no evaluator 'exactly'. Did you mean 'exact'"):
        as_evaluator("exactly", plugins)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import sys\nsys.exit(2)\n", "raised SystemExit in line 2 when it was loaded: 2"),
        ("1 / 0\n", "raised ZeroDivisionError in line 1 when it was loaded: division by zero"),
        ("def grade(:\n", "raised SyntaxError when it was loaded"),
        ("import no_such_module_xyz\n", "raised ModuleNotFoundError"),
    ],
)
def test_a_file_that_can_not_be_loaded_is_named(tmp_path, monkeypatch, plugins, source, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(ConfigError, match=f"the evaluator's file 'broken.py' {message}"):
        as_evaluator("broken.py:grade", plugins)


@pytest.mark.parametrize("name", ["no_such_module_xyz:grade", ":grade"])
def test_a_module_that_is_not_there_is_named(plugins, name):
    with pytest.raises(ConfigError, match=r"the evaluator '.*Write path/to/file.py:name, or an installed module:name"):
        as_evaluator(name, plugins)


# --- the built-in graders


GRADED = [
    ("exact", "Paris", " paris\n", 1),
    ("exact", "Paris", "It is Paris", 0),
    ("exact", 4, "4", 1),
    ("exact", "4", 4, 1),
    ("exact", "Paris", None, 0),
    ("exact", {"a": [1, 2]}, {"a": [1, 2]}, 1),
    ("contains", "Paris", "The capital is PARIS.", 1),
    ("contains", "7", "17", 0),
    ("contains", "7", "It is 7!", 1),
    ("contains", "a.b", "axb", 0),
    ("contains", "C++", "I like C++, mostly", 1),
    ("number", 29, "The book costs $29.00.", 1),
    ("number", "70000", "$70,000", 1),
    ("number", "She has 40 left.\n#### 40", "#### 12 was theirs\n#### 40", 1),
    ("number", 0.5, "1/2", 1),
    ("number", "1/2", 0.5, 1),
    ("number", "1/3", "0.333", 0),
    ("number", 29, "29 or 30", 0),
    ("number", 29, "none", 0),
    ("number", 29, None, 0),
]


@pytest.mark.parametrize(("name", "answer", "output", "value"), GRADED)
def test_the_built_in_graders_compare_as_a_person_would(plugins, name, answer, output, value):
    graded = as_evaluator(name, plugins)(Task(id="1", answer=answer), Episode(output=output))
    assert rllm.reward.as_reward(graded).value == value


@pytest.mark.parametrize(
    ("name", "answer", "message"),
    [
        ("exact", None, "the task has no answer, and the grader 'exact' compares with it"),
        ("contains", " ", "the task has no answer, and the grader 'contains' compares with it"),
        ("number", None, "the task's answer is None, which is no number; use another grader"),
        ("number", "many", "the task's answer is 'many', which is no number"),
        ("number", True, "the task's answer is True, which is no number"),
    ],
)
def test_a_task_without_a_fitting_answer_is_an_error_and_not_a_0(plugins, name, answer, message):
    with pytest.raises(ValueError, match=message):
        as_evaluator(name, plugins)(Task(id="1", answer=answer), Episode(output="4"))


def test_every_built_in_grader_gives_the_answer_itself_full_marks(plugins):
    for item in plugins.all("evaluator"):
        for answer in ("42", "3/4", "-1,000.5", 7, 0.1):
            for output in (answer, json.loads(json.dumps(answer))):
                graded = item.value(Task(id="1", answer=answer), Episode(output=output))
                assert rllm.reward.as_reward(graded).value == 1.0
