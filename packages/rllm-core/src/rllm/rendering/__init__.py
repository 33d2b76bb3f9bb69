"""Messages to token ids and back, and how a conversation's exact stream goes on."""

__all__ = ["Renderer", "Reply", "TextStream", "ToolCall", "token_strings"]

from rllm.rendering.parsing import Reply, ToolCall
from rllm.rendering.renderer import Renderer
from rllm.rendering.text import TextStream, token_strings
