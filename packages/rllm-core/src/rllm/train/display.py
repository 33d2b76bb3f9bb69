"""What a run shows while it works: on a terminal a live panel, elsewhere one plain line per step.

Both show progress, the time left and the reward curve, drawn with block characters.
"""

__all__ = ["Display", "curve"]

import itertools
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rllm.evals.statistics import Summary
from rllm.train.metrics import UpdateReport

_BLOCKS = " ▁▂▃▄▅▆▇█"


def curve(values: Sequence[float], width: int = 40, low: float | None = None, high: float | None = None) -> str:
    """Values as one line of blocks, the newest last; more values than ``width`` are averaged in bins.

    >>> curve([0.0, 0.5, 1.0], low=0.0, high=1.0)
    ' ▄█'
    """
    if not values:
        return ""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    bottom = min(values) if low is None else low
    span = (max(values) if high is None else high) - bottom
    if span <= 0:
        return _BLOCKS[4] * len(values)
    levels = [min(8, max(0, round(8 * (v - bottom) / span))) for v in values]
    return "".join(_BLOCKS[level] for level in levels)


class Display:
    """Progress of one run, as a context manager; every method may be called from the loop's thread only."""

    def __init__(
        self,
        title: str,
        *,
        total_steps: int | None,
        time_limit_s: float | None = None,
        console: Console,
        drawn: str = "reward/mean",
    ) -> None:
        self.title, self.total, self.limit_s, self.console = title, total_steps, time_limit_s, console
        self._started = time.monotonic()
        self._training_s = 0.0
        self._drawn = drawn
        """The metric whose curve is drawn."""
        self._curve: list[float] = []
        self._last: UpdateReport | None = None
        self._phase = "starting"
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._told_at = 0.0

    @property
    def _label(self) -> str:
        return self._drawn.removesuffix("/mean").rpartition("/")[2]

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._panel())
            self._live.stop()

    def say(self, message: str) -> None:
        """A line that stays."""
        self.console.print(message, highlight=False, soft_wrap=True)

    def progress(self, phase: str, done: int, total: int) -> None:
        """How far the current phase is. Off a terminal, a line at most every ten seconds."""
        self._phase = f"{phase} {done}/{total}"
        if self._live is not None:
            self._live.update(self._panel())
        elif time.monotonic() - self._told_at >= 10.0 and done < total:
            self._told_at = time.monotonic()
            self.say(f"  {self._phase}")

    def updated(self, report: UpdateReport, training_s: float) -> None:
        """A batch is done."""
        self._training_s = training_s
        self._last = report
        if self._drawn in report.metrics:
            self._curve.append(report.metrics[self._drawn])
        if self._live is not None:
            self._live.update(self._panel())
            return
        self._told_at = time.monotonic()
        of = f"/{self.total}" if self.total else ""
        self.say(f"step {report.step}{of}  {self._figures()}  [{curve(self._curve, 24)}]  {self._time_left()}")

    def validated(self, when: str, summary: Summary) -> None:
        """A validation is done."""
        self.say(
            f"validation {when}: reward {summary.reward:.3f} ± {1.96 * summary.reward_se:.3f}, "
            f"accuracy {summary.accuracy:.3f} ± {1.96 * summary.accuracy_se:.3f} "
            f"({summary.n_tasks} held-out questions × {summary.n_samples // summary.n_tasks})"
        )

    def _figures(self) -> str:
        m = {} if self._last is None else self._last.metrics
        parts = [f"{self._label} {m[self._drawn]:.3f}" if self._drawn in m else f"{self._label} none"]
        for name, label, form in (
            ("update/entropy", "entropy", ".2f"),
            ("update/kl_k3", "kl", ".1e"),
            ("update/grad_norm", "grad", ".2f"),
            ("groups/skipped", "skipped groups", ".0f"),
            ("time/step_s", "s/step", ".1f"),
        ):
            if name in m:
                parts.append(f"{label} {m[name]:{form}}")
        return "  ".join(parts)

    def _time_left(self) -> str:
        fraction = self._fraction()
        if fraction <= 0:
            return "time left unknown"
        return f"{_clock(self._training_s * (1 / fraction - 1))} left"

    def _fraction(self) -> float:
        done = [self._last.step / self.total] if self._last and self.total else []
        if self.limit_s:
            done.append(self._training_s / self.limit_s)
        return min(1.0, max(done)) if done else 0.0

    def _panel(self) -> Panel:
        fraction = self._fraction()
        width = max(20, min(60, self.console.width - 30))
        bar = "█" * round(width * fraction) + "░" * (width - round(width * fraction))
        of = f" of {self.total}" if self.total else ""
        grid = Table.grid(padding=(0, 1))
        grid.add_row("progress", Text(f"{bar} step {self._last.step if self._last else 0}{of}, {self._time_left()}"))
        if self._curve:
            low, high = min(self._curve), max(self._curve)
            grid.add_row(self._label, Text(f"{curve(self._curve, width)} {low:.2f} to {high:.2f}"))
        grid.add_row("now", Text(f"{self._phase}, {_clock(time.monotonic() - self._started)} since the start"))
        return Panel(Group(grid, Text(self._figures())), title=self.title, title_align="left")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
