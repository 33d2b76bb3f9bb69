"""The notebooks of the docs run as they stand, in a real kernel, and are committed without their outputs."""

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def outputs(notebook, kind: str) -> list:
    return [out for cell in notebook.cells for out in cell.get("outputs", ()) if out.output_type == kind]


def test_they_are_committed_without_outputs():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, 4).cells:
            assert not cell.get("outputs"), path.name
            assert cell.get("execution_count") is None, path.name


@pytest.mark.filterwarnings("default")  # the client's own
def test_training_with_live_curves(tmp_path, monkeypatch):
    monkeypatch.setenv("RLLM_HOME", str(tmp_path / "home"))
    notebook = nbformat.read(NOTEBOOKS[0], 4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    assert outputs(notebook, "error") == []
    (figure,) = [out for out in outputs(notebook, "display_data") if "image/png" in out.data]
    assert len(figure.data["image/png"]) > 10_000, "the figure of the last step, with its curves"
    said = "".join(out.text for out in outputs(notebook, "stream"))
    before, after = (float(n) for n in said.partition("accuracy ")[2].splitlines()[0].split(" -> "))
    assert after > before + 0.2
    assert any(out.data["text/plain"].startswith("step 10/10") for out in outputs(notebook, "display_data"))
    assert len(list((tmp_path / "runs").glob("*/model/model.safetensors"))) == 1
