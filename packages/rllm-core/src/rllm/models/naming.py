"""From a name to a model: built in, registered by the user, a folder, or a hub id, looked for in that order."""

__all__ = ["find_model", "list_models", "resolve_model", "setup_model"]

import logging
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from rllm.errors import ConfigError, ModelError, UnknownNameError
from rllm.loading import looked_for
from rllm.models.builtin import BUILTIN, BUILTIN_NAMES
from rllm.models.entries import Entry, load_entries, load_key, save_entry
from rllm.models.source import ModelSource

log = logging.getLogger("rllm.models")

_OWN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*")
_LOOKS_LIKE_A_PATH = re.compile(r"[./~\\]|[A-Za-z]:\\")


def find_model(name: str) -> ModelSource:
    """What ``name`` stands for; nothing is fetched or made.

    Raises UnknownNameError with the nearest names, ModelError for a folder that holds no model.
    """
    if name in BUILTIN:
        return _builtin(name)
    entries = load_entries()
    if name in entries:
        source = _registered(name, entries[name])
        if source.kind == "folder":
            _check_folder(Path(source.path), f"the model {name!r} was set up as")
        return source
    place = Path(name).expanduser()
    if name.strip() and place.exists():
        _check_folder(place, "the model is given as")
        return ModelSource(name, "folder", path=str(place))
    if _LOOKS_LIKE_A_PATH.match(name):
        raise ModelError(f"there is no folder {name!r} {looked_for(name)}")
    if _HUB_ID.fullmatch(name):
        return ModelSource(name, "hub", path=name)
    raise UnknownNameError(
        "model",
        name,
        [*BUILTIN_NAMES, *entries],
        hint="A folder with config.json or a hub id (org/name) will do too; `rllm model setup` gives one a name.",
    )


def resolve_model(name: str, say: Callable[[str], None] = log.info) -> ModelSource:
    """The same, made ready: a built-in model is fetched and converted where it is not there yet (once, a minute).

    ``say`` is told in a sentence what is being done, whenever that takes longer than a moment. Raises as
    ``find_model`` does, and ModelError where a built-in model can't be fetched or converted.
    """
    source = find_model(name)
    if source.kind != "builtin" or source.path:
        return source
    BUILTIN[name].make(say)
    return _builtin(name)


def list_models() -> list[ModelSource]:
    """Every model that has a name: the built-in ones, then the user's own in alphabetical order."""
    entries = load_entries()
    return [*map(_builtin, BUILTIN_NAMES), *(_registered(name, entries[name]) for name in sorted(entries))]


def setup_model(
    name: str,
    *,
    path: str | None = None,
    base_url: str | None = None,
    model_id: str | None = None,
    api_key: str | None = None,
) -> ModelSource:
    """Give a name to a folder or hub id (``path``), or to a provider's model (``base_url``, ``model_id``, a key).

    An older entry of that name is replaced. Raises ConfigError, ModelError; then nothing was saved.
    """
    if not _OWN_NAME.fullmatch(name) or name in BUILTIN:
        reason = "is a built-in model" if name in BUILTIN else "is no name: use letters, digits, '.', '-' and '_'"
        raise ConfigError(f"{name!r} {reason}; choose another name for yours")
    if (path is None) == (base_url is None):
        raise ConfigError(f"the model {name!r} needs either a path (a folder, a hub id) or a base_url (a provider)")
    if path is not None:
        if model_id is not None or api_key is not None:
            raise ConfigError(f"model_id and api_key go with a base_url; the model {name!r} has the path {path!r}")
        entry = Entry(path=_lasting_path(name, path))
    else:
        entry = _provider_entry(name, base_url or "", model_id)
    save_entry(name, entry, api_key or None)
    return find_model(name)


def _lasting_path(name: str, path: str) -> str:
    """A folder as an absolute path, so that the name means the same from everywhere; a hub id as it is."""
    place = Path(path).expanduser()
    if path.strip() and place.exists():
        _check_folder(place, f"the model {name!r} is given as")
        return str(place.resolve())
    if not _HUB_ID.fullmatch(path):
        raise ModelError(f"the path {path!r} of the model {name!r} is neither a folder here nor a hub id (org/name)")
    return path


def _provider_entry(name: str, base_url: str, model_id: str | None) -> Entry:
    address = urlsplit(base_url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError(f"the base_url {base_url!r} of {name!r} is no address, as https://api.example.com/v1 is")
    if address.username or address.password:
        raise ConfigError(
            f"the base_url of {name!r} holds a user or password: give the key as api_key, it is kept apart"
        )
    if not model_id:
        raise ConfigError(f"the model {name!r} needs a model_id: what {base_url} calls the model")
    return Entry(base_url=base_url.rstrip("/"), model_id=model_id)


def _builtin(name: str) -> ModelSource:
    builtin = BUILTIN[name]
    folder = builtin.folder()
    return ModelSource(name, "builtin", path=str(folder) if folder.is_dir() else "", summary=builtin.summary)


def _registered(name: str, entry: Entry) -> ModelSource:
    if entry.path is None:
        return ModelSource(name, "provider", base_url=entry.base_url, model_id=entry.model_id, api_key=load_key(name))
    return ModelSource(name, "hub" if _HUB_ID.fullmatch(entry.path) else "folder", path=entry.path)


def _check_folder(folder: Path, what: str) -> None:
    if not folder.is_dir():
        raise ModelError(f"{what} {str(folder)!r}, which is no folder. Give the folder that holds config.json")
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{what} the folder {str(folder)!r}, which holds no config.json. It must be a Hugging Face model: "
            "config.json, model.safetensors and the tokenizer's files, as save_pretrained writes them"
        )
