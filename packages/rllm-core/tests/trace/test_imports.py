"""What the trace folder brings in."""

import subprocess
import sys


def test_importing_the_trace_brings_in_no_openai_and_no_torch():
    code = (
        "import sys, rllm, rllm.trace; print(sorted({'openai', 'torch', 'transformers', 'httpx2'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
