"""Every wrong invocation gets one message that names the fix, and no traceback.

They run in this process, through the function that the installed command calls; ``test_command_line.py`` runs the
installed command itself.
"""

import re
import shlex
import sys

import pytest

from rllm.cli import main

AGENT = """
three = 3
def solve(task): return "x"
def grade(task, episode): return 1.0
def of_three(a, b, c): ...
def seven(): return 7
def nothing(): return []
"""
FILES = {
    "agent.py": AGENT,
    "syntax.py": "def solve(task:\n",
    "raises.py": "\nraise RuntimeError('no luck')\n",
    "imports.py": "import no_such_module\n",
    "broken.yaml": "steps: [1,\n",
    "list.yaml": "- steps\n",
    "typo.yaml": "stpes: 3\n",
    "type.yaml": "steps: many\n",
    "broken.jsonl": '{"prompt": "1 + 1", "answer": "2"}\nnot json\n',
    "noanswer.jsonl": '{"prompt": "1 + 1", "answer": "2"}\n{"prompt": "2 + 2"}\n',
    "empty.jsonl": "",
    "tasks.txt": "What?\n",
    "questions.jsonl": "".join(f'{{"prompt": "q{n}", "answer": "{n}"}}\n' for n in range(20)),
    "chats.jsonl": '{"messages": [{"role": "user", "content": "hi"}]}\n',
    "afile": "",
    "nomodel/readme": "",
    "damaged/config.yaml": "model: x\ntasks: y\n",
    "damaged/metrics.jsonl": "{nonsense}\n",
    "tuned/config.yaml": "model: x\ndata: y\n",
    "full/agent.py": "",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


WRONG = [
    # the command, its parts and options
    ("trian", "no command 'trian'. Did you mean 'train'"),
    ("--verson", "Did you mean '--version'?"),
    ("train --modle x chain_sum", "Did you mean '--model'?"),
    ("train chain_sum --model", "'--model' requires an argument"),
    ("eval chain_sum --resume x", "No such option '--resume'"),
    ("run lst", "Did you mean 'list'?"),
    ("run check", "Missing argument 'RUN'"),
    ("run show damaged --episodes x", "'--episodes': 'x' is not a valid integer"),
    ("run compare damaged", "name at least two runs"),
    ("model shwo", "Did you mean 'show'?"),
    ("task list extra", "unexpected extra argument (extra)"),
    ("plugin shwo grpo", "Did you mean 'show'?"),
    ("doctor --jsn", "Did you mean '--json'?"),
    ("init a b", "unexpected extra argument (b)"),
    ("completion powershell", "'powershell' is not one of 'bash', 'zsh', 'fish'"),
    # settings
    ("train", "name some of `rllm task list` (for example chain_sum), or a JSONL file"),
    ("train chain_sum grp_size=3", "Did you mean 'group_size'"),
    ("train chain_sum grop.std=false", "Did you mean 'grpo.std'"),
    ("train chain_sum reinforc.std=false", "'reinforce'"),
    ("train chain_sum xyzzy=1", "`rllm train --settings` lists all"),
    ("train chain_sum group_size=many", "group_size='many' won't do: input should be a valid integer"),
    ("train chain_sum group_size=0", "should be greater than or equal to 1 (default: 8)"),
    ("train chain_sum optimizer=3", "as optimizer.NAME=VALUE"),
    ("train chain_sum optimizer.lrr=1", "Did you mean 'optimizer.lr'"),
    ("train chain_sum group_size", "write key=value, as in optimizer.lr=1e-5"),
    ("train chain_sum 'steps=[1'", "quote the argument"),
    ("train chain_sum rloo.x=1", "leave it out"),
    ("train chain_sum reinforce.std=true", "set estimator=reinforce, or leave 'reinforce.std' out"),
    ("train chain_sum tinker.device=gpu", "'auto', 'cpu', 'cuda' or 'mps' (default: auto)"),
    ("train chain_sum chain_sum.max_digitss=3", "Did you mean 'chain_sum.max_digits'"),
    ("eval chain_sum optimizer.lr=1", "'optimizer.lr' is a setting of `rllm train`, and `rllm eval` has no such"),
    ("eval chain_sum split=test", "'held_out' or 'train' (default: held_out)"),
    ("sft chats.jsonl batch_sise=2", "Did you mean 'batch_size'?"),
    ("task show chain_sum max_digits=2", "Did you mean 'chain_sum.max_digits'"),
    # the file of settings
    ("train chain_sum --config typ.yaml", "Did you mean 'typo.yaml' or 'type.yaml'?"),
    ("train chain_sum --config broken.yaml", "'broken.yaml' is no YAML: expected the node content, but found"),
    ("train chain_sum --config list.yaml", "it must hold `key: value`"),
    ("train chain_sum --config typo.yaml", "typo.yaml: there is no setting 'stpes'. Did you mean 'steps'?"),
    ("train chain_sum --config type.yaml", "type.yaml: steps='many' won't do: input should be a valid integer"),
    ("train chain_sum --config nomodel", "'nomodel' is a directory"),
    # settings that can't be meant together
    ("train chain_sum loss=cross_entropy", "Use `rllm sft`"),
    ("train chain_sum sampling.top_p=0.5", "Train with sampling.top_p=1.0"),
    ("train chain_sum sampling.temperature=0", "a temperature above 0, usually 1"),
    ("train chain_sum minibatches=99", "Lower it, or raise batch_tasks"),
    ("train chain_sum group_size=1", "Raise group_size, or choose estimator=reinforce"),
    # names
    ("train chain_sums", "Did you mean 'chain_sum'"),
    ("train chain_sum estimator=gpro", "Did you mean 'grpo'"),
    ("train chain_sum loss=pp", "Did you mean 'ppo'?"),
    ("train chain_sum loggers=wandbb", "Did you mean 'wandb'?"),
    ("train chain_sum --backend tinkr", "Did you mean 'tinker'?"),
    ("train chain_sum --model rllm-tinny", "Did you mean 'rllm-tiny'?"),
    ("eval chain_sum --model rllm-tinny", "Did you mean 'rllm-tiny'?"),
    ("eval chain_smu", "Did you mean 'chain_sum'"),
    ("model show smollm", "Did you mean 'smollm2-135m'?"),
    ("task show chain_smu", "Did you mean 'chain_sum'"),
    ("plugin show grop", "Did you mean 'grpo'"),
    # files of tasks
    ("train question.jsonl", "Did you mean 'questions.jsonl'?"),
    ("train tasks.txt", "The name of a file of tasks ends in .jsonl, .csv, .parquet."),
    ("train agent.py", "Tasks of a Python file are named by their function: agent.py:"),
    ("train broken.jsonl", 'broken.jsonl line 2: it is no JSON: Expecting value at column 1. Each line needs "prompt"'),
    ("train noanswer.jsonl", 'noanswer.jsonl line 2: "answer" is missing'),
    ("train empty.jsonl", "empty.jsonl holds no tasks"),
    ("train agent.py:seven --evaluator exact", "expected tasks (dicts or rllm.Task objects), got a int"),
    ("train agent.py:nothing --evaluator exact", 'It must give one at least: a dict with "prompt" and "answer"'),
    ("train agent.py:nothin", "Did you mean 'nothing'?"),
    ("train agnt.py:seven", "Did you mean 'agent.py'?"),
    ("train questions.jsonl --evaluator exct", "Did you mean 'exact'?"),
    # agents and graders
    ("train chain_sum --agent agent.py:sovle", "no agent 'sovle' in agent.py. Did you mean 'solve'?"),
    ("train chain_sum --agent agent.py:three", "it must be a function of the task"),
    ("train chain_sum --agent agent.py:of_three", "it must be callable as agent(task) or agent(task, config)"),
    ("train chain_sum --agent syntax.py:solve", "'(' was never closed (syntax.py, line 1). Mend the file"),
    ("train chain_sum --agent raises.py:solve", "raised RuntimeError in line 2 when it was loaded: no luck"),
    ("train chain_sum --agent imports.py:solve", "No module named 'no_such_module'. Install it, or mend the import"),
    ("train chain_sum --agent agent.py", "is named by its function: agent.py:NAME"),
    ("train chain_sum --agent chatt", "Did you mean 'chat'?"),
    ("train chain_sum --evaluator agent.py:gradee", "no evaluator 'gradee' in agent.py. Did you mean 'grade'?"),
    ("train chain_sum --evaluator agent.py:three", "it must be a function"),
    ("eval chain_sum --agent no.py:solve", "no.py' doesn't exist (looked from"),
    # models
    ("train chain_sum --model ./nomodell", "Did you mean 'nomodel'?"),
    ("train chain_sum --model nomodel", "It must be a Hugging Face model: config.json"),
    ("train chain_sum --model agent.py", "Give the folder that holds config.json"),
    ("model setup mine --path nowhere", "neither a folder here nor a hub id (org/name)"),
    ("model setup rllm-tiny --path x", "choose another name for yours"),
    ("model setup far --base-url http://127.0.0.1:1/v1 --model-id m --key-env NO_KEY", "'NO_KEY' (--key-env) is not"),
    ("model setup far --base-url x:1/v1 --model-id m --key-env HOME", "as https://api.example.com/v1 is"),
    ("model push nomodel me/x", "Give a run's folder, or the model's own"),
    # runs and folders
    ("train --resume nowhere", "See `rllm run list`"),
    ("train --resume afile", "Directory 'afile' is a file"),
    ("sft --resume nowhere", "See `rllm run list`"),
    ("train chain_sum run_dir=damaged --model rllm-tiny", "rllm train --resume damaged"),
    ("train chain_sum run_dir=afile --model rllm-tiny --dry-run", "Choose another run_dir"),
    ("train chain_sum run_dir=afile/x --model rllm-tiny", "Choose another run_dir"),
    ("run list nowhere", "there is no folder 'nowhere' with runs"),
    ("run show nomodel", "See `rllm run list`"),
    ("run check damaged", "damaged/metrics.jsonl' is damaged"),
    ("run show tuned --episodes 2", "holds no rollouts"),
    ("init full", "name another folder"),
    ("init afile/x", "Name another folder"),
    # conversations
    ("sft", "as in `rllm sft chats.jsonl`"),
    ("sft chat.jsonl", "Did you mean 'chats.jsonl'?"),
    ("sft chats.jsonl --model rllm-tiny --dry-run", "chats.jsonl line 1: no message is an assistant's"),
]  # fmt: skip


@pytest.mark.parametrize(("invocation", "fix"), WRONG, ids=[invocation for invocation, _ in WRONG])
def test_a_wrong_invocation_gets_one_message_that_names_the_fix(here, capsys, monkeypatch, invocation, fix):
    before = sorted(path for path in here.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["rllm", *shlex.split(invocation)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, said = capsys.readouterr()
    assert ended.value.code in (1, 2)
    assert out == ""
    assert fix in said
    messages = re.findall(r"^(?:\w*Error|Error): ", said, re.MULTILINE)
    assert len(messages) == 1, said
    if ended.value.code == 1:
        assert said.count("\n") == 1, said
    made = {path for path in here.rglob("*") if "__pycache__" not in path.parts} - {*before}
    assert made == set(), "a wrong invocation leaves nothing behind"


def test_there_are_enough_of_them():
    assert len({invocation for invocation, _ in WRONG}) == len(WRONG) >= 50
