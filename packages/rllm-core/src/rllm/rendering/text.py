"""Token ids to text: exact at every cut, also where one character is spread over several tokens.

A special token (the end of a turn, a header) gives no text. Whatever is cut here joins to the text of the whole.
"""

__all__ = ["MarkedText", "TextStream", "alternative_strings", "decode", "marked_text", "special_names", "token_strings"]

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder gives for the bytes of a character that is not whole."""
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""How SentencePiece vocabularies name a single byte."""


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of ids: special tokens left out, nothing cleaned up."""
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def special_names(tokenizer: Any) -> dict[int, str]:
    """Id → name of every special token."""
    return {int(i): str(token) for i, token in tokenizer.added_tokens_decoder.items() if token.special}


class TextStream:
    """Text that grows by tokens; a piece is given out when its last character is whole.

    The pieces and ``flush()`` join to ``decode(ids)``. Only the last few tokens are decoded at each push.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(special_names(tokenizer))
        self._ids: list[int] = []
        self._start = self._read = 0
        self.text = ""
        """What was given out so far."""

    def push(self, token: int) -> str:
        """Add a token and return the text that it completes, possibly none."""
        name = self._tokenizer.convert_ids_to_tokens(token)
        if token in self._special or name is None:  # vocabularies are padded: a model can sample ids without a name
            return ""
        self._ids.append(token)
        # A run of byte tokens is decoded as one: whether its first character is whole is known when the run ends.
        if BYTE_TOKEN.fullmatch(name):
            return ""
        before, now = self._window()
        return "" if now.endswith(UNFINISHED) else self._give(before, now)

    def flush(self) -> str:
        """What is left at the end, an unfinished character included."""
        return self._give(*self._window())

    def _window(self) -> tuple[str, str]:
        """The text since the last piece but one, without and with what came after the last piece."""
        ids = self._ids[self._start :]
        return decode(self._tokenizer, ids[: self._read - self._start]), decode(self._tokenizer, ids)

    def _give(self, before: str, now: str) -> str:
        piece = now[len(before) :]
        # The next window opens with tokens already given out: some decoders drop the space before the first.
        self._start, self._read = self._read, len(self._ids)
        self.text += piece
        return piece


def token_strings(tokenizer: Any, ids: Sequence[int]) -> list[tuple[str, bytes]]:
    """Per token its string and its bytes; the bytes join to the UTF-8 text of ``decode(ids)``.

    A special token has its name and no bytes; a token that is part of a character has bytes that are no text yet,
    and a string with U+FFFD in their place.
    """
    special = special_names(tokenizer)
    raw = _raw_bytes(tokenizer, ids, special)
    return [
        (special.get(token) or piece.decode(errors="replace"), piece) for token, piece in zip(ids, raw, strict=True)
    ]


def alternative_strings(tokenizer: Any, ids: Sequence[int], *, at_start: bool) -> list[tuple[str, bytes]]:
    """As ``token_strings``, of tokens each of which could stand at one and the same place of a text.

    ``at_start``: whether that place is the text's beginning, where some tokenizers drop a space.
    """
    if at_start:
        return [token_strings(tokenizer, [token])[0] for token in ids]
    # Behind a token that gives text, nothing is dropped.
    lead = tokenizer("a", add_special_tokens=False)["input_ids"]
    return [token_strings(tokenizer, [*lead, token])[-1] for token in ids]


def _raw_bytes(tokenizer: Any, ids: Sequence[int], special: Collection[int]) -> list[bytes]:
    whole = decode(tokenizer, ids)
    names = tokenizer.convert_ids_to_tokens(list(ids))
    kind = _decoder_kind(tokenizer)
    if kind is not None:
        of = _byte_level if kind == "byte level" else _sentencepiece
        raw = [b"" if i in special or name is None else of(name) for i, name in zip(ids, names, strict=True)]
        if b"".join(raw).decode(errors="replace") == f" {whole}":
            first = next(n for n, piece in enumerate(raw) if piece)
            raw[first] = raw[first][1:]
        if b"".join(raw).decode(errors="replace") == whole:
            return raw
    # A decoder of another kind, or bytes that are no text at all: each token gets the text that it completes.
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in ids]
    if pieces:
        pieces[-1] += stream.flush()
    return [piece.encode() for piece in pieces]


def _decoder_kind(tokenizer: Any) -> str | None:
    if not tokenizer.is_fast or tokenizer.backend_tokenizer.decoder is None:
        return None
    state = tokenizer.backend_tokenizer.decoder.__getstate__()
    if b'"ByteLevel"' in state:
        return "byte level"
    return "sentencepiece" if b'"ByteFallback"' in state or b'"Metaspace"' in state else None


def _byte_table() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: printable characters stand for themselves, the others are moved up."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [b for b in range(256) if b not in kept]
    return {chr(b): b for b in kept} | {chr(256 + n): b for n, b in enumerate(moved)}


BYTE_TABLE = _byte_table()


def _byte_level(name: str) -> bytes:
    # A token that is not of that alphabet was added as it is.
    return bytes(BYTE_TABLE[c] for c in name) if all(c in BYTE_TABLE for c in name) else name.encode()


def _sentencepiece(name: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace("▁", " ").encode()


@dataclass(frozen=True)
class MarkedText:
    """A completion's text in which special tokens stand by name, and where they stand."""

    text: str
    specials: tuple[tuple[int, int], ...]
    """Start and end of each special token in ``text``, in order."""

    def plain(self, start: int, end: int) -> str:
        """The text from ``start`` to ``end`` without special tokens."""
        kept, at = "", start
        for first, last in self.specials:
            if start <= first and last <= end:
                kept, at = kept + self.text[at:first], last
        return kept + self.text[at:end]


def marked_text(tokenizer: Any, ids: Sequence[int]) -> MarkedText:
    """The text of ids with special tokens by name; the text between them is that of ``decode(ids)``."""
    special = special_names(tokenizer)
    text, pending, spans = "", b"", list[tuple[int, int]]()
    for token, raw in zip(ids, _raw_bytes(tokenizer, ids, special), strict=True):
        pending += raw
        if token in special:
            text, pending = text + pending.decode(errors="replace"), b""
            spans.append((len(text), len(text) + len(special[token])))
            text += special[token]
    return MarkedText(text + pending.decode(errors="replace"), tuple(spans))
