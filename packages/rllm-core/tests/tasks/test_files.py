"""The user's files: what is read, how it is split, and how a broken line is named."""

import json

import pytest

from rllm.config import TrainConfig
from rllm.configure import parse_assignments, resolve_config, settings_of
from rllm.errors import ConfigError, TaskError, UnknownNameError
from rllm.plugins import PluginManager
from rllm.tasks import as_task_source, load_task_source
from rllm.types import Episode

NEEDS = 'Each line needs "prompt" and "answer"; see docs/tasks.md'


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def plugins():
    return PluginManager(load_installed=False)


def write(name, *records):
    lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
    with open(name, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def sums(count, start=0):
    return [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(start, start + count)]


def test_a_line_is_a_task_and_what_else_it_holds_is_its_data():
    write("t.jsonl", {"prompt": "Hi?", "answer": "yes", "id": 7, "level": 3, "tags": ["a"]}, "", *sums(1))
    tasks = load_task_source("t.jsonl", {"held_out": 0}).train()
    assert [(t.id, t.prompt, t.answer, t.data, t.source) for t in tasks] == [
        ("7", "Hi?", "yes", {"level": 3, "tags": ["a"]}, "t"),
        ("t:3", "0 + 1 =", "1", {}, "t"),
    ]


def test_a_file_of_windows_with_a_mark_and_umlauts_is_read(tmp_path):
    text = '{"prompt": "Größe?", "answer": "ü"}\r\n{"prompt": "b", "answer": "c"}'
    (tmp_path / "t.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [t.prompt for t in load_task_source("t.jsonl", {"held_out": 0}).train()] == ["Größe?", "b"]


LINE_12 = [
    ({"prompt": "Who?"}, f'"answer" is missing. {NEEDS}'),
    ({"prompt": "Who?", "answer": None}, f'"answer" is missing. {NEEDS}'),
    ({"answer": "me"}, f'"prompt" is missing. {NEEDS}'),
    ({"prompt": 5, "answer": "me"}, f'"prompt" is 5; it must be text. {NEEDS}'),
    ({"prompt": " \n", "answer": "me"}, f'"prompt" is empty. {NEEDS}'),
    (["Who?", "me"], f'it holds a list, not an object {{"prompt": …}}. {NEEDS}'),
    ('{"prompt": "Who?", answer: 3}', "it is no JSON: Expecting property name enclosed in double quotes at column 20."),
    ('{"prompt": "Who?"', "it is no JSON: "),
    ("prompt,answer", "it is no JSON: Expecting value at column 1."),
    ('{"prompt": "Who?", "answer": NaN}', "NaN is no number of JSON."),
    ('{"prompt": "Who?", "answer": 1, "prompt": "What?"}', '"prompt" stands twice in one object.'),
    ('{"prompt": "Who?", "answer": ' + "[" * 100_000 + "]" * 100_000 + "}", "maximum recursion depth exceeded"),
    ('{"prompt": "\\ud83d", "answer": "x"}', "it holds half of a surrogate pair"),
    ({"prompt": "Who?", "answer": 1, "id": [1]}, '"id" is [1]; it must be text or a whole number, or left out'),
    ({"prompt": "Who?", "answer": 1, "id": True}, '"id" is True; it must be text or a whole number, or left out'),
    (
        {"prompt": "Who?", "answer": 1, "id": "t:3"},
        "the \"id\" 't:3' stands already in t.jsonl line 3. Give each its own, or leave it out",
    ),
]


@pytest.mark.parametrize(("line", "message"), LINE_12)
def test_a_broken_line_is_named_with_what_is_wrong_and_what_to_do(line, message):
    write("t.jsonl", *sums(11), line, *sums(2, start=20))
    with pytest.raises(TaskError) as caught:
        load_task_source("t.jsonl")
    assert str(caught.value).startswith(f"t.jsonl line 12: {message}")


def test_the_message_of_a_missing_answer_is_the_documented_sentence():
    write("tasks.jsonl", *sums(11), {"prompt": "Who?"})
    with pytest.raises(TaskError) as caught:
        load_task_source("tasks.jsonl")
    assert str(caught.value) == (
        'tasks.jsonl line 12: "answer" is missing. Each line needs "prompt" and "answer"; see docs/tasks.md'
    )


def test_a_file_that_is_no_utf8_is_named_with_its_line(tmp_path):
    (tmp_path / "t.jsonl").write_bytes(json.dumps(sums(1)[0]).encode() + b'\n{"prompt": "\xff"}')
    with pytest.raises(TaskError, match=r"t.jsonl line 2: it is not UTF-8 \(byte 13\). Save the file as UTF-8"):
        load_task_source("t.jsonl")


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_said_to_hold_no_tasks(tmp_path, content):
    (tmp_path / "t.jsonl").write_text(content)
    with pytest.raises(TaskError, match=r't.jsonl holds no tasks. Each line needs "prompt" and "answer"'):
        load_task_source("t.jsonl")


def test_a_missing_file_is_named_with_where_it_was_looked_for(tmp_path):
    with pytest.raises(TaskError, match=r"the task file 'no.jsonl' can't be read: No such file or directory"):
        load_task_source("no.jsonl")


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "t.jsonl").mkdir()
    with pytest.raises(TaskError, match="can't be read: Is a directory"):
        load_task_source("t.jsonl")


@pytest.mark.parametrize("name", ["tasks.json", "folder/tasks"])
def test_a_name_that_looks_like_a_file_is_told_what_a_file_is_called(plugins, name):
    with pytest.raises(UnknownNameError, match=r"ends in .jsonl, .csv, .parquet"):
        as_task_source(name, None, plugins)


# --- what is held out


def test_a_share_is_held_out_by_question_and_repeats_stay_together():
    write("t.jsonl", *sums(20), *sums(20))
    source = load_task_source("t.jsonl", {"held_out": 0.25})
    train, held_out = ({t.prompt for t in part} for part in (source.train(), source.held_out()))
    assert (len(train), len(held_out), train & held_out) == (15, 5, set())
    assert len(source.held_out()) == 10


def test_a_second_file_is_held_out_whole():
    write("train.jsonl", *sums(5))
    write("test.jsonl", *sums(3, start=50))
    source = load_task_source("train.jsonl", {"held_out": "test.jsonl"})
    assert [t.answer for t in source.train()] == ["1", "2", "3", "4", "5"]
    assert [t.answer for t in source.held_out()] == ["51", "52", "53"]


def test_a_question_of_both_files_is_named_with_both_places():
    write("train.jsonl", *sums(5))
    write("test.jsonl", *sums(1, start=50), {"prompt": " 3 +  1 =", "answer": "4"})
    with pytest.raises(TaskError, match=r"test.jsonl line 2: this question is also trained on, see train.jsonl line 4"):
        load_task_source("train.jsonl", {"held_out": "test.jsonl"})


def test_all_can_be_held_out_for_an_evaluation():
    write("t.jsonl", *sums(7))
    source = load_task_source("t.jsonl", {"held_out": 1.0})
    assert (len(source.train()), len(source.held_out())) == (0, 7)


def test_the_settings_of_a_file_are_reached_from_the_command_line(plugins):
    write("t.jsonl", *sums(20))
    layer = {"tasks": "t.jsonl"} | parse_assignments(["file.held_out=4", "file.max_tokens=9"])
    config = resolve_config(TrainConfig, [layer], plugins)
    source = as_task_source("t.jsonl", settings_of(config, "t.jsonl"), plugins)
    assert (len(source.held_out()), source.max_tokens) == (4, 9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"held_out": -3}, "file.held_out"),
        ({"held_out": 1.5}, "a share of the questions lies between 0 and 1"),
        ({"grader": "fuzzy"}, "file.grader='fuzzy' won't do"),
        ({"hold_out": 3}, "no setting 'file.hold_out'.*'file.held_out'"),
        ({"path": "other.jsonl"}, "tasks is 't.jsonl', but file.path is 'other.jsonl'. Leave file.path out"),
    ],
)
def test_a_wrong_setting_of_a_file_is_named(settings, message):
    write("t.jsonl", *sums(20))
    with pytest.raises(ConfigError, match=message):
        load_task_source("t.jsonl", settings)


