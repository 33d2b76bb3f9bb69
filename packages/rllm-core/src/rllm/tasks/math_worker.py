"""The program of a worker process of ``math_answers``: reads ``["gold", "answer"]`` a line, says ``same``, ``other`` or
what it failed with.

It is started by its file and imports nothing of rLLM, so that it is there soon. Arguments: the seconds and the bytes of
memory that a comparison may take.
"""

__all__: list[str] = []

import json
import resource
import signal
import sys
from typing import Any

GRACE_S = 2.0
"""After the limit the one who asked has ended this process; it ends itself where nobody does any more."""


def main() -> None:
    limit_s, memory = float(sys.argv[1]), int(sys.argv[2])
    replies, sys.stdout = sys.stdout, sys.stderr
    same("1", "1")  # imports, and builds the parser's tables
    if sys.platform == "linux":  # elsewhere the limit is not kept, or can't be set
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        # No handler: the signal's own action ends the process, in the middle of any computation.
        signal.setitimer(signal.ITIMER_REAL, limit_s + GRACE_S)
        try:
            verdict = "same" if same(gold, answer) else "other"
        except Exception as error:  # of a parser and an algebra system, on what a model wrote
            verdict = type(error).__name__
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(verdict, file=replies, flush=True)


def same(gold: str, answer: str) -> bool:
    """math-verify's verdict; exact where both are rational numbers, for it rounds."""
    from math_verify import parse, verify

    wanted: Any = parse(_boxed(gold), parsing_timeout=0)
    given: Any = parse(_boxed(answer), parsing_timeout=0)
    numbers = [_rational(parsed) for parsed in (wanted, given)]
    if None not in numbers:
        return numbers[0] == numbers[1]
    # 15 decimal places: at the default six a third is .333333.
    return bool(verify(wanted, given, float_rounding=15, numeric_precision=30, timeout_seconds=0))


def _boxed(text: str) -> str:
    return rf"\boxed{{{text}}}"


def _rational(parsed: list[Any]) -> Any:
    """The number of what was parsed; None where it is none, or a percentage, which may be meant either way."""
    from sympy import Basic, Rational, UnevaluatedExpr

    if not parsed or not isinstance(parsed[0], Basic) or parsed[0].has(UnevaluatedExpr):
        return None
    value = parsed[0].doit()
    return value if isinstance(value, Rational) else None


if __name__ == "__main__":
    main()
