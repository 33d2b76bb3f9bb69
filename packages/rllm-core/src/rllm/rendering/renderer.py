"""Messages to token ids by the model's own chat template, and how a conversation's exact stream goes on.

    messages ──render──▶ prompt ids ──(sampled ids)──bridge──▶ the ids that lead to the next completion

The next prompt of a conversation is the previous prompt + the sampled ids + a bridge, never a new rendering. A bridge
is derived from whole renderings: what the template writes after a sentinel reply is what follows any reply.
"""

__all__ = ["Renderer"]

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rllm.errors import TemplateError
from rllm.rendering.parsing import Reply, ToolFormat, parse_reply, tool_format
from rllm.rendering.text import decode_bytes

Message = Mapping[str, Any]

SENTINEL = "Zq7rllm7qZ"
"""A reply that no template changes: letters and digits, nothing to strip or to escape."""


class Renderer:
    """One model's template and tokenizer. Raises TemplateError where there is no template that can be used.

    ``tokenizer`` is a transformers tokenizer; ``context_tokens`` is the model's context.
    """

    def __init__(self, tokenizer: Any, *, context_tokens: int) -> None:
        template = tokenizer.chat_template
        if not template:
            raise TemplateError(
                f"the model {tokenizer.name_or_path!r} has no chat template, so messages can't be turned into a "
                "prompt. Choose an instruct (chat) model, or set tokenizer.chat_template and save the tokenizer"
            )
        self.tokenizer = tokenizer
        self.context_tokens = context_tokens
        text = template if isinstance(template, str) else "\n".join(str(part) for part in template.values())
        self.tool_format: ToolFormat | None = tool_format(text)
        special = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special, self._special_names = frozenset(special), tuple(special.values())
        self._arguments_as_text = False
        self._check_arguments()
        self.end_of_turn, self.bridge_problem = self._find_end_of_turn()
        eos = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        ends = [] if self.end_of_turn is None else [self.end_of_turn]
        self.stop_ids = tuple(dict.fromkeys(ends + eos))
        if self.bridge_problem is None:
            self.bridge_problem = self._probe_bridge()

    # -- messages to ids

    def render(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> list[int]:
        """The prompt's ids, with the header of the reply to come. Raises TemplateError with the template's reason."""
        return self.encode(self.render_text(messages, tools))

    def render_text(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> str:
        """The prompt's text."""
        return self._apply([self._plain(m) for m in messages], tools, generation=True)

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which special tokens may stand by name; none is added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        return decode_bytes(self.tokenizer, [i for i in ids if i not in self._special])

    def bridge(
        self,
        messages: Sequence[Message],
        reply: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Message] | None,
        tail_ids: Sequence[int],
    ) -> list[int] | None:
        """The ids that follow the sampled ones: the turn's end where it was not sampled, ``new_messages``, a header.

        ``messages`` is the conversation before ``reply``, ``tail_ids`` the completion as it was sampled. None where
        the template can't be continued, see ``bridge_problem``.
        """
        if self.bridge_problem is not None:
            return None
        try:
            after = self._after_reply(messages, reply, new_messages, tools)
        except TemplateError:
            return None
        if after is None:
            return None
        ids = self.encode(after)
        if tail_ids and ids and tail_ids[-1] == ids[0]:
            return ids[1:]
        return ids

    def parse(self, ids: Sequence[int], tools: Sequence[Message] | None = None) -> Reply:
        """The reply that the sampled ids are; tool calls are looked for where tools were offered."""
        kept = [i for i in ids if i not in self.stop_ids]
        # Other special tokens may mark a tool call or reasoning, so the parser sees them by name.
        text = decode_bytes(self.tokenizer, kept)
        return parse_reply(text, self._special_names, self.tool_format if tools else None)

    # -- the template

    def _apply(self, messages: Sequence[Message], tools: Sequence[Message] | None, *, generation: bool) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=generation,
                tokenize=False,
            )
        except Exception as error:
            roles = [m.get("role") for m in messages]
            raise TemplateError(
                f"the chat template of {self.tokenizer.name_or_path!r} can't render messages of the roles {roles}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _plain(self, message: Message) -> dict[str, Any]:
        """A message as templates want it: text content, tool arguments as a dict or as text."""
        plain = dict(message)
        content = plain.get("content")
        if isinstance(content, list):
            plain["content"] = "".join(self._text_of(part) for part in content)
        elif content is None:
            plain["content"] = ""
        calls = plain.get("tool_calls")
        if not calls:
            plain.pop("tool_calls", None)
        else:
            plain["tool_calls"] = [self._plain_call(call) for call in calls]
        return plain

    def _text_of(self, part: Any) -> str:
        if isinstance(part, Mapping) and part.get("type") == "text":
            return str(part["text"])
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise TemplateError(f"a message has a content part of type {kind!r}; only text can be rendered")

    def _plain_call(self, call: Message) -> dict[str, Any]:
        function = dict(call["function"])
        arguments = function["arguments"]
        if self._arguments_as_text:
            function["arguments"] = arguments if isinstance(arguments, str) else json.dumps(arguments)
        elif isinstance(arguments, str):
            try:
                function["arguments"] = json.loads(arguments)
            except json.JSONDecodeError:
                function["arguments"] = arguments
        return {**call, "function": function}

    def _check_arguments(self) -> None:
        """Find out whether the template wants tool arguments as an object or as text: some fail on the other."""
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
        probe = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        for as_text in (False, True):
            self._arguments_as_text = as_text
            try:
                text = self._apply([self._plain(m) for m in probe], None, generation=False)
            except TemplateError:
                continue
            if '"x"' in text:
                return
        self._arguments_as_text = False

    # -- bridging

    def _after_reply(
        self,
        messages: Sequence[Message],
        reply: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Message] | None,
    ) -> str | None:
        """What the template writes after the reply's content."""
        head = [self._plain(m) for m in messages]
        tail = [self._plain(m) for m in new_messages]
        marked = {"role": "assistant", "content": SENTINEL}
        if reply.get("tool_calls"):
            return self._after_tool_calls(head, reply, tail, tools)
        whole = self._apply([*head, marked, *tail], tools, generation=True)
        before, found, after = whole.rpartition(SENTINEL)
        return after if found and SENTINEL not in before else None

    def _after_tool_calls(
        self, head: Sequence[Message], reply: Message, tail: Sequence[Message], tools: Sequence[Message] | None
    ) -> str | None:
        """What follows the end of an assistant turn that called tools: everything from its end-of-turn token on."""
        if self.end_of_turn is None:
            return None
        end = self.tokenizer.convert_ids_to_tokens(self.end_of_turn)
        call = {"id": "call00000", "type": "function", "function": {"name": SENTINEL, "arguments": {}}}
        if self._arguments_as_text:
            call["function"] = {"name": SENTINEL, "arguments": "{}"}
        ids = [m.get("tool_call_id") for m in tail if m.get("role") == "tool"]
        calls = [{**call, "id": i or "call00000"} for i in ids] or [call]
        marked = {"role": "assistant", "content": "", "tool_calls": calls}
        whole = self._apply([*head, marked, *tail], tools, generation=True)
        _, found, after = whole.rpartition(SENTINEL)
        position = after.find(end)
        return after[position:] if found and position >= 0 else None

    def _find_end_of_turn(self) -> tuple[int | None, str | None]:
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": SENTINEL}]
        try:
            text = self._apply(messages, None, generation=False)
        except TemplateError as error:
            return None, str(error)
        _, found, after = text.rpartition(SENTINEL)
        if not found:
            return None, "the template does not write a reply's content"
        ids = self.encode(after)
        if not ids or ids[0] not in self._special:
            return None, "no special token ends the assistant's turn"
        return ids[0], None

    def _probe_bridge(self) -> str | None:
        """Whether prompt + reply + end of turn + bridge is what the template itself renders; None where it is."""
        first = [{"role": "user", "content": "one two"}]
        reply = {"role": "assistant", "content": "three four"}
        new = [{"role": "user", "content": "five"}]
        try:
            prompt = self.render(first)
            whole = self.render([*first, reply, *new])
            after = self._after_reply(first, reply, new, None)
        except TemplateError as error:
            return str(error)
        if after is None:
            return "the template writes a reply's content more than once, or not at all"
        stream = [*prompt, *self.encode("three four"), *self.encode(after)]
        if stream != whole:
            return "the template renders an earlier turn in another way than it was prompted"
        return None
