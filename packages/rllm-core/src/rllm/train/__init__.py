"""The training loop and ``AgentTrainer``."""

__all__ = ["AgentTrainer", "DryRun", "TrainResult", "UpdateReport"]

from rllm.train.dry_run import DryRun
from rllm.train.loop import TrainResult
from rllm.train.metrics import UpdateReport
from rllm.train.trainer import AgentTrainer
