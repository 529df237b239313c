"""`transformer-core data`: make a corpus of text files, update it, or print the plan of a recipe's corpus."""

import argparse
import json
import re
import sys
import textwrap
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from transformer_core.cli.arguments import Commands, add_command, dvc_repro, in_bytes, positive_float, positive_int
from transformer_core.errors import UserError, configuration_error, for_terminal


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "data", None, "use your own text files, or plan a recipe's corpus", "new --help")
    subcommands = parser.add_subparsers(metavar="SUBCOMMAND", required=True)
    summary = "make a corpus from two aligned text files or one table, and a params.yaml for it"
    new = add_command(subcommands, "new", run_new, summary, "letters letters.en letters.de")
    summary = "train a model further on a corpus, made of files as `new` does or already there; writes params.yaml"
    tune = add_command(subcommands, "tune", run_new, summary, "letters letters.en letters.de --from models/averaged")
    tune.add_argument("--from", metavar="DIR", dest="start", type=Path, required=True, help="model directory; copied into pretrained/")
    tune.add_argument("--mix", metavar="CORPUS", help="corpus for half of the training pairs; its test set is scored, too")
    files = "two texts, one sentence a line: corpus.en corpus.de; or one file with both languages, of a form in docs/data.md; "
    files += "or a dataset of Hugging Face's hub: hf:OWNER/NAME/CONFIGURATION"
    for parser, count, none in ((new, "+", ""), (tune, "*", "; none for a corpus that is there")):
        add = parser.add_argument
        add("name", metavar="NAME", help="name of the corpus")
        add("files", metavar="FILE", nargs=count, type=Path, help=f"{files}{none}")
        add("--source", metavar="COLUMN", help="number, from 1, or name of the column with the source, if the file does not tell")
        add("--target", metavar="COLUMN", help="number or name of the column with the target")
        add("--source-language", metavar="L", help="language, if the file's suffix is none")
        add("--target-language", metavar="L", help="language, if the file's suffix is none")
        for split in ("valid", "test"):
            held_out = parser.add_mutually_exclusive_group().add_argument
            lines = f"pairs held out for {split} (default: a tenth, at most 1,000)"
            held_out(f"--{split}-lines", metavar="N", type=positive_int, help=lines)
            held_out(f"--{split}", metavar="FILE", nargs="+", type=Path, help=f"one or two files of {split}; no pair is held out for it")
        parser.add_argument("--force", action="store_true", help="replace a corpus of that name and an edited params.yaml")
    minutes = "time for the training on this machine, whose speed is measured in seconds"
    new.add_argument("--minutes", metavar="M", type=positive_float, help=minutes)
    new.add_argument("--symbols", action="store_true", help="tokens are symbols: for pronunciation, transliteration, spelling")
    new.set_defaults(start=None, mix=None)
    tune.set_defaults(minutes=None, symbols=False)
    summary = "take in changed files of a corpus; held-out pairs stay held out"
    update = add_command(subcommands, "update", run_update, summary, "letters")
    update.add_argument("name", metavar="NAME", help="name of a corpus in corpora/")
    summary = "print files, checksums, terms and disk space of a recipe's corpus; downloads nothing"
    plan = add_command(subcommands, "plan", run_plan, summary, "wmt14-en-de-base")
    plan.add_argument("recipe", metavar="RECIPE", nargs="?", help="name of a recipe (default: the present params.yaml)")
    plan.add_argument("--json", action="store_true", help="print JSON")