def test_the_registered_name_takes_the_file_as_a_setting():
    write("t.jsonl", *sums(20))
    assert len(load_task_source("file", {"path": "t.jsonl", "held_out": 2}).held_out()) == 2
    with pytest.raises(ConfigError, match=r"file.path is not set"):
        load_task_source("file")


# --- which grader is the file's own


@pytest.mark.parametrize(
    ("answers", "output", "value"),
    [
        (["7", 8], "so it is 7.", 1.0),  # numbers: the last one counts
        (["7", "eight"], "so it is 7.", 0.0),  # texts: all of it counts
        (["7", "eight"], " 7 ", 1.0),
        (["2020-01-01", "x"], "2020-01-01", 1.0),
    ],
)
def test_numbers_are_graded_as_numbers_and_text_as_text(answers, output, value):
    write("t.jsonl", *({"prompt": str(n), "answer": a} for n, a in enumerate(answers)))
    source = load_task_source("t.jsonl", {"held_out": 0})
    assert float(as_value(source.evaluator(source.train()[0], Episode(output=output)))) == value


def as_value(graded):
    return getattr(graded, "value", graded)


def test_a_file_without_any_answers_has_no_grader_of_its_own():
    write("t.jsonl", {"prompt": "Write a poem."}, {"prompt": "Write a song."})
    assert load_task_source("t.jsonl", {"held_out": 0}).evaluator is None


