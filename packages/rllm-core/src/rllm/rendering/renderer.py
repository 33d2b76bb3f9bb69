"""Messages to token ids by the model's own chat template, and how a conversation's exact stream goes on.

    messages ──render──▶ prompt ids ──(sampled ids)──bridge──▶ the ids that lead to the next completion

The next prompt of a conversation is the previous prompt + the sampled ids + a bridge, never a new rendering.
"""

__all__ = ["Renderer"]

from collections.abc import Sequence
from typing import Any

from rllm.errors import ContextLengthError, TemplateError
from rllm.rendering.bridging import After, BridgeFinder, NoBridge
from rllm.rendering.messages import Message, tool_call
from rllm.rendering.parsing import Reply, parse_reply
from rllm.rendering.template import PROBE_CALL, PROBE_TOOL, ChatTemplate, asked
from rllm.rendering.text import decode, marked_text, special_names
from rllm.rendering.tool_calls import FORMS, MARKUP, MalformedCall, ToolCall, ToolForm


class Renderer:
    """One model's template and tokenizer. Raises TemplateError where there is no template that can be used.

    ``tokenizer`` is a transformers tokenizer; ``context_tokens`` is the model's context.
    """

    def __init__(self, tokenizer: Any, *, context_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.context_tokens = context_tokens
        self._template = ChatTemplate(tokenizer)
        self._finder = BridgeFinder(self._template)
        self._special = special_names(tokenizer)
        header = self._template.text([asked("a")], None, generation=True).rstrip()
        self._opens_reasoning = header.endswith("<think>")
        self._reasons = self._opens_reasoning or "</think>" in _source(tokenizer)
        self.tool_form: ToolForm | None = self._find_tool_form()
        """How this model writes tool calls; None where tools can't be offered to it, see ``tools_problem``."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Sampling ends at each: the end of a turn by the template, the end of a text by the tokenizer."""
        ends = (self._finder.end_of_turn, self.tokenizer.eos_token_id)
        return tuple(dict.fromkeys(int(end) for end in ends if end is not None))

    @property
    def end_of_turn(self) -> int | None:
        """The special token that the template puts behind a reply; None where it puts none."""
        return self._finder.end_of_turn

    @property
    def bridgeable(self) -> bool:
        """Whether conversations can be continued token by token."""
        return self.bridge_problem is None

    @property
    def bridge_problem(self) -> str | None:
        """Why no conversation can be continued, None where it can: each turn is then rendered anew."""
        return self._finder.problem

    @property
    def tool_bridge_problem(self) -> str | None:
        """The same of conversations with tools."""
        return self._finder.tool_problem

    @property
    def tools_problem(self) -> str | None:
        """Why tools can't be offered to this model; None where they can."""
        if not self._template.writes_tools:
            return "leaves out the tools that are offered, so the model would never see them"
        if not self._template.writes_calls:
            return "leaves out the tool calls of an assistant's turn"
        if self.tool_form is None:
            return f"writes tool calls in none of the forms that are read: {', '.join(FORMS)}"
        return None

    def render(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> list[int]:
        """The prompt's ids, with the header of the reply to come.

        Raises TemplateError: with the template's own reason, or saying what it would leave out;
        ContextLengthError where no room is left for a completion.
        """
        if tools and self.tools_problem is not None:
            raise TemplateError(
                f"the chat template of {self._template.name!r} {self.tools_problem}. Choose a model whose template "
                "takes tools, or describe the tools in a message and read the reply yourself"
            )
        ids = self.encode(self._template.text(messages, tools, generation=True))
        if len(ids) >= self.context_tokens:
            raise ContextLengthError(len(ids), self.context_tokens)
        return ids

    def text(self, messages: Sequence[Message], tools: Sequence[Message] | None, *, generation: bool) -> str:
        """What the template writes; with the header of the reply to come where ``generation``. Raises TemplateError."""
        return self._template.text(messages, tools, generation=generation)

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which special tokens may stand by name; none is added."""
        return self._template.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        return decode(self.tokenizer, ids)

    def bridge(
        self,
        messages: Sequence[Message],
        reply: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Message] | None,
        tail_ids: Sequence[int],
    ) -> list[int] | None:
        """The ids that follow the sampled ones: the turn's end where it was not sampled, ``new_messages``, a header.

        ``messages`` is the conversation before ``reply``, ``tail_ids`` the completion as it was sampled, whole or its
        end. What ``reply`` says does not matter, only which tools it calls. None where this conversation must be
        rendered anew, see ``why_no_bridge``.
        """
        found = self._after(messages, reply, new_messages, tools)
        return None if isinstance(found, str) else found.without(tail_ids)

    def why_no_bridge(
        self,
        messages: Sequence[Message],
        reply: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Message] | None,
    ) -> str | None:
        """Why ``bridge`` gives None for this conversation; None where it gives ids."""
        found = self._after(messages, reply, new_messages, tools)
        return found if isinstance(found, str) else None

    def _after(
        self,
        messages: Sequence[Message],
        reply: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Message] | None,
    ) -> After | str:
        if self.bridge_problem is not None:
            return self.bridge_problem
        try:
            return self._finder.after(messages, reply, new_messages, tools)
        except (NoBridge, TemplateError) as error:
            return str(error)

    def parse(self, ids: Sequence[int], tools: Sequence[Message] | None = None) -> Reply:
        """The reply that the sampled ids are; tool calls are looked for where tools were offered."""
        # Special tokens give no text, but in some vocabularies they are what marks a call or reasoning.
        kept = [i for i in ids if i not in self._special or self._special[i] in _MARKUP]
        return parse_reply(
            marked_text(self.tokenizer, kept),
            FORMS[self.tool_form] if tools and self.tool_form is not None else None,
            tools or (),
            reasons=self._reasons,
            opened=self._opens_reasoning,
            many_calls=self._template.many_calls,
        )

    def _find_tool_form(self) -> ToolForm | None:
        """The form in which a call that the template writes is read back as what it was."""
        if not self._template.writes_calls:
            return None
        name, arguments = PROBE_CALL
        call = tool_call(name, arguments, "call00001")
        turn = {"role": "assistant", "content": None, "tool_calls": [call]}
        asking = [asked("a")]
        try:
            prompt = self._template.text(asking, [PROBE_TOOL], generation=True)
            whole = self._template.text([*asking, turn], [PROBE_TOOL], generation=False)
        except TemplateError:
            return None
        wrote = whole[len(_common(prompt, whole)) :]
        for end in self.stop_ids:
            wrote = wrote.partition(self._special.get(end, "\0"))[0]
        expected = (ToolCall(name, call["function"]["arguments"]),)
        for form, reader in FORMS.items():
            try:
                if reader(wrote, [PROBE_TOOL]).calls == expected:
                    return form
            except MalformedCall:
                continue
        return None


_MARKUP = MARKUP | {"<think>", "</think>"}


def _source(tokenizer: Any) -> str:
    template = tokenizer.chat_template
    return template if isinstance(template, str) else "\n".join(map(str, template.values()))


def _common(a: str, b: str) -> str:
    n = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]
