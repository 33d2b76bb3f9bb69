"""A request's JSON body by fields: each is read with its type, known to change no text, or refused by its name."""

__all__ = ["Fields", "read_json"]

import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from rllm.gateway.errors import bad_request

HARMLESS = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
     "prediction", "return_token_ids"}
)  # fmt: skip
"""Can't change the text; accepted whatever they say."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "function_call": ("auto", "none"),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "suffix": ("",),
    "use_beam_search": (False,),
}
"""Would change the text, but not with these values."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Fields:
    """Reads a body's fields by type, each at most once. A null field is one that was left out.

    Every method raises ApiError 400 that names the field and the value that it has.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = body
        self._read: set[str] = set()

    def value(self, name: str) -> Any:
        """As it stands."""
        self._read.add(name)
        return self.body.get(name)

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise _wrong(name, "text", value)
        return value

    def flag(self, name: str) -> bool:
        """True or false, which it is too where it was left out."""
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise _wrong(name, "true or false", value)
        return bool(value)

    def integer(self, name: str, low: int, high: int | None = None) -> int | None:
        """A whole number from ``low`` to ``high``."""
        value = self.value(name)
        if value is None:
            return None
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or value < low or (high is not None and value > high):
            raise _wrong(name, f"a whole number of at least {low}" + (f" and at most {high}" if high else ""), value)
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number from ``low`` to ``high``."""
        value = self.value(name)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # JSON's 1e999 is read as infinity.
        if not is_number or not low <= value <= min(high, sys.float_info.max):
            limit = f"at least {low:g}" if math.isinf(high) else f"{low:g} to {high:g}"
            raise _wrong(name, f"a number, {limit}", value)
        return float(value)

    def stop(self) -> tuple[str, ...] | None:
        """``stop``: one text or several."""
        value = self.value("stop")
        if value is None:
            return None
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
            raise _wrong("stop", "a text or a list of texts, none of them empty", value)
        return tuple(texts)

    def refuse_rest(self) -> None:
        """Every field that nobody read must be harmless, or have a value that changes nothing."""
        for name, value in self.body.items():
            if name in self._read or name in HARMLESS or value is None or value in NEUTRAL.get(name, ()):
                continue
            raise bad_request(
                f"{name}={_shown(value)} can't be honoured here and might change the text. Leave it out",
                name,
                "unsupported_parameter",
            )


def read_json(raw: bytes) -> dict[str, Any]:
    """The body as an object. Raises ApiError 400 where it is no JSON object of whole Unicode text."""
    try:
        body = json.loads(raw.decode(), parse_constant=_refuse_constant)
        if _SURROGATE.search(raw):
            # JSON can spell half a character, which no tokenizer takes.
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeError as error:
        raise bad_request(f"the body is no valid Unicode text: {error}") from error
    except RecursionError as error:
        raise bad_request("the body is nested too deeply") from error
    except ValueError as error:
        raise bad_request(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, not {_shown(body)}")
    return body


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _wrong(name: str, wanted: str, value: Any) -> Exception:
    return bad_request(f"{name} must be {wanted}; got {_shown(value)}", name, "invalid_type")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
