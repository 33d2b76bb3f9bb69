"""``AgentTrainer``: the Python door to a training run; ``rllm train`` goes through it too."""

__all__ = ["AgentTrainer"]

import asyncio
import concurrent.futures
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from rllm.config import TrainConfig
from rllm.configure import GIVEN, read_config_file, resolve_layers
from rllm.errors import ConfigError
from rllm.plugins import PluginManager, get_plugins
from rllm.train.dry_run import DryRun, dry_run
from rllm.train.loop import TrainResult, train
from rllm.train.resuming import settings_of_run
from rllm.train.stopping import Stopping


class AgentTrainer:
    """Trains an agent on tasks.

    ``agent`` is a flow (``@rllm.rollout`` or a plain function), ``evaluator`` a grader (``@rllm.evaluator`` or a plain
    function), ``tasks`` a name, a JSONL file, a function or a list of tasks; each may also be a string as on the
    command line. ``settings`` holds every other setting by its dotted name, over those of the YAML file ``config``:

        AgentTrainer(agent=solve, evaluator=grade, tasks="chain_sum", settings={"steps": 40, "optimizer.lr": 1e-5})

    ``resume`` names the folder of a run that was stopped: it goes on with that run's settings, from its newest
    checkpoint, with the same agent, evaluator and tasks, unless ``allow_changes``.

    ``train()`` hears Ctrl-C and SIGTERM: the first lets the step end, saves, and returns what there is; the second
    raises KeyboardInterrupt at once. ``train_async()`` leaves signals to its caller, who has ``stop()``.

    Raises ConfigError at once for settings that can't be honoured.
    """

    def __init__(
        self,
        agent: Any = None,
        evaluator: Any = None,
        tasks: Any = None,
        *,
        model: str | None = None,
        backend: str | None = None,
        config: str | None = None,
        settings: Mapping[str, Any] | None = None,
        plugins: PluginManager | None = None,
        console: Console | None = None,
        resume: str | None = None,
        allow_changes: bool = False,
    ) -> None:
        self._plugins = plugins or get_plugins()
        self._plugins.check_pending()
        named: dict[str, Any] = {"model": model, "backend": backend}
        self._objects: dict[str, Any] = {}
        for name, value in (("agent", agent), ("evaluator", evaluator), ("tasks", tasks)):
            if value is None or isinstance(value, str):
                named[name] = value
            else:
                self._objects[name] = value
        given = {k: v for k, v in named.items() if v is not None}
        self._resumes, self._allows_changes = resume is not None, allow_changes
        self._layers: list[tuple[str, Mapping[str, Any]]] = [
            (config or "", read_config_file(config) if config else {}),
            (GIVEN, given),
            (GIVEN, settings or {}),
        ]
        if resume is not None:
            self._layers = [(resume, settings_of_run(resume)), *self._layers, (GIVEN, {"run_dir": resume})]
        self.config = resolve_layers(TrainConfig, self._layers, self._plugins)
        self._console = console
        self._stopping = Stopping()
        if not self.config.tasks and "tasks" not in self._objects:
            raise ConfigError(
                "no tasks are given: name some of `rllm task list` (for example chain_sum), or a JSONL file"
            )

    def train(self) -> TrainResult:
        """Train to the end, and return what it came to. Also works where an event loop is running (a notebook)."""
        self._stopping = Stopping(listens=True)
        try:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return asyncio.run(self._train())
            return self._train_in_a_thread()
        except asyncio.CancelledError:
            if self._stopping.is_now:
                raise KeyboardInterrupt from None
            raise

    def dry_run(self) -> DryRun:
        """Check everything that ``train()`` checks before its first step, and say what the run would take.

        The weights are not read, nothing is written, and nothing is trained; it takes some seconds to measure.
        """
        return dry_run(
            self.config,
            self._plugins,
            layers=self._layers,
            resume=self._resumes,
            allow_changes=self._allows_changes,
            **self._objects,
        )

    async def train_async(self) -> TrainResult:
        """The same, to be awaited."""
        self._stopping = Stopping()
        return await self._train()

    def stop(self) -> None:
        """Ask a run that is going on to end after its step and save, from any thread; twice, to end at once."""
        self._stopping.ask("stop()")

    def _train_in_a_thread(self) -> TrainResult:
        with concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="rllm-train") as pool:
            training = pool.submit(lambda: asyncio.run(self._train()))
            while True:
                try:
                    return training.result()
                except KeyboardInterrupt:
                    # Interrupting a notebook's cell reaches this thread alone.
                    if training.done():
                        raise
                    self._stopping.ask("SIGINT")

    async def _train(self) -> TrainResult:
        return await train(
            self.config,
            self._plugins,
            console=self._console,
            resume=self._resumes,
            allow_changes=self._allows_changes,
            stopping=self._stopping,
            **self._objects,
        )
