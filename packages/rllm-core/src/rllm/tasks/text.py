"""Reading text as people mean it: when two texts are the same, and which number a reply ends with.

Pure functions, used to split tasks by question and by the graders.
"""

__all__ = ["as_text", "is_number", "last_number", "normalise", "parse_number", "plain_number", "without_thoughts"]

import json
import re
import unicodedata
from fractions import Fraction
from typing import Any

_NUMBER = r"""
    (?P<sign>(?<![\w)\]])[-+])?                 # "10-3" is a difference, "= -3" is a sign
    (?:(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?P<part>\.[0-9]+)?|(?P<bare>\.[0-9]+))
    (?:[eE](?P<exponent>[-+]?[0-9]{1,3})(?![0-9])|/(?P<denominator>0*[1-9][0-9]*))?
"""
_ANYWHERE = re.compile(_NUMBER, re.VERBOSE)
_MARKED = re.compile(rf"\#\#\#\#[ \t]*(?:{_NUMBER})[ \t.]*$", re.VERBOSE | re.MULTILINE)
_CURRENCY = re.compile(r"[$€£¥]")
_LONGEST = 1_000
"""Digits of what is still read as a number."""


def normalise(text: str) -> str:
    """Unicode compatibility form, small letters, each run of white space as one space, none at the ends.

    >>> normalise("  Paris,\\n  FRANCE ")
    'paris, france'
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def as_text(output: Any) -> str:
    """What an agent returned, as text: nothing for None, text as it is, anything else as JSON writes it."""
    if output is None:
        return ""
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, default=str)


def last_number(text: str) -> Fraction | None:
    """The number that a reply ends with, exactly; None where it has none.

    A line ``#### 40`` outranks what else there is, and the last such line the earlier ones. Commas between thousands,
    currency signs and a final full stop are taken off; ``3/4`` and ``1.5e3`` are numbers. The decimal mark is a point.

    >>> last_number("that is 12 * 2,500, so $30,000.00.")
    Fraction(30000, 1)
    >>> last_number("#### 12 was the example. Mine:\\n#### 40\\nbecause of the 3 boxes")
    Fraction(40, 1)
    """
    text = _plain(text)
    for pattern in (_MARKED, _ANYWHERE):
        matches = list(pattern.finditer(text))
        if matches:
            return _value(matches[-1])
    return None


def is_number(text: str) -> bool:
    """Whether a text is one number and nothing else.

    >>> is_number("$70,000.50"), is_number("-3/4"), is_number("2020-01-31"), is_number("12 eggs")
    (True, True, False, False)
    """
    return _ANYWHERE.fullmatch(_plain(text).strip().removesuffix(".")) is not None


def parse_number(text: str) -> Fraction | None:
    """The number that a text is, exactly; None where it is anything but one number.

    >>> parse_number("$70,000.50"), parse_number("12 eggs"), parse_number("12 13")
    (Fraction(140001, 2), None, None)
    """
    match = _ANYWHERE.fullmatch(_plain(text).strip().removesuffix("."))
    return None if match is None else _value(match)


def without_thoughts(text: str) -> str:
    """What a reply says after its last ``</think>``; nothing of thoughts that were cut off.

    >>> without_thoughts("<think>5? No.</think>It is 6."), without_thoughts("<think>5? No")
    ('It is 6.', '')
    """
    return text.rpartition("</think>")[2].partition("<think>")[0]


def _plain(text: str) -> str:
    return _CURRENCY.sub("", unicodedata.normalize("NFKC", text).replace("−", "-"))


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > _LONGEST:
        return None
    sign = -1 if match["sign"] == "-" else 1
    decimal = match["bare"] or match["whole"].replace(",", "") + (match["part"] or "")
    number = Fraction(f"0{decimal}") * Fraction(10) ** int(match["exponent"] or 0)
    return sign * number / int(match["denominator"] or 1)


def plain_number(number: Fraction) -> str:
    """Without needless zeros: ``12``, ``-0.5``; ``1/3`` where decimals would not end.

    >>> plain_number(Fraction("29.00")), plain_number(Fraction(-1, 8)), plain_number(Fraction(1, 3))
    ('29', '-0.125', '1/3')
    """
    rest, places = number.denominator, 0
    for prime in (2, 5):
        count = 0
        while rest % prime == 0:
            rest, count = rest // prime, count + 1
        places = max(places, count)
    if rest != 1:
        return str(number)
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    text = f"{digits[:-places]}.{digits[-places:]}" if places else digits
    return f"-{text}" if number < 0 else text
