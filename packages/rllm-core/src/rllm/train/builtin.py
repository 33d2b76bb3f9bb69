"""The built-in loggers as a plugin of the core: each a thin coat over its library, which is an extra to install."""

from __future__ import annotations

__all__ = ["rllm_register_loggers"]

import importlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from rllm.config import Settings
from rllm.errors import ConfigError
from rllm.hookspecs import hookimpl

if TYPE_CHECKING:
    from rllm.plugins import Register
    from rllm.protocols import LoggerRequest


class WandbSettings(Settings):
    """Of the logger wandb; the key is what ``wandb login`` or WANDB_API_KEY says."""

    project: str = "rllm"
    entity: str | None = None
    mode: Literal["online", "offline"] = "online"
    """Offline, the run is kept in the run's folder, for ``wandb sync``."""


class TrackioSettings(Settings):
    """Of the logger trackio."""

    project: str = "rllm"


class MlflowSettings(Settings):
    """Of the logger mlflow."""

    tracking_uri: str | None = None
    """None takes MLFLOW_TRACKING_URI, or else a SQLite file in the run's folder."""
    experiment: str = "rllm"


@hookimpl
def rllm_register_loggers(register: Register) -> None:
    register("tensorboard", _Tensorboard, summary="event files in the run's folder")
    register("wandb", _Wandb, settings=WandbSettings, summary="Weights & Biases, online or offline")
    register("trackio", _Trackio, settings=TrackioSettings, summary="Hugging Face's local dashboard")
    register("mlflow", _Mlflow, settings=MlflowSettings, summary="an MLflow server, or a file")


def _library(module: str, logger: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"loggers={logger} needs a package that is not installed ({error}): pip install 'rllm-core[{logger}]'"
        ) from error


class _Tensorboard:
    def __init__(self, request: LoggerRequest) -> None:
        writer = _library("torch.utils.tensorboard", "tensorboard").SummaryWriter
        # Of a resumed run, what was logged after its checkpoint is done again.
        self._writer = writer(request.run_dir / "tensorboard", purge_step=request.steps + 1 if request.steps else None)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, error: BaseException | None) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, request: LoggerRequest, settings: WandbSettings) -> None:
        wandb = _library("wandb", "wandb")
        self._run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            mode=settings.mode,
            id=request.run_id,
            name=request.name,
            resume="allow",
            dir=request.run_dir,
            config=dict(request.settings),
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, error: BaseException | None) -> None:
        self._run.finish(exit_code=0 if error is None else 1)


class _Trackio:
    def __init__(self, request: LoggerRequest, settings: TrackioSettings) -> None:
        self._trackio = _library("trackio", "trackio")
        self._trackio.init(
            project=settings.project,
            name=f"{request.name}-{request.run_id}",
            config=dict(request.settings),
            resume="allow",
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._trackio.log(dict(metrics), step=step)

    def close(self, error: BaseException | None) -> None:
        self._trackio.finish()


class _Mlflow:
    def __init__(self, request: LoggerRequest, settings: MlflowSettings) -> None:
        mlflow = _library("mlflow", "mlflow")
        entities = _library("mlflow.entities", "mlflow")
        uri = settings.tracking_uri
        if uri is None and not mlflow.environment_variables.MLFLOW_TRACKING_URI.is_set():
            uri = f"sqlite:///{request.run_dir.resolve() / 'mlflow.db'}"
        self._metric = entities.Metric
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(settings.experiment)
        identity = experiment.experiment_id if experiment else self._client.create_experiment(settings.experiment)
        found = self._client.search_runs([identity], f"tags.rllm_run = '{request.run_id}'")
        if found:
            self._run_id = found[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            return
        tags = {"rllm_run": request.run_id}
        self._run_id = self._client.create_run(identity, tags=tags, run_name=request.name).info.run_id
        for name, value in request.settings.items():
            self._client.log_param(self._run_id, name, str(value)[:500])

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        # MLflow's names have no "@".
        found = [self._metric(name.replace("@", "_at_"), value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=found)

    def close(self, error: BaseException | None) -> None:
        self._client.set_terminated(self._run_id, status="FINISHED" if error is None else "FAILED")