def run_new(arguments: argparse.Namespace) -> int:
    """Write a catalogue entry for the files, and params.yaml from the recipe own-data, or to train a model further."""
    from transformer_core import recipes
    from transformer_core.config import PARAMS_FILE, load_params
    from transformer_core.corpus.sources.catalogue import find_entry, load_entry
    from transformer_core.corpus.sources.local_corpus import check_name, described, languages_without_spaces, new_entry, training_pairs
    from transformer_core.evaluation.bleu import bleu_metric, tokenizer_of

    for files in filter(None, (arguments.files, arguments.valid, arguments.test)):
        if len(files) > 2:
            raise configuration_error(f"{files[2]}: a third file", "Name one file of each language, or one of both.")
    sides = {name: getattr(arguments, name) for name in ("source", "target", "source_language", "target_language")}
    splits = {name: getattr(arguments, f"{name}_lines") or getattr(arguments, name) for name in ("valid", "test")}
    if arguments.files:
        check_name(arguments.name, may_exist=arguments.force)
    elif given := [name for name, value in {**sides, **splits}.items() if value]:
        raise configuration_error(f"--{given[0].replace('_', '-')}: there is no FILE that it is for", "Name files, or leave it out.")
    if not arguments.force:
        recipes.check_unedited(PARAMS_FILE)
    if arguments.start:  # Before the entry is written.
        from transformer_core.models.directory import CONFIG, read_config

        read_config(arguments.start / CONFIG)
    if arguments.mix:
        find_entry(arguments.mix, "--mix")
    if arguments.files:
        if (first := str(arguments.files[0])).startswith("hf:"):
            if len(arguments.files) > 1:
                raise configuration_error(f"{arguments.files[1]}: a file beside the dataset {first}", "Name the dataset alone.")
            arguments.files = _taken(first.removeprefix("hf:"), arguments.name, sides, splits)
        replaces = Path("corpora", f"{arguments.name}.yaml").exists()
        entry = new_entry(arguments.name, *arguments.files, symbols=arguments.symbols, **sides | splits)
    else:
        entry = find_entry(arguments.name, "data tune").path
    loaded = load_entry(entry)
    unspaced = languages_without_spaces(entry)
    if arguments.start:
        from transformer_core.tuning import settings  # Here, because a model's config needs torch.

        try:
            written = settings(entry, arguments.start, arguments.mix, count_words=not unspaced)
        except UserError:
            if arguments.files and not replaces:  # An entry that nothing trains on would block the next try.
                entry.unlink()
            raise
    else:
        written = recipes.for_entry(entry)
    recipes.write(written, PARAMS_FILE, force=arguments.force)
    if arguments.minutes:
        from transformer_core.training.throughput import updates_within
        from transformer_core.yaml_io import editable_yaml, yaml_text

        updates = updates_within(arguments.minutes, params := load_params())
        if not arguments.start and updates < params.train.warmup:
            recipes.write(written := recipes.for_entry(entry, short_training=True), PARAMS_FILE, force=True)
            updates = updates_within(arguments.minutes, load_params())
        document = editable_yaml(written, "params")
        document["train"].update(recipes.spaced(updates))
        recipes.write(yaml_text(document), PARAMS_FILE, force=True)
    trained = load_params().download
    for number, pair in enumerate(islice(training_pairs(entry), 3), start=1):
        print(f"{number}: {' | '.join(for_terminal(textwrap.shorten(side, 60)) for side in pair)}")
    for line in described(entry):
        print(line)
    try:
        bleu_metric([], tokenizer_of(trained.target))
    except UserError as error:  # Stage evaluate would end with it, after the training.
        print(error, file=sys.stderr)
    rules = f" {' and '.join(unspaced)}: no spaces between words, so clean.max_words is null." if unspaced else ""
    named = [file.path for sources in loaded.sources.values() for part in sources for file in (part.files or {}).values()]
    outside = next((path for path in named if Path(path).is_absolute()), None)
    moved = f" Another machine needs {outside} at the same place: copy it into this folder to name it from here." if outside else ""
    pairs = f"{f'{loaded.size.pairs:,} ' if loaded.size else ''}pairs of {trained.source} and {trained.target}"
    print(f"{entry} names {pairs}; {PARAMS_FILE} trains on them.{rules}{moved} Next: {dvc_repro()}")
    return 0


def _taken(dataset: str, name: str, sides: dict[str, Any], splits: dict[str, Any]) -> list[Path]:
    """Return the training file of a dataset of Hugging Face's hub, and take its languages and splits where none are given."""
    from transformer_core.corpus.sources.hub import saved_splits

    saved = saved_splits(dataset, Path("data/hub", name))
    splits.update({split: given or saved.get(split) for split, given in splits.items()})
    if languages := re.fullmatch(r".*/([a-z]{2,3})-([a-z]{2,3})", dataset):
        sides["source_language"] = sides["source_language"] or languages[1]
        sides["target_language"] = sides["target_language"] or languages[2]
    return saved["train"]


def run_update(arguments: argparse.Namespace) -> int:
    """Bring a catalogue entry up to date with its files."""
    from transformer_core.corpus.sources.local_corpus import update_entry

    before, now = update_entry(arguments.name)
    pairs = f"{now.pairs:,} pairs{f' ({before.pairs:,} before)' if before else ''}" if now else "new sums"
    print(f"corpora/{arguments.name}.yaml: {pairs}. Next: {dvc_repro()}")
    return 0


def run_plan(arguments: argparse.Namespace) -> int:
    from transformer_core import recipes
    from transformer_core.config import load_params
    from transformer_core.corpus.sources.catalogue import find_entry
    from transformer_core.corpus.sources.local_corpus import described
    from transformer_core.corpus.sources.readers import located
    from transformer_core.data_plan import plan_data

    plan = plan_data(load_params() if arguments.recipe is None else recipes.load(arguments.recipe))
    if arguments.json:
        print(json.dumps(asdict(plan), indent=2, ensure_ascii=False))
        return 0
    print(f"{plan.corpus}, {' to '.join(plan.direction)}: {f'about {plan.pairs:,} training pairs' if plan.pairs else 'size not known'}")
    print(textwrap.fill(f"Terms: {plan.licence or 'no licence is stated'}. {plan.note}", width=120), end="\n\n")
    for file in plan.files:
        print(f"{file.split:<5}  {file.source}\n       {'fetched' if file.fetched else 'local'}, sum: {file.checked_by}")
    if plan.disk:
        print("\nDisk, about:")
        for name, size in plan.disk.items():
            print(f"{in_bytes(size):>9}  {name}")
        print("DVC's cache may hold a second copy of data and models.")
    found = find_entry(plan.corpus)
    if len(found.entry.languages) == 2 and all(file.fetched or located(found.path.parent, file.source).is_file() for file in plan.files):
        print("", *described(found.path), sep="\n")
    return 0
