"""Configuration: typed, composed with the plugins' sections, and a key that nobody reads is an error."""

import pytest

from rllm.config import EvalConfig, TrainConfig
from rllm.configure import (
    GIVEN,
    describe_settings,
    parse_assignments,
    read_config_file,
    resolve_config,
    resolve_layers,
)
from rllm.errors import ConfigError, UnknownNameError
from rllm.plugins import PluginManager


@pytest.fixture(scope="module")
def plugins() -> PluginManager:
    return PluginManager(load_installed=False)


def resolve(plugins, *arguments, kind=TrainConfig):
    return resolve_config(kind, [parse_assignments(arguments)], plugins)


def test_later_layers_win_and_dotted_keys_meet_nested_ones(plugins):
    layers = [{"optimizer": {"lr": 1.0, "beta1": 0.5}}, {"optimizer.lr": 2.0}]
    config = resolve_config(TrainConfig, layers, plugins)
    assert (config.optimizer.lr, config.optimizer.beta1) == (2.0, 0.5)


def test_numbers_in_scientific_notation_are_numbers(plugins):
    assert resolve(plugins, "optimizer.lr=1e-5").optimizer.lr == 1e-5


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("grup_size=4", "no setting 'grup_size'.*'group_size'"),
        ("optimizer.learning_rate=1", "no setting 'optimizer.learning_rate'"),
        ("optimizer.lrr=1", "'optimizer.lr'"),
        ("sampling.temprature=1", "'sampling.temperature'"),
        ("estimator=gpro", "no estimator 'gpro'.*'grpo'"),
        ("loss=pppo", "no loss 'pppo'.*'ppo'"),
        ("backend=tinkr", "no backend 'tinkr'.*'tinker'"),
        ("grpo.sdt=true", "no setting 'grpo.sdt'.*'grpo.std'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(plugins, argument, message):
    with pytest.raises(UnknownNameError, match=message):
        resolve(plugins, argument)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("group_size=zero", "group_size='zero' won't do"),
        ("group_size=0", "group_size=0 won't do"),
        ("optimizer=3", "optimizer=3 won't do"),
        ("nonsense", "'nonsense' is no setting; write key=value"),
        ("loss_aggregation=mean", "loss_aggregation='mean' won't do"),
    ],
)
def test_a_wrong_value_is_named_with_its_setting(plugins, argument, message):
    with pytest.raises(ConfigError, match=message):
        resolve(plugins, argument)


def test_a_section_of_the_chosen_plugin_is_typed(plugins):
    assert resolve(plugins, "grpo.std=false").plugins["grpo"].std is False


def test_a_section_of_a_plugin_that_is_not_chosen_is_refused_and_says_what_to_do(plugins):
    with pytest.raises(ConfigError, match=r"'grpo.std' is set, but estimator is 'rloo'.*estimator=grpo"):
        resolve(plugins, "estimator=rloo", "grpo.std=false")


def test_an_estimator_of_one_role_brings_its_section(plugins):
    config = resolve(plugins, "estimator_by_role={checker: reinforce}", "reinforce.baseline=batch")
    assert set(config.plugins) >= {"grpo", "reinforce"}


def test_what_a_run_writes_reads_back_as_the_same_configuration(plugins, tmp_path):
    import yaml

    config = resolve(plugins, "tasks=chain_sum", "grpo.std=false", "optimizer.lr=3e-5", "chain_sum.max_digits=2")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(describe_settings(config)))
    again = resolve_config(TrainConfig, [read_config_file(str(file))], plugins)
    assert describe_settings(again) == describe_settings(config)


@pytest.mark.parametrize("text", ["- a list", "a: [unclosed", "\x00"])
def test_a_broken_configuration_file_is_named(tmp_path, text):
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.yaml"):
        read_config_file(str(file))


def test_a_missing_configuration_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml.*can't be read"):
        read_config_file(str(tmp_path / "nowhere.yaml"))


def test_an_evaluation_refuses_the_settings_of_training(plugins):
    with pytest.raises(ConfigError, match=r"'optimizer\.lr' is a setting of `rllm train`, and `rllm eval` has no such"):
        resolve(plugins, "optimizer.lr=1", kind=EvalConfig)
    with pytest.raises(UnknownNameError, match=r"Did you mean 'optimizer\.lr'"):
        resolve(plugins, "optimiser.lr=1")


def test_a_mistake_in_a_file_is_said_with_the_files_name_and_one_beside_it_is_not(plugins):
    layers = [("some.yaml", {"steps": "many"}), (GIVEN, {"seed": 1})]
    with pytest.raises(ConfigError, match=r"^some\.yaml: steps='many' won't do"):
        resolve_layers(TrainConfig, layers, plugins)
    layers = [("some.yaml", {"steps": 3}), (GIVEN, {"seed": "many"})]
    with pytest.raises(ConfigError, match=r"^seed='many' won't do"):
        resolve_layers(TrainConfig, layers, plugins)
    with pytest.raises(UnknownNameError, match=r"^some\.yaml: there is no setting 'stpes'"):
        resolve_layers(TrainConfig, [("some.yaml", {"stpes": 1})], plugins)


def test_what_is_wrong_with_a_value_names_its_default(plugins):
    for argument, default in (("group_size=0", "8"), ("optimizer.lr=x", "7.0e-06"), ("grpo.std=7", "true")):
        with pytest.raises(ConfigError, match=rf"\(default: {default}\)"):
            resolve(plugins, argument)
