"""The plugin manager: finds plugins, calls their hooks, and holds what they register.

Built-in features come from the modules of ``BUILTIN`` through the same hooks as a stranger's; each is imported when
something of its kind is first asked for. Installed plugins come from the entry point group ``rllm``. The environment
variable ``RLLM_PLUGINS`` (comma-separated entry point names, empty for none) limits which are loaded, and
``RLLM_HOOK_TRACE=1`` logs every hook call.
"""

__all__ = ["KINDS", "LoadedPlugin", "PluginManager", "Register", "get_named", "get_plugins"]

import contextlib
import importlib
import inspect
import logging
import os
import re
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Protocol

import pluggy
from pydantic import BaseModel

from rllm import hookspecs
from rllm.errors import PluginError, UnknownNameError
from rllm.protocols import Registered

log = logging.getLogger("rllm.plugins")

KINDS: dict[str, str] = {
    "task": "rllm_register_tasks",
    "evaluator": "rllm_register_evaluators",
    "agent": "rllm_register_agents",
    "estimator": "rllm_register_estimators",
    "loss": "rllm_register_losses",
    "backend": "rllm_register_backends",
    "logger": "rllm_register_loggers",
}
"""What can be registered, and by which hook."""

BUILTIN: dict[str, tuple[str, ...]] = {
    "task": ("rllm.tasks.builtin",),
    "evaluator": ("rllm.reward.builtin",),
    "agent": ("rllm.agents.builtin",),
    "estimator": ("rllm.advantage.builtin",),
    "loss": ("rllm.update.builtin",),
    "backend": ("rllm.backends.builtin",),
    "logger": ("rllm.train.builtin",),
}
"""The core's own plugin modules, by the kind that they register."""

