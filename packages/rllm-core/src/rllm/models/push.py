"""Uploading a model's folder to the Hugging Face hub."""

__all__ = ["push_model"]

from pathlib import Path

from rllm.errors import ModelError

MARKS = {"config.json": "model", "adapter_config.json": "adapter"}
"""The file that makes a folder what it is."""


def push_model(folder: Path, repo_id: str, *, is_public: bool = False, adapter: bool = False) -> str:
    """Upload a model's folder, or the one that a training run has left, as the commit of a hub repository; returns its
    address.

    A repository that does not exist is made, private unless ``is_public``; one that exists stays as visible as it is.
    ``adapter`` takes a LoRA run's adapter instead of its merged model. The hub is the one of ``HF_ENDPOINT``, the token
    that of ``HF_TOKEN`` or `hf auth login`. Raises ModelError, which names what the hub refused.
    """
    try:
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise ModelError('pushing a model needs huggingface_hub: pip install "rllm-core[train]"') from error
    place, kind = _model_folder(folder, adapter=adapter)
    if get_token() is None:
        raise ModelError(f"{repo_id!r} can't be pushed: no token of the hub. Set HF_TOKEN, or run `hf auth login`")
    # httpx's, or httpx2's, as that of its client is: a server that can't be reached.
    http_error = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
    api = HfApi()
    try:
        made = api.create_repo(repo_id, private=not is_public, exist_ok=True)
        api.upload_folder(
            repo_id=made.repo_id, folder_path=place, commit_message=f"The {kind} of an rLLM run", ignore_patterns=[".*"]
        )
    except Exception as error:
        if not isinstance(error, (OSError, ValueError, http_error)):
            raise
        raise ModelError(f"{str(place)!r} could not be pushed to {repo_id!r}: {error}") from error
    return str(made)


def _model_folder(folder: Path, *, adapter: bool) -> tuple[Path, str]:
    wanted = "adapter" if adapter else "model"
    if not folder.is_dir():
        raise ModelError(f"there is no folder {str(folder)!r}; give a run's folder, or a model's")
    if (folder / "config.yaml").exists():  # a run's
        folder = folder / wanted
        if not folder.is_dir():
            reason = "it trained no LoRA" if adapter else "it ended before its first update"
            raise ModelError(f"the run in {str(folder.parent)!r} has left no {wanted}: {reason}")
    for mark, kind in MARKS.items():
        if (folder / mark).is_file():
            return folder, kind
    raise ModelError(
        f"the folder {str(folder)!r} holds neither {' nor '.join(MARKS)}: it is no model. "
        "Give a run's folder, or the model's own"
    )
