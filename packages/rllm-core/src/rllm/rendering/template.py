"""A model's chat template: messages to text, and at the start what it can write and what it would leave out."""

__all__ = ["MARKER", "PROBE_CALL", "PROBE_TOOL", "ChatTemplate", "asked"]

from collections.abc import Mapping, Sequence
from typing import Any

from rllm.errors import TemplateError
from rllm.rendering.messages import Message, plain_messages, tool_call

MARKER = "Zq7rllm7qZ"
"""A content that no template changes: letters and digits, nothing to strip or to escape."""
PROBE_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
PROBE_CALL = ("probe_weather", {"city": "Zürich", "days": 3})
"""Name and arguments of a call of PROBE_TOOL."""


def asked(content: str) -> Message:
    """A user's message."""
    return {"role": "user", "content": content}


class ChatTemplate:
    """One tokenizer's chat template. Raises TemplateError where it has none."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.name = str(tokenizer.name_or_path or "this tokenizer")
        if not tokenizer.chat_template:
            raise TemplateError(
                f"the model {self.name!r} has no chat template, so messages can't be turned into a prompt. Choose an "
                "instruct (chat) model, or set tokenizer.chat_template and save the tokenizer"
            )
        # A tokenizer may hold another template for conversations with tools: what is written is asked of both.
        self._roles: dict[tuple[str, bool], bool] = {}
        self._arguments_as_text: dict[bool, bool | None] = {
            offered: next((as_text for as_text in (False, True) if self._writes_calls(as_text, offered)), None)
            for offered in (False, True)
        }
        self.writes_calls = self._arguments_as_text[True] is not None
        """Whether an assistant's tool calls appear in the text where tools are offered."""
        self.writes_tools = self._writes_tools()
        """Whether the offered tools appear in the text."""
        self.many_calls = self.writes_calls and self._writes_many_calls()
        """Whether one turn may call several tools."""

    def text(self, messages: Sequence[Message], tools: Sequence[Message] | None, *, generation: bool) -> str:
        """The whole text; with the header of the reply to come where ``generation``.

        Raises TemplateError: with the template's own reason, or naming a message that it would leave out.
        """
        offered = bool(tools)
        plain = self._plain(messages, offered)
        for role in dict.fromkeys(str(m.get("role")) for m in plain):
            if not self._writes_role(role, offered):
                raise TemplateError(
                    f"the chat template of {self.name!r} leaves out messages of the role {role!r}, so the model would "
                    "never see them. Send them as another role, or choose a model whose template writes them"
                )
        if self._arguments_as_text[offered] is None and any("tool_calls" in m for m in plain):
            raise TemplateError(f"the chat template of {self.name!r} leaves out the tool calls of an assistant's turn")
        return self._apply(plain, tools, generation=generation)

    def encode(self, text: str) -> list[int]:
        """The ids of a text in which special tokens stand by name; none is added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _apply(self, plain: Sequence[Message], tools: Sequence[Message] | None, *, generation: bool) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(plain), tools=list(tools) if tools else None, add_generation_prompt=generation, tokenize=False
                )
            )
        except Exception as error:  # a template is foreign code and may fail in any way
            raise TemplateError(
                f"the chat template of {self.name!r} can't render messages of the roles "
                f"{[m.get('role') for m in plain]}: {error or type(error).__name__}"
            ) from error

    def _plain(self, messages: Sequence[Message], offered: bool) -> list[dict[str, Any]]:
        return plain_messages(messages, arguments_as_text=bool(self._arguments_as_text[offered]))

    def _probe(self, plain: Sequence[Message], offered: bool) -> str:
        """The text, with the probe's tool on offer or none; empty where the template fails."""
        try:
            return self._apply(plain, [PROBE_TOOL] if offered else None, generation=False)
        except TemplateError:
            return ""

    def _writes_calls(self, as_text: bool, offered: bool) -> bool:
        """Whether a call stands in the text as the JSON or words it is, its arguments given in this form."""
        turn = {"role": "assistant", "tool_calls": [tool_call("probe_call", {MARKER: MARKER}, "call00001")]}
        text = self._probe(plain_messages([asked("a"), turn], arguments_as_text=as_text), offered)
        # Quoted in Python's way or escaped twice, it is the wrong form.
        is_wrong = f"'{MARKER}'" in text or f'\\"{MARKER}' in text
        return "probe_call" in text and text.count(MARKER) >= 2 and not is_wrong

    def _writes_tools(self) -> bool:
        system = {"role": "system", "content": "b"}
        return any("probe_weather" in self._probe(m, True) for m in ([asked("a")], [system, asked("a")]))

    def _writes_many_calls(self) -> bool:
        names = ["probe_one", "probe_two"]
        calls = [tool_call(name, {"x": 1}, f"call0000{n}") for n, name in enumerate(names)]
        text = self._probe(self._plain([asked("a"), {"role": "assistant", "tool_calls": calls}], True), True)
        return all(name in text for name in names)

    def _writes_role(self, role: str, offered: bool) -> bool:
        """Whether a message of this role appears in the text; True where the template refuses it in its own words."""
        if (role, offered) not in self._roles:
            marked = {"role": role, "content": MARKER}
            if role == "tool":
                name, arguments = PROBE_CALL
                calling = {"role": "assistant", "tool_calls": [tool_call(name, arguments, "call00001")]}
                probe = [asked("a"), calling, {**marked, "tool_call_id": "call00001", "name": name}]
            elif role == "system":
                probe = [marked, asked("a")]
            elif role == "user":
                probe = [marked]
            else:
                probe = [asked("a"), marked]
            text = self._probe(self._plain(probe, offered), offered)
            self._roles[role, offered] = not text or MARKER in text
        return self._roles[role, offered]
