"""``gsm8k`` and ``math`` by the real ``datasets`` loader, from a hub on loopback laid out as the real one.

Which hub it is, is read when huggingface_hub is imported; so the tasks are loaded in a process of its own, one for all.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import FakeHub, jsonl_repo, parquet_repo

from rllm.errors import TaskError
from rllm.tasks import load_task_source
from rllm.tasks.gsm8k import INSTRUCTION

RLLM = str(Path(sys.executable).with_name("rllm"))

LOADER = """
import json, sys
from rllm.errors import RLLMError
from rllm.tasks import load_task_source
from rllm.types import Episode

for line in sys.stdin:
    name, settings, outputs = json.loads(line)
    try:
        source = load_task_source(name, settings)
        tasks = {side: [t.model_dump() for t in getattr(source, side)()] for side in ("train", "held_out")}
        grades = [source.evaluator(source.train()[0], Episode(output=o)).model_dump() for o in outputs]
        print(json.dumps(tasks | {"grades": grades, "max_tokens": source.max_tokens}), flush=True)
    except RLLMError as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
"""


def word_problem(n: int) -> dict[str, str]:
    return {
        "question": f"Tom has {n} bags of 500 eggs. How many eggs?",
        "answer": f"{n} x 500 = <<{n}*500={n * 500}>>{n * 500} eggs.\n#### {n * 500:,}",
    }


GSM8K = {
    "main": {"train": [word_problem(n) for n in range(3, 13)], "test": [word_problem(n) for n in (20, 21)]},
    "socratic": {"train": [word_problem(1)], "test": [word_problem(2)]},
}

SUBJECTS = {
    "algebra": "Algebra",
    "counting_and_probability": "Counting & Probability",
    "geometry": "Geometry",
    "intermediate_algebra": "Intermediate Algebra",
    "number_theory": "Number Theory",
    "prealgebra": "Prealgebra",
    "precalculus": "Precalculus",
}


def competition_problem(subject: str, level: str, n: int = 2) -> dict[str, str]:
    return {
        "problem": f"In {subject}, what is $1 \\div {n}$?",
        "level": level,
        "type": SUBJECTS[subject],
        "solution": f"It is not $\\boxed{{1}}$, but $\\boxed{{\\frac{{1}}{{{n}}}}}$.",
    }


MATH = {
    subject: {
        "train": [competition_problem(subject, "Level 5"), competition_problem(subject, "Level 1", 3)],
        "test": [competition_problem(subject, "Level 3", 7)],
    }
    for subject in SUBJECTS
}
MATH["geometry"]["train"].append(competition_problem("geometry", "Level ?", 9))
MATH_500 = [
    {
        "problem": "Compute\n$\\binom{5}{2}$.",
        "solution": "$\\boxed{10}$",
        "answer": "10",
        "subject": "Counting & Probability",
        "level": 2,
        "unique_id": "test/counting_and_probability/1.json",
    },
    {
        "problem": "Where?",
        "solution": "$\\boxed{(3,\\frac{\\pi}{2})}$",
        "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
        "subject": "Precalculus",
        "level": 5,
        "unique_id": "test/precalculus/807.json",
    },
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def hub():
    with FakeHub(
        {
            "openai/gsm8k": parquet_repo(GSM8K),
            "EleutherAI/hendrycks_math": parquet_repo(MATH),
            "HuggingFaceH4/MATH-500": jsonl_repo({"test": MATH_500}),
        }
    ) as hub:
        yield hub


def environment(address: str, home: Path, **more: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    return plain | {"HF_ENDPOINT": address, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"} | more


@pytest.fixture(scope="module")
def loader(hub, home):
    """A process that loads tasks from the hub, one after another."""
    with subprocess.Popen(
        [sys.executable, "-c", LOADER], env=environment(hub.address, home), text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        yield process
        process.stdin.close()


@pytest.fixture
def load(loader):
    """``load("gsm8k", size=3)``: the tasks of both sides, and what the grader gives the first one's outputs."""

    def ask(name: str, *outputs: str, **settings: object) -> dict:
        loader.stdin.write(json.dumps([name, settings, outputs]) + "\n")
        return json.loads(loader.stdout.readline())

    return ask


@pytest.fixture
def publish(hub):
    """``publish(repo, files)``: a commit that is there for the length of the test."""
    before = {repo: hub.files(repo) for repo in hub.repos()}
    yield hub.publish
    hub.gated.clear()
    for repo, files in before.items():
        hub.publish(repo, files)


