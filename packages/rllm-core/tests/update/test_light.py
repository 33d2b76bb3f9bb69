"""Advantages, rows and even losses are reached without loading torch: a base install configures a run without it."""

import subprocess
import sys

SCRIPT = """
import sys
import rllm.advantage.builtin, rllm.update.builtin, rllm.update
heavy = [m for m in ("torch", "transformers", "openai") if m in sys.modules]
print(",".join(heavy))
"""


def test_neither_folder_brings_in_torch():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""
