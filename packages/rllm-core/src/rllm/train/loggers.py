"""Where a run's metrics go beside ``metrics.jsonl``: the loggers that ``loggers=…`` names.

A logger is opened before anything starts, so that a missing package or key is said then. Later failures (the network,
mostly) are said once, and the run goes on: the metrics are in its folder.
"""

__all__ = ["Loggers"]

import logging
from collections.abc import Callable, Mapping
from typing import Any

from rllm.config import TrainConfig
from rllm.errors import ConfigError, RLLMError
from rllm.plugins import PluginManager
from rllm.protocols import Logger, LoggerRequest

log = logging.getLogger("rllm.train")


class Loggers:
    """The chosen loggers of one run. Raises ConfigError, with the logger's name, where one can't be opened."""

    def __init__(
        self, config: TrainConfig, plugins: PluginManager, request: LoggerRequest, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._open: dict[str, Logger] = {}
        for name in config.loggers:
            item = plugins.get("logger", name)
            settings = config.plugins.get(name)
            try:
                self._open[name] = item.value(request) if settings is None else item.value(request, settings)
            except RLLMError:
                self.close(None)
                raise
            except Exception as error:
                self.close(None)
                raise ConfigError(
                    f"the logger {name!r} (plugin {item.plugin!r}) can't be opened: {type(error).__name__}: {error}. "
                    "Mend that, or leave it out of loggers"
                ) from error

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """A line of ``metrics.jsonl``, to each; one that fails is left out from then on."""
        numbers = {k: float(v) for k, v in metrics.items() if k != "step" and isinstance(v, int | float)}
        self._each("log", lambda logger: logger.log(numbers, step))

    def close(self, error: BaseException | None) -> None:
        """The run has ended, well or with an error."""
        self._each("close", lambda logger: logger.close(error))
        self._open.clear()

    def _each(self, what: str, call: Callable[[Logger], None]) -> None:
        for name, logger in list(self._open.items()):
            try:
                call(logger)
            except Exception as error:
                log.exception("the logger %r failed to %s", name, what)
                self._say(f"the logger {name!r} failed and is left out: {type(error).__name__}: {error}")
                del self._open[name]
