"""``rllm model``: set up, list, show, try and push models."""

__all__ = ["command"]

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rllm.cli.output import json_option, print_json

if TYPE_CHECKING:
    from rllm.models import ModelSource


@click.group()
def command() -> None:
    """Set up, list, show and push models."""


@command.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """Every model that has a name here."""
    from rllm.models import describe_model, list_models

    sources = list_models()
    if as_json:
        print_json([_as_dict(source) for source in sources])
        return
    width = max(len(source.name) for source in sources)
    for source in sources:
        click.echo(f"{source.name:<{width}}  {source.kind:<8}  {describe_model(source)}")


@command.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """What the model NAME is, and where it lies."""
    from rllm.models import describe_model, find_model

    source = find_model(name)
    if as_json:
        print_json(_as_dict(source))
        return
    click.echo(f"{source.name} ({source.kind}): {describe_model(source)}")
    if source.path:
        click.echo(f"path      {source.path}")
    if source.base_url:
        click.echo(f"base url  {source.base_url}")
        click.echo(f"model     {source.model_id}")
        click.echo(f"key       {'set' if source.api_key else 'not set'}")


def _as_dict(source: "ModelSource") -> dict[str, Any]:
    """A source for ``--json``; of a key, that there is one."""
    return {
        "name": source.name,
        "kind": source.kind,
        "path": source.path or None,
        "base_url": source.base_url,
        "model_id": source.model_id,
        "has_key": source.api_key is not None,
        "summary": source.summary,
    }


@command.command()
@click.argument("name", required=False)
@click.option("--path", help="A folder with config.json, or a hub id: a model that can be trained.")
@click.option("--base-url", help="An OpenAI-compatible endpoint: a model that can be evaluated.")
@click.option("--model-id", help="What the endpoint calls the model.")
@click.option("--key-env", help="The environment variable that holds the endpoint's key; it is stored.")
@click.option("--no-try", is_flag=True, help="Don't ask the model a question.")
def setup(
    name: str | None, path: str | None, base_url: str | None, model_id: str | None, key_env: str | None, no_try: bool
) -> None:
    """Give a model a name, make it ready, and try it.

    Asks for what is not given. The key goes into a file that only you can read.

    \b
    rllm model setup smollm2-135m
    rllm model setup mine --path ./my-model
    rllm model setup big --base-url https://api.example.com/v1 --model-id big-1 --key-env BIG_API_KEY
    """
    from rllm.errors import ConfigError
    from rllm.models import BUILTIN_NAMES, resolve_model, setup_model

    if name is None:
        name = click.prompt("Name of the model (a built-in one, or a name of your own)", default="smollm2-135m")
    assert name is not None
    if name not in BUILTIN_NAMES:
        if path is None and base_url is None:
            place = click.prompt("A folder, a hub id, or the https:// address of an OpenAI-compatible endpoint")
            path, base_url = (None, place) if place.startswith(("http://", "https://")) else (place, None)
        if base_url is not None and model_id is None:
            model_id = click.prompt("What does the endpoint call the model")
        key = None
        if key_env is not None:
            key = os.environ.get(key_env)
            if not key:
                raise ConfigError(f"the environment variable {key_env!r} (--key-env) is not set")
        elif base_url is not None:
            key = click.prompt("Its API key (stored for you alone; empty for none)", default="", hide_input=True)
        setup_model(name, path=path, base_url=base_url, model_id=model_id, api_key=key or None)
    elif path or base_url or model_id or key_env:
        raise ConfigError(f"{name!r} is a built-in model and takes no address; choose another name for yours")
    source = resolve_model(name, click.echo)
    click.echo(f"{name} is ready ({source.kind}{', ' + source.path if source.path else ''})")
    if not no_try:
        click.echo(f"asked 'Say hello.', it says: {_ask(name)!r}")


@command.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("repository")
@click.option("--adapter", is_flag=True, help="Of a LoRA run, the adapter instead of the merged model.")
@click.option("--public", is_flag=True, help="A repository that is made now is seen by all.")
def push(folder: Path, repository: str, adapter: bool, public: bool) -> None:
    """Upload the model in FOLDER (a run's, or a model's) to REPOSITORY (org/name) on the Hugging Face hub.

    The repository is made where there is none, private but for --public. Its card says how the model was trained.
    The token is that of `hf auth login` or HF_TOKEN; HF_ENDPOINT names another hub.

    \b
    rllm model push runs/chain_sum-1 my-name/sums
    """
    from rllm.models import push_model

    click.echo(f"pushed to {push_model(folder, repository, is_public=public, adapter=adapter)}")


def _ask(name: str) -> str:
    """One reply of the model, by the same path that an evaluation takes."""
    import asyncio
    import tempfile
    from pathlib import Path

    from rllm.config import EvalConfig
    from rllm.configure import resolve_config
    from rllm.evals.runner import resolve_parts
    from rllm.evals.serving import open_serving
    from rllm.plugins import get_plugins
    from rllm.rollouts import RolloutRunner
    from rllm.types import Episode, SamplingParams, Task

    def _any_reply(task: Task, episode: Episode) -> float:
        return 1.0

    plugins = get_plugins()
    config = resolve_config(EvalConfig, [{"model": name}], plugins)
    task = Task(id="hello", prompt="Say hello.")

    async def ask() -> str:
        with tempfile.TemporaryDirectory() as folder:
            async with open_serving(config, plugins, Path(folder) / "traces.sqlite") as serving:
                parts = resolve_parts(config, plugins, tasks=[task], agent="chat", evaluator=_any_reply)
                runner = RolloutRunner(
                    serving.gateway, plugins, parts.flow, parts.evaluator, config.rollout, serving.model.name
                )
                sampling = SamplingParams(max_tokens=32, temperature=0)
                (episode,) = await runner.run([task], 1, sampling, is_training=False, phase="try")
        if episode.failure is not None:
            from rllm.errors import ModelError

            raise ModelError(f"the model {name!r} was set up, but did not answer: {episode.failure.message}")
        return str(episode.output)

    return asyncio.run(ask())
