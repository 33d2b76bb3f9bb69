"""The rows of a data set on the Hugging Face hub, by the ``datasets`` library, which also caches them.

What can go wrong on the way (no library, no network, a set that is closed or moved, another form) is said in one
message, and before the library would begin to try again: the hub is asked once for the set's commit, and everything is
loaded from that commit.
"""

from __future__ import annotations

__all__ = ["DEFAULT_REVISION", "HubRepo", "Row"]

import contextlib
import importlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm.errors import TaskError

DEFAULT_REVISION = "main"
TIMEOUT_S = 5.0
"""For the one question whether the hub is there."""
INSTALL = 'Install it with: pip install "rllm-core[hub]"'

Row = dict[str, Any]


@dataclass(frozen=True)
class HubRepo:
    """One data set at one commit."""

    task: str
    """The task it is loaded for, which begins each complaint."""
    name: str
    revision: str
    """As asked for: a branch, a tag or a commit."""
    commit: str | None
    """What the revision is now; None where HF_HUB_OFFLINE is set, and only the cache is read."""

    @classmethod
    def find(cls, task: str, name: str, revision: str = DEFAULT_REVISION) -> HubRepo:
        """Ask the hub, once, what the revision is. Raises TaskError with what to do."""
        hub = _library("huggingface_hub", task)
        errors = importlib.import_module("huggingface_hub.errors")
        _library("datasets", task)
        api = hub.HfApi(library_name="rllm")
        page = f"{api.endpoint}/datasets/{name}"
        try:
            info = api.dataset_info(name, revision=revision, timeout=TIMEOUT_S)
            if info.gated:
                api.auth_check(name, repo_type="dataset")
            return cls(task, name, revision, info.sha)
        except errors.OfflineModeIsEnabled:
            return cls(task, name, revision, None)
        except errors.GatedRepoError as error:
            raise TaskError(
                f"{task}: the data set {name!r} is gated. Ask for access at {page}, then set HF_TOKEN or run "
                f"`hf auth login`"
            ) from error
        except errors.RevisionNotFoundError as error:
            raise TaskError(
                f"{task}: the data set {name!r} has no revision {revision!r}. Name a branch, tag or commit of {page}"
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise TaskError(
                f"{task}: {api.endpoint} has no data set {name!r} that is open to you: it may have been moved or made "
                f"private. Look at {page}; for a private one set HF_TOKEN or run `hf auth login`"
            ) from error
        except Exception as error:  # of the transport's library, which differs between releases of huggingface_hub
            raise TaskError(
                f"{task}: the Hugging Face hub can't be reached at {api.endpoint} ({_short(error)}). Check the "
                "network, proxies and HF_ENDPOINT; HF_HUB_OFFLINE=1 takes the copy that was loaded before"
            ) from error

    def rows(self, config: str | None, split: str, columns: Sequence[str]) -> list[Row]:
        """The rows of one split with these columns, which must hold text or whole numbers.

        Raises TaskError where the configuration, split or a column is missing, or the files can't be read.
        """
        where = f"{self.task}: the data set {self.name!r}{f', configuration {config!r}' if config else ''}"
        datasets = _library("datasets", self.task)
        try:
            with _no_progress_bars(datasets):
                found = datasets.load_dataset(self.name, config, split=split, revision=self.commit)
        except Exception as error:  # a missing configuration or split is a plain ValueError there, as is much else
            raise TaskError(
                f"{where}: its split {split!r} can't be loaded: {_short(error)}. {self._advice()}"
            ) from error
        self._check_commit(found, where)
        missing = [column for column in columns if column not in found.column_names]
        if missing:
            raise TaskError(
                f"{where}: the split {split!r} has no column {missing[0]!r}; it has {', '.join(found.column_names)}. "
                f"{self._advice()}"
            )
        rows: list[Row] = found.select_columns(list(columns)).to_list()
        for number, row in enumerate(rows):
            for column, value in row.items():
                if not isinstance(value, str | int):
                    raise TaskError(
                        f"{where}: row {number} of {split!r} has the {column} {value!r:.80}; it must be text"
                    )
        if not rows:
            raise TaskError(f"{where}: the split {split!r} is empty. {self._advice()}")
        return rows

    def _advice(self) -> str:
        if self.commit is None:
            return "HF_HUB_OFFLINE is set, so only what was loaded before is there: unset it to load the set"
        return f"If its form has changed, choose an older commit as revision (this is {self.commit})"

    def _check_commit(self, found: Any, where: str) -> None:
        """Offline the library takes the newest cached copy, whatever revision was asked for."""
        if self.commit is not None or self.revision == DEFAULT_REVISION:
            return
        cached = Path(found.cache_files[0]["filename"]).parent.name
        if cached != self.revision:
            raise TaskError(
                f"{where}: HF_HUB_OFFLINE is set, and the cached copy is of the commit {cached}, while the revision "
                f"is {self.revision!r}. Set that commit as revision, or unset HF_HUB_OFFLINE"
            )


@contextlib.contextmanager
def _no_progress_bars(datasets: Any) -> Generator[None]:
    """Two for each of a dozen files of a few MB would bury what the command says."""
    if datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


def _library(module: str, task: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TaskError(f"the task {task!r} needs {module} ({error}). {INSTALL}") from error


def _short(error: BaseException) -> str:
    """Its kind and first line."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:300]}" if said else type(error).__name__
