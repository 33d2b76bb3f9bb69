"""A dry run as a person reads it: the settings as YAML that ``--config`` takes back, all else as comments below."""

__all__ = ["describe_dry_run"]

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllm.protocols import CostEstimate
    from rllm.train import DryRun


def describe_dry_run(plan: "DryRun", verb: str) -> str:
    """The whole text; ``verb`` is the command, ``train`` or ``sft``."""
    said = [f"{name}: {value}" for name, value in plan.parts.items()]
    said += [f"{name}: {'until the time is over' if n is None else f'{n:,}'}" for name, n in plan.counts.items()]
    if plan.estimate is not None:
        said += _cost(plan.estimate, plan.total_s)
    said += plan.notes
    said.append(f"nothing was trained or written. To start: the same command without --dry-run (rllm {verb})")
    lines = [f"# a dry run of rllm {verb}: its settings, the defaults unmarked"]
    lines += _yaml(plan.settings, plan.sources)
    return "\n".join([*lines, *(f"# {line}" for line in said)])


def _cost(estimate: "CostEstimate", total_s: float | None) -> Iterator[str]:
    yield f"parameters: {estimate.n_parameters / 1e6:.2f}M, trained {estimate.n_trained / 1e6:.2f}M"
    held = ", ".join(f"{name} {_gib(size)}" for name, size in estimate.memory.items())
    yield f"memory: {_gib(estimate.peak_bytes)} of {_gib(estimate.machine_bytes)} GiB at the most ({held})"
    if estimate.peak_bytes > estimate.machine_bytes:
        yield "memory: that will not fit. Train LoRA (lora.rank=8), lower sampling.max_tokens, or take a smaller model"
    if estimate.seconds:
        parts = ", ".join(f"{name} {_duration(seconds)}" for name, seconds in estimate.seconds.items())
        whole = "" if total_s is None or total_s == float("inf") else f"; in all {_duration(total_s)}"
        yield f"time: at the most, roughly, {parts}{whole}"
    yield f"basis: {estimate.basis}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _yaml(settings: Mapping[str, Any], sources: Mapping[str, str], prefix: str = "", indent: str = "") -> Iterator[str]:
    from rllm.configure import write_value

    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _yaml(value, sources, f"{prefix}{name}.", f"{indent}  ")
            continue
        source = sources[f"{prefix}{name}"]
        yield f"{indent}{name}: {write_value(value)}" + ("" if source == "default" else f"  # {source}")
