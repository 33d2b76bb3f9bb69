"""Messages to token ids and back, and how a conversation's exact stream goes on."""

__all__ = [
    "Given",
    "Renderer",
    "Reply",
    "TextStream",
    "ToolCall",
    "alternative_strings",
    "supervised_sequences",
    "token_strings",
]

from rllm.rendering.parsing import Reply
from rllm.rendering.renderer import Renderer
from rllm.rendering.supervised import Given, supervised_sequences
from rllm.rendering.text import TextStream, alternative_strings, token_strings
from rllm.rendering.tool_calls import ToolCall
