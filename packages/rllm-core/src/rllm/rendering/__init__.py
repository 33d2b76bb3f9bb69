"""Messages to token ids and back, and how a conversation's exact stream goes on."""

__all__ = ["Renderer", "Reply", "TextStream", "ToolCall", "alternative_strings", "token_strings"]

from rllm.rendering.parsing import Reply
from rllm.rendering.renderer import Renderer
from rllm.rendering.text import TextStream, alternative_strings, token_strings
from rllm.rendering.tool_calls import ToolCall