SettingsSource = type[BaseModel] | Callable[[], type[BaseModel]] | None
"""A pydantic model class with defaults, or a function that makes it, called when the settings are first needed."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")


class Register(Protocol):
    """What a registration hook is handed."""

    def __call__(
        self, name: str, value: Any, *, summary: str = "", settings: SettingsSource = None, **extra: Any
    ) -> None: ...


@dataclass(frozen=True)
class LoadedPlugin:
    """One plugin as it stands: what it is called, the hooks it implements, and what it has registered."""

    name: str
    """The entry point's, or the module's."""
    is_builtin: bool
    hooks: tuple[str, ...]
    items: tuple[tuple[str, Registered], ...]
    """(kind, item), by kind and name."""


class PluginManager:
    """A typed facade over pluggy, with one registry per kind."""

    def __init__(self, *, load_installed: bool = True) -> None:
        self._pm = pluggy.PluginManager("rllm")
        self._pm.add_hookspecs(hookspecs)
        self._items: dict[str, dict[str, Registered]] = {kind: {} for kind in KINDS}
        self._builtin_done: set[str] = set()
        self._lock = threading.RLock()
        self.failed: dict[str, str] = {}
        """Installed plugins that could not be loaded, and why: a broken stranger does not take the rest down."""
        if load_installed:
            self._load_installed()

    # -- loading

    def _load_installed(self) -> None:
        allowed = os.environ.get("RLLM_PLUGINS")
        names = None if allowed is None else {n.strip() for n in allowed.split(",") if n.strip()}
        found = {ep.name: ep for ep in entry_points(group="rllm")}
        for name in sorted((names or set()) - found.keys()):
            raise UnknownNameError("installed plugin", name, found, "It is named by RLLM_PLUGINS.")
        for name, ep in sorted(found.items()):
            if names is not None and name not in names:
                continue
            try:
                self.register(ep.load(), name=name)
            except Exception as error:
                self.failed[name] = f"{type(error).__name__}: {error}"
                log.warning("the plugin %r could not be loaded and is left out: %s", name, self.failed[name])

    def register(self, plugin: object, name: str | None = None) -> str:
        """Add a plugin by hand; registering the same object again does nothing. Returns its name.

        Raises PluginError where a hook is misspelt or it registers something unusable; then nothing of it stays.
        """
        with self._lock:
            if self._pm.is_registered(plugin):
                return self._pm.get_name(plugin) or ""
            chosen = name or getattr(plugin, "__name__", None) or type(plugin).__name__
            try:
                self._pm.register(plugin, name=chosen)
            except (ValueError, pluggy.PluginValidationError) as error:
                self._forget(plugin, chosen)
                raise PluginError(f"plugin {chosen!r}: {error}") from error
            try:
                self._check_hook_names(plugin, chosen)
                self._collect(plugin, chosen)
            except BaseException:
                self._forget(plugin, chosen)
                raise
            return chosen

    def unregister(self, plugin: object) -> None:
        """Take a plugin and all that it registered out again."""
        with self._lock:
            self._forget(plugin, self._pm.get_name(plugin) or "")

    def _forget(self, plugin: object, name: str) -> None:
        if self._pm.is_registered(plugin):
            self._pm.unregister(plugin)
        for items in self._items.values():
            for key in [k for k, item in items.items() if item.plugin == name]:
                del items[key]

    def _check_hook_names(self, plugin: object, name: str) -> None:
        known = {n for n in vars(hookspecs) if n.startswith("rllm_")}
        for attribute in dir(plugin):
            if attribute.startswith("rllm_") and attribute not in known:
                raise PluginError(f"plugin {name!r}: {UnknownNameError('hook', attribute, known)}")

    def _collect(self, plugin: object, name: str) -> None:
        implemented = {caller.name: caller for caller in self._pm.get_hookcallers(plugin) or []}
        for kind, hook in KINDS.items():
            caller = implemented.get(hook)
            if caller is None:
                continue
            for impl in caller.get_hookimpls():
                if impl.plugin is not plugin:
                    continue
                try:
                    if impl.argnames:
                        impl.function(partial(self._add, kind, name))
                    else:
                        impl.function()
                except PluginError:
                    raise
                except Exception as error:
                    raise PluginError(f"plugin {name!r}: {hook} raised {type(error).__name__}: {error}") from error

    def _add(
        self,
        kind: str,
        plugin: str,
        name: str,
        value: Any,
        *,
        summary: str = "",
        settings: SettingsSource = None,
        **extra: Any,
    ) -> None:
        where = f"plugin {plugin!r}: {kind} {name!r}"
        if not _NAME.fullmatch(name):
            raise PluginError(
                f"{where}: a name has small letters, digits, '_', '-' and '.', and starts with the first two"
            )
        if not callable(value):
            raise PluginError(f"{where}: the value must be callable, got {type(value).__name__}")
        held = self._items[kind].get(name)
        if held is not None:
            raise PluginError(f"{where} is already registered by plugin {held.plugin!r}; choose another name")
        if settings is not None and (inspect.isclass(settings) or not callable(settings)):
            if not _is_model(settings):
                raise PluginError(f"{where}: settings must be a pydantic model class, got {settings!r}")
            required = [n for n, f in settings.model_fields.items() if f.is_required()]
            if required:
                raise PluginError(f"{where}: the settings {', '.join(required)} need defaults")
        self._items[kind][name] = Registered(name, value, plugin, summary, settings, extra)

    def _load_builtin(self, kind: str) -> None:
        with self._lock:
            if kind in self._builtin_done:
                return
            self._builtin_done.add(kind)
            for module in BUILTIN[kind]:
                self.register(importlib.import_module(module), name=module)

    # -- reading

    def names(self, kind: str) -> list[str]:
        """The registered names of a kind, sorted."""
        self._load_builtin(kind)
        return sorted(self._items[kind])

    def all(self, kind: str) -> list[Registered]:
        """The registered items of a kind, by name."""
        return [self._items[kind][n] for n in self.names(kind)]

    def get(self, kind: str, name: str) -> Registered:
        """The item of that kind and name. Raises UnknownNameError with the nearest names."""
        self._load_builtin(kind)
        try:
            return self._items[kind][name]
        except KeyError:
            raise UnknownNameError(kind, name, self._items[kind]) from None

    def loaded(self) -> list[LoadedPlugin]:
        """Every plugin, the built-in ones first."""
        for kind in KINDS:
            self._load_builtin(kind)
        modules = {module for names in BUILTIN.values() for module in names}
        found = [
            LoadedPlugin(
                name=name,
                is_builtin=name in modules,
                hooks=tuple(sorted(caller.name for caller in self._pm.get_hookcallers(plugin) or [])),
                items=tuple((kind, item) for kind in KINDS for item in self.all(kind) if item.plugin == name),
            )
            for name, plugin in self._pm.list_name_plugin()
            if plugin is not None
        ]
        return sorted(found, key=lambda plugin: (not plugin.is_builtin, plugin.name))

    def check_pending(self) -> None:
        """Raise PluginError if any plugin marks a function that is no hook."""
        try:
            self._pm.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"{error}. The hooks are listed in rllm.hookspecs.") from error

    # -- calling

    def notify(self, hook: str, **arguments: Any) -> None:
        """Call a notification hook on every plugin; an error is logged with the plugin's name and goes no further."""
        for impl in reversed(getattr(self._pm.hook, hook).get_hookimpls()):
            try:
                _call(impl, arguments)
            except Exception:
                log.exception("plugin %r failed in %s; the run goes on", impl.plugin_name, hook)

    @contextlib.contextmanager
    def rollout_context(self, session: Any) -> Generator[None]:
        """Enter every plugin's context around a rollout. Raises PluginError that names the plugin."""
        with ExitStack() as stack:
            for impl in self._pm.hook.rllm_rollout_context.get_hookimpls():
                try:
                    entered: AbstractContextManager[object] | None = _call(impl, {"session": session})
                    if entered is not None:
                        stack.enter_context(entered)
                except Exception as error:
                    raise PluginError(
                        f"plugin {impl.plugin_name!r} failed in rllm_rollout_context: {type(error).__name__}: {error}"
                    ) from error
            yield


def _is_model(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseModel)


def _call(impl: pluggy.HookImpl, arguments: dict[str, Any]) -> Any:
    if os.environ.get("RLLM_HOOK_TRACE"):
        log.info("hook %s of plugin %r", impl.function.__name__, impl.plugin_name)
    function: Callable[..., Any] = impl.function
    return function(**{name: arguments[name] for name in impl.argnames})


def get_named(plugins: PluginManager, kind: str, name: str) -> Registered:
    """The item of a name that may also be a file's; a file without its function is said so. Raises UnknownNameError."""
    try:
        return plugins.get(kind, name)
    except UnknownNameError as error:
        hint = f"The {kind} of a Python file is named by its function: {name}:NAME." if name.endswith(".py") else ""
        hint = hint or "One of your own is path/to/file.py:NAME."
        raise UnknownNameError(kind, name, error.known, hint) from None


_manager: PluginManager | None = None
_manager_lock = threading.Lock()


def get_plugins() -> PluginManager:
    """The process's plugin manager, made on first use."""
    global _manager
    with _manager_lock:
        if _manager is None:
            _manager = PluginManager()
        return _manager
