"""What ``rllm doctor`` looks at: each check is a function that gives findings, and touches nothing."""

__all__ = ["DiagnosticFinding", "examine"]

import importlib.metadata as metadata
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rllm.errors import RLLMError
from rllm.models.places import cache_dir, config_dir

NEEDED = {
    "torch": (2, 6),
    "transformers": (5, 5, 3),
    "peft": (0, 17),
    "accelerate": (1, 5),
    "gguf": (0, 14),
    "reasoning-gym": (0, 1, 20),
}
"""What the extra ``train`` brings, and since when it does."""
COMPROMISED = {"litellm": ("1.107.0",)}
"""Releases that were taken over by strangers."""
DISK_GB, MEMORY_GB = 3.0, 4.0
"""What the default model needs: a run's folder and the converted model; weights, gradients and optimizer."""

IS_POSIX, HAS_SIGTERM = os.name == "posix", sys.platform != "win32"


@dataclass(frozen=True)
class DiagnosticFinding:
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "note", "problem"]
    what: str
    next_step: str = ""


Findings = Iterable[DiagnosticFinding]


def examine() -> list[DiagnosticFinding]:
    """Every check's findings, in a fixed order. A check that fails itself is a finding too."""
    found: list[DiagnosticFinding] = []
    for check in _CHECKS:
        try:
            found.extend(check())
        except Exception as error:
            found.append(DiagnosticFinding(check.__name__.strip("_"), "problem", f"{type(error).__name__}: {error}"))
    return found


def _python() -> Findings:
    version = platform.python_version()
    yield DiagnosticFinding("python", "ok", f"{version} on {platform.system()} {platform.machine()}, {sys.executable}")


def _platform() -> Findings:
    """What this system has not, or what no test of ours has seen there."""
    system = platform.system()
    if system == "Linux":
        yield DiagnosticFinding("platform", "ok", "Linux, as in rLLM's own tests")
        return
    yield DiagnosticFinding(
        "platform",
        "note",
        f"rLLM is tested on Linux only; on {system} nothing is known to be missing but what follows",
        "if something fails, try it in a Linux container or WSL",
    )
    if not HAS_SIGTERM:
        yield DiagnosticFinding(
            "signals",
            "note",
            f"{system} sends no SIGTERM: Ctrl-C ends a run's step and saves, `taskkill` loses the work since the "
            "last checkpoint",
            "stop a run with Ctrl-C, or lower checkpoint.every_s",
        )
    if not IS_POSIX:
        yield DiagnosticFinding(
            "keys",
            "note",
            f"files have no mode bits on {system}: who may read your models' keys is up to the folder {config_dir()}",
            "keep it in your own profile, where it is by default",
        )


def _distributions() -> Findings:
    """Who provides the module ``rllm``: another distribution of that name would be imported in part."""
    owners = sorted(set(metadata.packages_distributions().get("rllm", ())))
    others = [name for name in owners if name != "rllm-core"]
    where = Path(__file__).parent
    if others:
        yield DiagnosticFinding(
            "rllm",
            "problem",
            f"the module rllm also comes from {', '.join(others)}; what is imported is a mixture",
            f"pip uninstall {' '.join(others)}, then pip install --force-reinstall --no-deps rllm-core",
        )
    shadow = Path.cwd() / "rllm"
    if (shadow / "__init__.py").exists() and shadow.resolve() != where.resolve():
        yield DiagnosticFinding(
            "rllm", "problem", f"the folder {shadow} hides the installed rllm from scripts in here", "rename it"
        )
    yield DiagnosticFinding("rllm", "ok", f"rllm-core {metadata.version('rllm-core')} in {where}")


def _packages() -> Findings:
    missing: list[str] = []
    for name, least in NEEDED.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        is_old = _numbers(version) < least
        yield DiagnosticFinding(
            name,
            "problem" if is_old else "ok",
            version + (f" is older than {'.'.join(map(str, least))}" if is_old else ""),
            f"pip install --upgrade {name}" if is_old else "",
        )
    if missing:
        yield DiagnosticFinding(
            "train",
            "note",
            f"not installed: {', '.join(missing)}; evaluating a provider's model works, training does not",
            'pip install "rllm-core[train]"',
        )
    for name, releases in COMPROMISED.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if version in releases:
            yield DiagnosticFinding(
                name,
                "problem",
                f"{version} is a compromised release",
                f"pip install '{name}!={version}', and change your keys",
            )


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")
    return tuple(int(part) for part in parts[:3] if part.isdigit())


