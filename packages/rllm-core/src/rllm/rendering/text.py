"""Token ids to text: exact at every cut, also where one character is spread over several tokens."""

__all__ = ["TextStream", "decode_bytes", "token_strings"]

from collections.abc import Sequence
from typing import Any


def decode_bytes(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of ids, with nothing cleaned up."""
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def token_strings(tokenizer: Any, ids: Sequence[int]) -> list[tuple[str, bytes]]:
    """Per token, its text and its bytes; the bytes of all of them together are the text's."""
    strings: list[tuple[str, bytes]] = []
    table = _byte_table()
    for token in tokenizer.convert_ids_to_tokens(list(ids)):
        if token is not None and all(c in table for c in token):
            raw = bytes(table[c] for c in token)
        else:
            raw = (token or "").encode()
        strings.append((raw.decode("utf-8", errors="replace"), raw))
    return strings


def _byte_table() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: printable characters stand for themselves, the others are moved up."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(b): b for b in kept}
    moved = [b for b in range(256) if b not in kept]
    table |= {chr(256 + n): b for n, b in enumerate(moved)}
    return table


class TextStream:
    """Text that grows by tokens; a piece is given out when its last character is whole."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self.text = ""

    def push(self, token: int) -> str:
        """Add a token and return the text that it completes, possibly empty."""
        self._ids.append(token)
        whole = decode_bytes(self._tokenizer, self._ids)
        if whole.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        piece, self.text = whole[len(self.text) :], whole
        return piece

    def flush(self) -> str:
        """What is left at the end, an incomplete character included."""
        whole = decode_bytes(self._tokenizer, self._ids)
        piece, self.text = whole[len(self.text) :], whole
        return piece