# --- CSV and Parquet ----------------------------------------------------------------------------------------------


def test_a_csv_file_gives_the_tasks_that_jsonl_would(tmp_path):
    (tmp_path / "t.csv").write_bytes(
        b'\xef\xbb\xbfprompt,answer,level\r\n"Red, or\r\nblue?",blue,3\r\n\r\n"Say ""hi""",hi,\r\n'
    )
    tasks = load_task_source("t.csv", {"held_out": 0}).train()
    assert [(t.prompt, t.answer, t.data) for t in tasks] == [
        ("Red, or\r\nblue?", "blue", {"level": "3"}),
        ('Say "hi"', "hi", {}),
    ]
    assert len({t.id for t in tasks}) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("question,answer\n1,2\n", "t.csv line 1: its first row must name the columns; there is no 'prompt'"),
        ("prompt,answer,answer\n", "the column 'answer' stands there twice"),
        ("prompt,answer\na,b\n1,2,3\n", "t.csv row at line 3: it has 3 values for 2 columns. Quote what holds commas"),
        ('prompt,answer\n"a,b\n', "t.csv row at line 2: it is no CSV"),
        ("prompt,answer\na,b\nc,\n", 't.csv row at line 3: "answer" is missing. Each row needs'),
        ("prompt,answer\n,b\n", 't.csv row at line 2: "prompt" is missing'),
        ("prompt,answer\n", "t.csv holds no tasks. Each row needs"),
        (b"prompt,answer\n\xff,b\n", "t.csv: it is not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_named(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TaskError) as caught:
        load_task_source("t.csv")
    assert message in str(caught.value)


def test_a_parquet_file_gives_the_tasks_that_jsonl_would(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import datetime

    import pyarrow.parquet

    rows = [
        {"prompt": "a", "answer": 1, "when": datetime.date(2026, 1, 2), "tags": ["x", "y"]},
        {"prompt": "b", "answer": 2, "when": None, "tags": None},
    ]
    pyarrow.parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    tasks = load_task_source("t.parquet", {"held_out": 0}).train()
    assert [(t.prompt, t.answer, t.data) for t in tasks] == [
        ("a", 1, {"when": "2026-01-02", "tags": ["x", "y"]}),
        ("b", 2, {}),
    ]
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(TaskError, match=r"t\.parquet is no Parquet file"):
        load_task_source("t.parquet")
    pyarrow.parquet.write_table(arrow.Table.from_pylist([*rows, {"prompt": "c"}]), tmp_path / "t.parquet")
    with pytest.raises(TaskError, match=r't\.parquet row 3: "answer" is missing\. Each row needs'):
        load_task_source("t.parquet")
