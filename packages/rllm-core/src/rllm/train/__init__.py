"""The training loop and ``AgentTrainer``."""

__all__ = ["AgentTrainer", "TrainResult", "UpdateReport"]

from rllm.train.loop import TrainResult
from rllm.train.metrics import UpdateReport
from rllm.train.trainer import AgentTrainer
