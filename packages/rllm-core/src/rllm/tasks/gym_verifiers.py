"""Grading by reasoning-gym's own verifiers, with two guards.

The verifiers of number tasks give credit for the right digits within a wrong number; that is not passed on. And some
verifiers hand a reply to Python's ``eval`` (or sympy's, which is the same): what a model writes is checked first to be
a literal, or arithmetic, and is wrong if it is anything else.
"""

from __future__ import annotations

__all__ = ["ANSWER_INSTRUCTION", "NUMBER_INSTRUCTION", "AnswerVerifier", "NumberVerifier"]

import ast
import re
from collections.abc import Mapping
from typing import Any

from rllm.errors import TaskError
from rllm.tasks.text import as_text, last_number, plain_number
from rllm.types import Episode, Reward, Task

NUMBER_INSTRUCTION = "\nAnswer with only the final number."
ANSWER_INSTRUCTION = "\nWrite your final answer between <answer> and </answer>."

_TAGGED = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL)

LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Generators whose verifier evaluates a reply as a Python literal."""
FORMULAS = frozenset({"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24",
                      "simple_integration"})  # fmt: skip
"""Generators whose verifier evaluates a reply as a formula of sympy's."""

BOOLEANS = frozenset({"game_of_life_halting"})
"""Generators whose verifier takes any reply for a yes, the word False too (reasoning-gym 0.1.25): the word decides."""

FUNCTIONS = frozenset({"Abs", "acos", "asin", "atan", "cos", "cosh", "cot", "csc", "exp", "ln", "log", "sec", "sin",
                       "sinh", "sqrt", "tan", "tanh"})  # fmt: skip
LONGEST, HIGHEST = 2_000, 99
"""Characters of a formula, and its highest power: beyond them its value can take for ever to compute."""


class _Verifier:
    def __init__(self, name: str, dataset: Any, entries: Mapping[str, dict[str, Any]]) -> None:
        self.name, self._gym_name, self._dataset, self._entries = f"{name} verifier", name, dataset, entries

    def _score(self, answer: str, task: Task) -> float:
        """What the dataset's verifier gives, 0 to 1."""
        entry = self._entries.get(task.prompt)
        if entry is None:
            raise TaskError(f"{self.name}: the task {task.id!r} is none of this source's; grade it with its own")
        return float(self._dataset.score_answer(answer, entry))


class NumberVerifier(_Verifier):
    """1 for the right number, 0 for any other. The number is the last one of the output.

    The verifiers' credit for a right number's digits within a wrong one (half a point for "13" where 1 is right) is not
    passed on: it would reward length, not arithmetic.
    """

    def __call__(self, task: Task, episode: Episode) -> Reward:
        number = last_number(as_text(episode.output))
        if number is None:
            return Reward(value=0.0, is_correct=False, signals={"answered": 0.0})
        is_correct = self._score(plain_number(number), task) >= 1.0
        return Reward(value=float(is_correct), is_correct=is_correct, signals={"answered": 1.0})


class AnswerVerifier(_Verifier):
    """The verifier's own score of what stands between the last <answer> tags, else of the whole output."""

    def __call__(self, task: Task, episode: Episode) -> Reward:
        text = as_text(episode.output)
        tagged = _TAGGED.findall(text)
        answer = (tagged[-1] if tagged else text).strip()
        signals = {"answered": float(bool(tagged))}
        if not answer or not self._may_be_evaluated(answer, task):
            return Reward(value=0.0, is_correct=False, signals=signals)
        if self._gym_name in BOOLEANS:
            is_right = answer.casefold().rstrip(".") == str(task.answer).casefold()
            return Reward(value=float(is_right), is_correct=is_right, signals=signals)
        try:
            value = min(1.0, max(0.0, self._score(answer, task)))
        except TaskError:
            raise
        except Exception:  # a verifier that a wrong answer's form takes by surprise
            value = 0.0
        return Reward(value=value, is_correct=value >= 1.0, signals=signals)

    def _may_be_evaluated(self, answer: str, task: Task) -> bool:
        if answer == task.answer:
            return True
        if self._gym_name in LITERALS:
            return _is_literal(answer)
        return self._gym_name not in FORMULAS or _is_formula(answer)


def _is_literal(text: str) -> bool:
    """A Python literal, or text that calls, repeats and raises nothing.

    >>> _is_literal("[1, 2]"), _is_literal("1 2\\n3 4"), _is_literal("print(1)"), _is_literal("9**9**9")
    (True, True, False, False)
    """
    if re.fullmatch(r"[\w\s.,|-]*", text):
        return True
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_formula(text: str) -> bool:
    """Arithmetic of numbers, names of one letter and the functions of school, whose powers stay small.

    >>> _is_formula("3*x**2 + sin(x)"), _is_formula("(1+2)*8"), _is_formula("9**9**9"), _is_formula("open('f')")
    (True, True, False, False)
    """
    if len(text) > LONGEST:
        return False
    try:
        return _is_arithmetic(ast.parse(text.replace("^", "**"), mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False


def _is_arithmetic(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float)) and abs(node.value) < 1e15
    if isinstance(node, ast.Name):
        return len(node.id) == 1 or node.id == "pi"
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, (ast.UAdd, ast.USub)) and _is_arithmetic(node.operand)
    if isinstance(node, ast.Call):
        is_known = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
        is_nested = is_known and any(isinstance(n, ast.Call) for part in node.args for n in ast.walk(part))
        return is_known and not is_nested and all(_is_arithmetic(part) for part in node.args)
    if not isinstance(node, ast.BinOp) or not (_is_arithmetic(node.left) and _is_arithmetic(node.right)):
        return False
    if isinstance(node.op, ast.Pow):
        return _is_small(node.right) and not (_has_power(node.left) and _is_above(node.right, 4))
    return isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div))


def _is_small(exponent: ast.expr) -> bool:
    numbers = [n for n in ast.walk(exponent) if isinstance(n, ast.Constant)]
    return not _has_power(exponent) and not any(_is_above(n, HIGHEST) for n in numbers) and len(numbers) <= 2


def _is_above(node: ast.expr, limit: int) -> bool:
    return not (isinstance(node, ast.Constant) and abs(node.value) <= limit)  # pyright: ignore


def _has_power(node: ast.expr) -> bool:
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow) for n in ast.walk(node))