def test_gsm8k_is_loaded_with_its_splits_and_graded(load):
    found = load("gsm8k", "3 x 500 = 1500\n#### $1,500.00", "1500", "#### 1,501")
    assert [(t["id"], t["answer"]) for t in found["train"][:2]] == [
        ("gsm8k-train-0", "1500"),
        ("gsm8k-train-1", "2000"),
    ]
    assert [t["id"] for t in found["held_out"]] == ["gsm8k-test-0", "gsm8k-test-1"]
    assert found["train"][0]["prompt"] == word_problem(3)["question"] + INSTRUCTION
    assert found["train"][0]["data"] == {"solution": word_problem(3)["answer"]}
    assert len(found["train"]) == 10
    assert [(g["value"], g["signals"]["answered"], g["signals"]["number"]) for g in found["grades"]] == [
        (1.0, 1.0, 1.0),
        (0.0, 0.0, 1.0),
        (0.0, 1.0, 0.0),
    ]


def test_math_is_loaded_from_both_of_its_sets_and_graded(load):
    found = load("math", "So $\\boxed{0.5}$.", "First \\boxed{0.5}, no: \\boxed{\\frac13}", "0.5")
    assert len(found["train"]) == 2 * len(SUBJECTS) + 1
    assert {t["answer"] for t in found["train"]} == {"\\frac{1}{2}", "\\frac{1}{3}", "\\frac{1}{9}"}
    assert found["train"][0]["data"] == {
        "subject": "algebra",
        "level": 5,
        "solution": MATH["algebra"]["train"][0]["solution"],
    }
    assert [t["id"] for t in found["held_out"]] == [f"math-500-{row['unique_id']}" for row in MATH_500]
    assert [t["answer"] for t in found["held_out"]] == [row["answer"] for row in MATH_500]
    assert found["held_out"][0]["data"]["subject"] == "counting_and_probability"
    assert [g["value"] for g in found["grades"]] == [1.0, 0.0, 0.0]
    assert [g["signals"]["answered"] for g in found["grades"]] == [1.0, 1.0, 0.0]


def test_settings_choose_among_the_questions(load):
    few = load("gsm8k", size=4, held_out=1)
    assert (len(few["train"]), len(few["held_out"])) == (4, 1)
    assert few == load("gsm8k", size=4, held_out=1)
    others = [load("gsm8k", size=4, held_out=1, data_seed=seed) for seed in range(1, 4)]
    assert any(o["train"] != few["train"] for o in others)
    easy = load("math", max_level=2, subjects=["geometry", "counting_and_probability"])
    assert {(t["data"]["subject"], t["data"]["level"]) for t in easy["train"]} == {
        ("geometry", 1),
        ("counting_and_probability", 1),
    }
    assert [t["data"]["level"] for t in easy["held_out"]] == [2]
    assert "gsm8k.size=11, but there are only 10 different questions" in load("gsm8k", size=11)["error"]
    none = load("math", subjects=[])
    assert none["error"] == "TaskError: math: no problem of no subject has a level up to 5"


def test_a_held_out_question_is_never_trained_on(load, publish):
    twin = word_problem(20) | {"question": word_problem(20)["question"].upper().replace(" ", "  ")}
    publish("openai/gsm8k", parquet_repo({"main": {**GSM8K["main"], "train": [twin, word_problem(3)]}}))
    assert [t["id"] for t in load("gsm8k")["train"]] == ["gsm8k-train-1"]
    stray = {"problem": "Compute $\\binom{5}{2}$", "level": "Level 2", "type": "Algebra", "solution": "$\\boxed{10}$"}
    train = [stray, competition_problem("algebra", "Level 2")]
    publish("EleutherAI/hendrycks_math", parquet_repo(MATH | {"algebra": {"train": train}}))
    # Not even where the settings leave it out of the validation.
    assert [t["id"] for t in load("math", subjects=["algebra"])["train"]] == ["math-algebra-1"]


def test_a_commit_as_revision_is_kept_to(load, publish, hub):
    first = hub.commit("openai/gsm8k")
    second = publish("openai/gsm8k", parquet_repo({"main": {**GSM8K["main"], "train": [word_problem(40)]}}))
    assert [t["answer"] for t in load("gsm8k")["train"]] == ["20000"]
    assert len(load("gsm8k", revision=first)["train"]) == 10
    assert load("gsm8k", revision=second) == load("gsm8k")
    assert load("gsm8k", revision="v2")["error"].startswith(
        "TaskError: gsm8k: the data set 'openai/gsm8k' has no revision 'v2'. Name a branch, tag or commit of http"
    )


