"""The settings that go on from a trained model: on another domain, with old pairs mixed in, or on a corpus that grew."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformer_core import recipes
from transformer_core.config import PRETRAINED
from transformer_core.corpus.sources.catalogue import OWN_ENTRIES, find_entry, load_entry
from transformer_core.corpus.sources.manifest import SYMBOL_ERRORS
from transformer_core.corpus.sources.readers import located, named_from
from transformer_core.corpus.text import FURTHER_TEST
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import new_directory, write_text
from transformer_core.models.directory import CONFIG, SUBWORD, ModelConfig, read_config
from transformer_core.sizes import ModelSize, architectures
from transformer_core.tasks import is_language
from transformer_core.yaml_io import editable_yaml, read_yaml, yaml_text

_NEW, _OLD = "new", "old"
_LEAST_DROPOUT = 0.1
_SAVES = 20  # Of a training; a validation is at each fifth, and the model is the mean of the last five.


def _mix_in(path: Path, languages: Sequence[str], other: str) -> None:
    """Call the training text of an entry `new`, add that of another entry as `old`, and the other's test set as `test_OTHER`.

    Training text that is named `old` is replaced. Raises `UserError` (78): there is no such entry, it lacks a language, or it has no source
    that an entry in corpora/ can name; or the entry at `path` comes with the package.
    """
    if path.parent != OWN_ENTRIES:
        raise configuration_error(f"--mix: {path} comes with the package and stays as it is", "Tune on a corpus in corpora/.")
    found = find_entry(other, "--mix")
    if missing := [language for language in languages if language not in found.entry.languages]:
        raise configuration_error(f"--mix: {other} has no {missing[0]}", f"It has {', '.join(found.entry.languages)}.")
    document = read_yaml(path, editable_yaml)
    document["splits"]["train"] = [source for source in document["splits"]["train"] if source.get("name") != _OLD]
    for source in document["splits"]["train"]:
        source["name"] = _NEW
    moved: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    for split, sources in moved.items():
        for source in found.entry.sources[split]:
            if found.entry.directions and {*languages} not in map(set, found.entry.directions_of(source)):
                continue
            kept: dict[str, Any] = source.model_dump(exclude_defaults=True, exclude={"name", "translated", "trees", "direction"})
            for kind in kept.keys() & {"files", "https"}:
                kept[kind] = {language: kept[kind][language] for language in languages}
            for file in kept.get("files", {}).values():
                file["path"] = named_from(OWN_ENTRIES, located(found.path.parent, file["path"]))
            sources += [kept] if source.kinds[0] in kept else []
        if not sources:
            raise configuration_error(f"{found.path}: splits.{split}: has no text of its own", "Name another corpus in --mix.")
    document["splits"]["train"] += [{**source, "name": _OLD} for source in moved["train"]]
    document.setdefault("tests", {})[f"{FURTHER_TEST}{other.replace('.', '-')}"] = moved["test"]
    write_text(path, yaml_text(document))


def settings(path: Path, model: Path, other: str | None = None, *, count_words: bool = True) -> str:
    """Return a params file that trains a model directory further on an entry; the model is copied into pretrained/ if it is not there.

    The rate is a tenth of a first training's, and few pairs are seen about thirty times. Pairs of the entry `other` are mixed in.

    Raises `UserError`: 65, no model directory; 78, the model has other languages or writes trees, or its copy's place is taken; `_mix_in`.
    """
    entry = load_entry(path)
    config = read_config(model / CONFIG)
    if not is_language(config.target):
        raise configuration_error(f"{model}: writes a {config.target}, no translation", "Name it in train.init_from and bpe.init_from.")
    if not {config.source, config.target} <= set(entry.languages):
        fault = f"{model}: translates {config.source} to {config.target}, but the corpus has {', '.join(entry.languages)}"
        raise configuration_error(fault, "Name a model of these languages.")
    start = PRETRAINED / model.resolve().name
    start = start if start.resolve() == model.resolve() else PRETRAINED / entry.name
    if start.exists() and not (start / CONFIG).is_file():
        raise configuration_error(f"{start}: exists, and is no model", "Move it, or give the corpus another name.")
    if other:
        _mix_in(path, entry.languages, other)
    if start.resolve() != model.resolve():
        with new_directory(start) as copied:
            shutil.copytree(model, copied, dirs_exist_ok=True)
    pairs = entry.size.pairs if entry.size else 0
    rules = {"count_words": count_words, "symbols": SYMBOL_ERRORS in entry.metrics}
    text = recipes.for_own_data(entry.name, config.source, config.target, pairs, 0, 0, **rules)
    document, subword = editable_yaml(text, entry.name), Subword.load(start / SUBWORD)
    document["bpe"].update(init_from=start.name, vocab_size=subword.vocab_size, byte_fallback=subword.has_bytes)
    document["bpe"].update(lowercase=subword.lowercases, normalise=subword.forms)
    document["model"] = _section(config)
    every = min(max(pairs // 100, 10), 150)
    document["train"].update(init_from=start.name, updates=_SAVES * every, save_every=every, validate_every=5 * every, keep=5)
    document["train"].update(tokens_per_update=2048, tokens_per_microbatch=512, learning_rate_factor=0.1, warmup=100, cooldown=0.5)
    document["average"]["count"] = 5
    if config.decode:
        document["decode"].update(config.decode.model_dump() | {"shortlist": False, "ensemble": None})
    if other:
        document["train"]["mix"] = [{"weights": {_NEW: 1, _OLD: 1}}]
    return yaml_text(document)


def _section(config: ModelConfig) -> dict[str, Any]:
    """Return section `model` for the sizes of a model, as few keys beside a preset as possible, with dropout."""
    size: ModelSize = config.model
    found = []
    for name, preset in architectures()[size.architecture].presets.items():
        keys = {key: value for key, value in asdict(size).items() if value not in (None, getattr(preset, key)) or key in ("d_k", "d_v")}
        keys["dropout"] = max(size.dropout, _LEAST_DROPOUT)
        if getattr(size, "convolutions", None):
            keys.pop("layers", None)  # It follows from the list.
        with suppress(UserError):  # Keys that do not go with this preset.
            if preset.changed(keys).effective() == size.effective():
                found.append({"architecture": size.architecture, "preset": name, **keys})
    return min(found, key=len)