def _memory() -> Findings:
    try:
        import psutil
    except ImportError:
        return
    memory = psutil.virtual_memory()
    total, free = memory.total / 2**30, memory.available / 2**30
    what = f"{total:.1f} GiB, {free:.1f} GiB of it free"
    if free < MEMORY_GB:
        yield DiagnosticFinding(
            "memory",
            "note",
            f"{what}; training smollm2-135m takes some {MEMORY_GB:.0f}",
            "close other programs, take rllm-tiny, or train LoRA (lora.rank=8)",
        )
    else:
        yield DiagnosticFinding("memory", "ok", what)


def _disk() -> Findings:
    for name, place in (("this folder", Path.cwd()), ("the cache", cache_dir())):
        existing = next(folder for folder in (place, *place.parents) if folder.exists())
        free = shutil.disk_usage(existing).free / 1e9
        is_writable = os.access(existing, os.W_OK)
        if not is_writable:
            yield DiagnosticFinding("disk", "problem", f"{name}, {place}, can't be written", "choose another")
        elif free < DISK_GB:
            yield DiagnosticFinding(
                "disk",
                "note",
                f"{free:.1f} GB free for {name}, {place}",
                f"a run of smollm2-135m takes {DISK_GB:.0f} GB",
            )
        else:
            yield DiagnosticFinding("disk", "ok", f"{free:.0f} GB free for {name}, {place}")


def _compute() -> Findings:
    try:
        import torch
    except ImportError:
        return
    from rllm.backends.local.machine import bf16_gain, cores

    if torch.cuda.is_available():
        yield DiagnosticFinding("gpu", "ok", torch.cuda.get_device_name(0))
    elif torch.version.cuda is not None:
        yield DiagnosticFinding(
            "gpu", "note", f"this torch is built for CUDA {torch.version.cuda}, and there is no GPU that it can use", ""
        )
    yield DiagnosticFinding("threads", "ok", f"{cores()} cores for this process, torch takes {torch.get_num_threads()}")
    gain = bf16_gain(576)
    yield DiagnosticFinding("precision", "ok", f"bf16 multiplies {gain:.1f} times as fast as fp32 on this CPU")
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
        if load > cores() + 0.5:
            yield DiagnosticFinding(
                "load",
                "note",
                f"{load:.1f} processes want the {cores()} cores",
                "what runs beside them is slower by as much",
            )


def _loopback() -> Findings:
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            with socket.create_connection(server.getsockname(), timeout=2):
                pass
    except OSError as error:
        yield DiagnosticFinding(
            "ports", "problem", f"no port of 127.0.0.1 can be listened on: {error}", "the gateway needs one: allow it"
        )
        return
    yield DiagnosticFinding("ports", "ok", "a port of 127.0.0.1 can be listened on and reached")
    proxied = _proxies(os.environ)
    if proxied:
        yield DiagnosticFinding(
            "proxy",
            "problem",
            f"{', '.join(proxied)} would take calls to the gateway on 127.0.0.1 too",
            "export NO_PROXY=127.0.0.1,localhost",
        )


def _proxies(environment: Mapping[str, str]) -> list[str]:
    """The variables that send calls to 127.0.0.1 through a proxy."""
    exempt = environment.get("NO_PROXY", environment.get("no_proxy", ""))
    if any(part.strip() in ("127.0.0.1", "*") for part in exempt.split(",")):
        return []
    return [name for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy") if environment.get(name)]


def _models() -> Findings:
    from rllm.models import describe_model, list_models

    try:
        for source in list_models():
            yield DiagnosticFinding("model", "ok", f"{source.name}: {describe_model(source)}")
    except RLLMError as error:
        yield DiagnosticFinding("model", "problem", str(error))


def _plugins() -> Findings:
    from rllm.plugins import get_plugins

    manager = get_plugins()
    installed = [plugin.name for plugin in manager.loaded() if not plugin.is_builtin]
    yield DiagnosticFinding("plugins", "ok", ", ".join(installed) or "none but the built-in ones")
    for name, reason in manager.failed.items():
        yield DiagnosticFinding(
            "plugins", "problem", f"{name} could not be loaded: {reason}", "mend or uninstall it, or set RLLM_PLUGINS"
        )


_CHECKS: tuple[Callable[[], Findings], ...] = (
    _python,
    _platform,
    _distributions,
    _packages,
    _memory,
    _disk,
    _compute,
    _loopback,
    _models,
    _plugins,
)
