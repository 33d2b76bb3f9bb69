"""Every error that rLLM raises, in one tree.

Each error is also the standard library's kind that it refines, so that ``except ValueError`` does what a reader
expects. A message is a sentence: what happened, with which value, and what to do next.

    RLLMError
    ├── ConfigError (ValueError)            a setting is unknown, of the wrong type, or not honoured by the backend
    │   └── UnknownNameError                a model, task, agent, estimator, … that nobody registered
    ├── TaskError (ValueError)              a task source is unusable: a broken line, no questions, a missing field
    ├── ModelError (ValueError)             a model can't be found, loaded or used
    │   └── TemplateError                   its chat template is missing or can't be rendered
    ├── PluginError (RuntimeError)          a plugin registered something unusable, or its import failed
    ├── SessionError (RuntimeError)         a model call outside every session, or into a closed one
    ├── ContextLengthError (ValueError)     a prompt leaves no room for a completion
    ├── RolloutError (RuntimeError)         the agent fails in the same way again and again: a bug in the agent
    │   └── EvaluatorError                  the same of the evaluator: it raises, hangs, or returns no reward
    ├── NothingToTrainError (RuntimeError)  no token of the batch may be trained on
    ├── BackendError (RuntimeError)         the engine failed, or was asked for what it can't do
    ├── CheckpointError (OSError)           a checkpoint can't be written, or there is none to resume from
    ├── RunFolderError (OSError)            another file of a run can't be written
    └── TraceStoreError (OSError)           the trace store can't be read or written
"""

__all__ = [
    "BackendError",
    "CheckpointError",
    "ConfigError",
    "ContextLengthError",
    "EvaluatorError",
    "ModelError",
    "NothingToTrainError",
    "PluginError",
    "RLLMError",
    "RolloutError",
    "RunFolderError",
    "SessionError",
    "TaskError",
    "TemplateError",
    "TraceStoreError",
    "UnknownNameError",
]

import difflib
from collections.abc import Iterable


class RLLMError(Exception):
    """The root of the tree."""


class ConfigError(RLLMError, ValueError):
    """A setting is unknown, of the wrong type, or not honoured by the chosen backend."""


class UnknownNameError(ConfigError):
    """A name that nobody registered; the message gives the nearest ones.

    ``kind`` is what was looked for ("task", "setting", …), ``name`` what was asked for, ``known`` what there is,
    ``where`` the file or module that should have it.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "", where: str = "") -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        near = difflib.get_close_matches(name, self.known, n=3, cutoff=0.5)
        if near:
            advice = f"Did you mean {' or '.join(repr(n) for n in near)}?"
        else:
            shown = self.known[:12]
            more = f" and {len(self.known) - len(shown)} more" if len(self.known) > len(shown) else ""
            advice = f"Known: {', '.join(shown) or 'none'}{more}."
        place = f" in {where}" if where else ""
        super().__init__(f"there is no {kind} {name!r}{place}. {advice}" + (f" {hint}" if hint else ""))


class TaskError(RLLMError, ValueError):
    """A task source is unusable; the message names the file and line, or the source and field."""


class ModelError(RLLMError, ValueError):
    """A model can't be found, loaded or used."""


class TemplateError(ModelError):
    """A model's chat template is missing, or can't be rendered with these messages."""


class PluginError(RLLMError, RuntimeError):
    """A plugin can't be imported or registered something unusable; the message names it."""


class SessionError(RLLMError, RuntimeError):
    """A model call outside every session while rollouts run, or into a session that is closed."""


class ContextLengthError(RLLMError, ValueError):
    """A prompt of ``prompt_tokens`` leaves no room for a completion in a context of ``context_tokens``."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        self.prompt_tokens, self.context_tokens = prompt_tokens, context_tokens
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and the model's context is {context_tokens}: nothing is left "
            "for a completion. Shorten the messages, or choose a model with a longer context."
        )


class RolloutError(RLLMError, RuntimeError):
    """The agent fails in the same way in over half of the first batch: a bug in the agent, not bad luck."""


class EvaluatorError(RolloutError):
    """The evaluator raises, hangs, or returns something that is no reward."""


class NothingToTrainError(RLLMError, RuntimeError):
    """No token may be trained on; the message counts the reasons."""


class BackendError(RLLMError, RuntimeError):
    """The engine failed, or was asked for what it can't do."""


class CheckpointError(RLLMError, OSError):
    """A checkpoint can't be written, or there is none to resume from."""


class RunFolderError(RLLMError, OSError):
    """A file of a run (configuration, metrics, report, model) can't be written; the message names it."""


class TraceStoreError(RLLMError, OSError):
    """The trace store can't be read or written; the message names the file."""