def test_what_has_been_loaded_is_not_fetched_again(load, hub):
    load("gsm8k")
    hub.asked.clear()
    load("gsm8k")
    assert [path for path in hub.asked if path.endswith(".parquet")] == []


BROKEN = [
    ("gsm8k", None, "no data set 'openai/gsm8k' that is open to you: it may have been moved or made private"),
    ("gsm8k", "gated", "the data set 'openai/gsm8k' is gated. Ask for access at http"),
    ("gsm8k", parquet_repo({"other": GSM8K["main"]}), "BuilderConfig 'main' not found. Available: ['other']"),
    (
        "gsm8k",
        parquet_repo({"main": {"train": [word_problem(1)]}}),
        "Unknown split \"test\". Should be one of ['train']",
    ),
    (
        "gsm8k",
        parquet_repo({"main": {s: [{"question": "?", "solution": "#### 1"}] for s in ("train", "test")}}),
        "the split 'test' has no column 'answer'; it has question, solution. If its form has changed",
    ),
    (
        "gsm8k",
        parquet_repo({"main": {s: [{"question": "?", "answer": None}] for s in ("train", "test")}}),
        "row 0 of 'test' has the answer None; it must be text",
    ),
    (
        "gsm8k",
        parquet_repo({"main": {s: [{"question": "?", "answer": "It is 5."}] for s in ("train", "test")}}),
        "row 0 of 'test' has no line '#### N' in its answer: 'It is 5.'",
    ),
    ("gsm8k", parquet_repo(GSM8K) | {"main/train-00000-of-00001.parquet": b"junk"}, "can't be loaded: ArrowInvalid"),
    ("math", jsonl_repo({"train": MATH_500}), "Unknown split \"test\". Should be one of ['train']"),
]


@pytest.mark.parametrize(("name", "files", "said"), BROKEN)
def test_a_set_that_is_not_as_it_was_is_said_in_one_line(name, files, said, load, publish, hub):
    repo = {"gsm8k": "openai/gsm8k", "math": "HuggingFaceH4/MATH-500"}[name]
    if files == "gated":
        hub.gated.add(repo)
    elif files is None:
        hub.remove(repo)
    else:
        publish(repo, files)
    error = load(name)["error"]
    assert said in error
    assert error.startswith(f"TaskError: {name}: ")
    assert "\n" not in error


def test_a_hub_that_is_out_of_reach_is_said_at_once(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    done = subprocess.run(
        [RLLM, "task", "show", "gsm8k"], env=environment(address, tmp_path), capture_output=True, text=True,
        timeout=20,  # the libraries' own retries take longer
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"TaskError: gsm8k: the Hugging Face hub can't be reached at {address} (ConnectError")
    assert done.stderr.count("\n") == 1


def test_the_cached_copy_is_taken_offline_and_never_another_than_was_asked_for(hub, tmp_path):
    def load(*requests: object, **more: str) -> list[dict]:
        done = subprocess.run(
            [sys.executable, "-c", LOADER], input="".join(json.dumps(["gsm8k", r, []]) + "\n" for r in requests),
            env=environment(hub.address, tmp_path, **more), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return [json.loads(line) for line in done.stdout.splitlines()]

    (online,) = load({})
    offline, other = load({}, {"revision": "b" * 40}, HF_HUB_OFFLINE="1")
    assert len(online["train"]) == 10
    assert offline == online
    assert f"the cached copy is of the commit {hub.commit('openai/gsm8k')}" in other["error"]


@pytest.mark.parametrize(
    ("name", "module", "said"),
    [
        ("gsm8k", "datasets", "the task 'gsm8k' needs datasets"),
        ("math", "huggingface_hub", "the task 'math' needs huggingface_hub"),
        ("math", "math_verify", "the task 'math' needs math-verify"),
    ],
)
def test_the_extra_that_is_missing_is_named(name, module, said, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    extra = "math" if module == "math_verify" else "hub"
    with pytest.raises(TaskError, match=rf'{said}.* pip install "rllm-core\[{extra}\]"'):
        load_task_source(name)
