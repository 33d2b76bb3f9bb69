"""Measures what rllm-tiny can do, on conversations of another seed than it was trained on.

    python tools/rllm_tiny/check.py [FOLDER]

Every reply of the assistant is drawn at temperature 1, given the conversation as it should have been until then.
"""

import argparse
import json
import re
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from data import LONG, SHORT, Example, examples
from pretrain import SHIPPED
from transformers import AutoModelForCausalLM, AutoTokenizer

SEED = 10_001
EXAMPLES = 600
BATCH = 64
MAX_TOKENS = 96
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Turn:
    """One reply to be drawn: what leads to it, and what the data say."""

    kind: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    expected: dict[str, Any]


def turns(example: Example) -> list[Turn]:
    """The assistant's turns of a conversation; calls, answers from a result and second exchanges are named apart."""
    found: list[Turn] = []
    for index, message in enumerate(example.messages):
        if message["role"] == "assistant":
            after_tool = example.messages[index - 1]["role"] == "tool"
            asked = sum(m["role"] == "user" for m in example.messages[:index])
            kind = "answer" if after_tool else "call" if "tool_calls" in message else example.kind
            kind = "second" if kind == example.kind and asked > 1 else kind
            found.append(Turn(kind, example.messages[:index], example.tools, message))
    return found


@torch.no_grad()
def draw(model: Any, tokenizer: Any, batch: list[Turn]) -> list[str]:
    """One reply for each turn, special tokens included; a reply without an end was cut off."""
    texts = [
        tokenizer.apply_chat_template(t.messages, tools=t.tools or None, add_generation_prompt=True, tokenize=False)
        for t in batch
    ]
    inputs = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt", add_special_tokens=False)
    ids = model.generate(**inputs, do_sample=True, max_new_tokens=MAX_TOKENS, pad_token_id=tokenizer.pad_token_id)
    return [
        text.replace(tokenizer.pad_token, "") for text in tokenizer.batch_decode(ids[:, inputs.input_ids.shape[1] :])
    ]


def judge(turn: Turn, reply: str, end: str) -> dict[str, bool]:
    """What is said of one reply, by the kind of its turn."""
    said = {"stops": reply.endswith(end)}
    body = reply.removesuffix(end)
    if turn.kind == "call":
        calls = [_parse(text) for text in CALL.findall(body)]
        wanted = [
            {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
            for call in turn.expected["tool_calls"]
        ]
        said["well_formed"] = bool(calls) and None not in calls and not CALL.sub("", body).strip()
        said["right_tool"] = [c and c.get("name") for c in calls] == [w["name"] for w in wanted]
        said["right_call"] = calls == wanted
    elif turn.kind == "sum":
        a, b = re.findall(r"\d", turn.messages[-1]["content"])
        said["right"] = body == str(int(a) + int(b))
    elif turn.kind == "answer":
        said["as_in_data"] = body == turn.expected["content"]
    elif turn.kind == "pick":
        said["of_the_given"] = set(body.split()) <= set(turn.messages[-1]["content"].split())
    elif turn.kind == "no_tool":
        said["no_call"] = "<tool_call>" not in body
    return said


def _parse(text: str) -> dict[str, Any] | None:
    try:
        call = json.loads(text)
    except json.JSONDecodeError:
        return None
    return call if isinstance(call, dict) and set(call) == {"name", "arguments"} else None


def main() -> None:
    """Draw, judge, and print shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=SHIPPED)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    drawn = [e for kinds in (SHORT, LONG) for e in islice(examples(SEED, kinds), EXAMPLES)]
    every = [turn for example in drawn for turn in turns(example)]
    every.sort(key=lambda turn: len(str(turn.messages)) + len(str(turn.tools)))
    hits: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for start in range(0, len(every), BATCH):
        batch = every[start : start + BATCH]
        for turn, reply in zip(batch, draw(model, tokenizer, batch), strict=True):
            for name, is_so in judge(turn, reply, tokenizer.eos_token).items():
                counts[turn.kind, name] += 1
                hits[turn.kind, name] += is_so
    for kind, name in sorted(counts):
        print(f"{kind:8}  {name:12}  {hits[kind, name] / counts[kind, name]:.3f}  of {counts[kind, name]}")


if __name__ == "__main__":
    main()
