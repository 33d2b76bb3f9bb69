"""Random conversations, and what a model would naturally sample for a reply, told from the template's own rendering."""

import json
from typing import Any

from hypothesis import strategies as st

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does something.",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "n": {"type": "integer"},
                    "on": {"type": "boolean"},
                    "items": {"type": "array"},
                    "options": {"type": "object"},
                },
            },
        },
    }
    for name in ("look_up", "add")
]

# Text as people write it, in all scripts; nothing that templates trim, no control characters.
_letters = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cn", "Zs", "Zl", "Zp"), exclude_characters="<>[]{}"), min_size=1
)
_parts = _letters | st.sampled_from(["hello", "👩‍🚀", "漢字", "naïve", "3.14", "\n", "\n\n", "  "])
said = st.lists(_parts, min_size=1, max_size=6).map(lambda parts: " ".join(parts).strip()).filter(bool)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | said, lambda v: st.lists(v, max_size=2), max_leaves=4
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": said,
        "n": st.integers(-(10**9), 10**9),
        "on": st.booleans(),
        "items": st.lists(json_values, max_size=3),
        "options": st.dictionaries(st.text("abc", min_size=1, max_size=2), json_values, max_size=2),
    },
)
calls = st.tuples(st.sampled_from(["look_up", "add"]), arguments)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def calling(*made: tuple[str, dict[str, Any]], content: str | None = None, first_id: int = 0) -> dict[str, Any]:
    """An assistant's turn that calls tools, as the gateway gives it back."""
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": f"call{first_id + n:05}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(given, ensure_ascii=False)},
            }
            for n, (name, given) in enumerate(made)
        ],
    }


@st.composite
def turns(draw, *, tools: bool, most_calls: int = 2):
    """A conversation as (reply, messages that come after it) pairs behind a first question, of 1 to 6 turns."""
    first, made, last = user(draw(said)), [], "reply"
    for n in range(draw(st.integers(1, 6))):
        if tools and draw(st.booleans()):
            asked = draw(st.lists(calls, min_size=1, max_size=most_calls))
            reply = calling(*asked, content=draw(st.none() | said), first_id=10 * n)
            results = [{"role": "tool", "tool_call_id": c["id"], "content": draw(said)} for c in reply["tool_calls"]]
            made.append((reply, results))
            last = "call"
        else:
            made.append(({"role": "assistant", "content": draw(said)}, [user(draw(said))]))
            last = "reply"
    if last == "call":  # what is left open is answered
        made.append(({"role": "assistant", "content": draw(said)}, [user(draw(said))]))
    return first, made


def natural_text(tokenizer: Any, messages: list[Any], reply: dict[str, Any], tools: Any, end_of_turn: str) -> str:
    """What the template writes for a reply, up to the end of its turn: what a model that follows it samples."""
    plain = [_with_objects(m) for m in [*messages, reply]]
    prompt = tokenizer.apply_chat_template(plain[:-1], tools=tools, add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template(plain, tools=tools, tokenize=False)
    assert whole.startswith(prompt)
    return whole[len(prompt) :].removeprefix("<think>\n\n</think>\n\n").partition(end_of_turn)[0]


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    loaded = [
        {**c, "function": {**c["function"], "arguments": json.loads(c["function"]["arguments"])}}
        for c in message["tool_calls"]
    ]
    return {**message, "content": message["content"] or "", "tool_calls": loaded}
