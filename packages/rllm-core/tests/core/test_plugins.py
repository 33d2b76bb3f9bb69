"""The plugin manager: registration is loud and whole, notification is quiet and safe."""

import logging
import types

import pytest
from pydantic import BaseModel

import rllm
from rllm import hookspecs
from rllm.errors import PluginError, UnknownNameError
from rllm.plugins import KINDS, PluginManager


def module(**functions: object) -> types.SimpleNamespace:
    plugin = types.SimpleNamespace(__name__="stranger", **functions)
    return plugin


@pytest.fixture
def manager() -> PluginManager:
    return PluginManager(load_installed=False)


def estimators(*items: tuple[object, ...], **extra: object) -> object:
    @rllm.hookimpl
    def rllm_register_estimators(register):
        for item in items:
            register(*item, **extra)

    return rllm_register_estimators


def test_a_registered_item_is_found_by_its_name(manager):
    manager.register(module(rllm_register_estimators=estimators(("mine", len))))
    assert manager.get("estimator", "mine").value is len
    assert manager.get("estimator", "mine").plugin == "stranger"


def test_an_unknown_name_is_answered_with_the_nearest(manager):
    manager.register(module(rllm_register_estimators=estimators(("best_of_two", len))))
    with pytest.raises(UnknownNameError, match=r"no estimator 'best_of_too'.*'best_of_two'"):
        manager.get("estimator", "best_of_too")


def test_a_misspelt_hook_is_an_error_with_the_nearest_name(manager):
    @rllm.hookimpl
    def rllm_register_estimator(register):
        register("x", len)

    with pytest.raises(PluginError, match=r"'stranger'.*rllm_register_estimators"):
        manager.register(module(rllm_register_estimator=rllm_register_estimator))


class NeedsValue(BaseModel):
    cap: float


@pytest.mark.parametrize(
    ("item", "extra", "message"),
    [
        (("Bad Name", len), {}, "a name has small letters"),
        (("x", 3), {}, "must be callable, got int"),
        (("x", len), {"settings": dict}, "settings must be a pydantic model class"),
        (("x", len), {"settings": NeedsValue}, "the settings cap need defaults"),
    ],
)
def test_an_unusable_item_is_refused_by_plugin_and_name(manager, item, extra, message):
    with pytest.raises(PluginError, match=message) as caught:
        manager.register(module(rllm_register_estimators=estimators(item, **extra)))
    assert "stranger" in str(caught.value)


def test_a_failed_registration_leaves_nothing_behind_and_can_be_tried_again(manager):
    bad = module(rllm_register_estimators=estimators(("good", len), ("bad", 3)))
    with pytest.raises(PluginError):
        manager.register(bad)
    assert "good" not in manager.names("estimator")
    manager.register(module(rllm_register_estimators=estimators(("good", len))))
    assert "good" in manager.names("estimator")


def test_a_registration_hook_that_raises_names_the_plugin_and_the_hook(manager):
    @rllm.hookimpl
    def rllm_register_losses(register):
        raise RuntimeError("no licence")

    with pytest.raises(PluginError, match="'stranger': rllm_register_losses raised RuntimeError: no licence"):
        manager.register(module(rllm_register_losses=rllm_register_losses))


def test_two_plugins_cannot_share_a_name(manager):
    manager.register(module(rllm_register_estimators=estimators(("same", len))), name="first")
    with pytest.raises(PluginError, match="already registered by plugin 'first'"):
        manager.register(module(rllm_register_estimators=estimators(("same", len))), name="second")


def test_registering_twice_is_once_and_unregistering_takes_all_out(manager):
    plugin = module(rllm_register_estimators=estimators(("mine", len)))
    manager.register(plugin)
    manager.register(plugin)
    manager.unregister(plugin)
    assert "mine" not in manager.names("estimator")


def test_a_failing_notification_is_logged_with_the_plugins_name_and_the_others_run(manager, caplog):
    seen = []

    @rllm.hookimpl
    def fails(run_dir):
        raise ValueError("full disk")

    @rllm.hookimpl
    def works(run_dir, error):
        seen.append((run_dir, error))

    manager.register(module(rllm_run_finished=works), name="works")
    manager.register(module(rllm_run_finished=fails), name="fails")
    with caplog.at_level(logging.ERROR):
        manager.notify("rllm_run_finished", run_dir="runs/x", error=None)
    assert seen == [("runs/x", None)]
    assert "'fails' failed in rllm_run_finished" in caplog.text


def test_an_unknown_plugin_in_the_allow_list_is_an_error(monkeypatch):
    monkeypatch.setenv("RLLM_PLUGINS", "not-installed")
    with pytest.raises(UnknownNameError, match="not-installed"):
        PluginManager()


def test_every_hook_says_when_it_is_called_and_every_registration_hook_has_a_kind():
    hooks = {name: value for name, value in vars(hookspecs).items() if name.startswith("rllm_")}
    assert all(len((hook.__doc__ or "").strip()) > 40 for hook in hooks.values())
    assert {name for name in hooks if name.startswith("rllm_register_")} == set(KINDS.values())
