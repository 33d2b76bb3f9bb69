"""Models by name: from what a user writes after ``--model`` to a folder of weights, a hub id, or a provider.

    name ──find_model──▶ ModelSource (what it is) ──resolve_model──▶ ModelSource (ready: its folder exists)

Nothing here imports torch or transformers until a built-in model has to be made.
"""

from rllm.models.builtin import BUILTIN_NAMES
from rllm.models.naming import find_model, list_models, resolve_model, setup_model
from rllm.models.push import push_model
from rllm.models.source import ModelKind, ModelSource, describe_model

__all__ = [
    "BUILTIN_NAMES",
    "ModelKind",
    "ModelSource",
    "describe_model",
    "find_model",
    "list_models",
    "push_model",
    "resolve_model",
    "setup_model",
]
