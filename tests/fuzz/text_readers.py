"""Readers of text: settings, catalogue, corpora and archives, translations, trees, records of stages."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flows.dvc.commands import failure
from flows.dvc.settings import settings_of_run
from flows.process.paths import MANIFEST, RAW, SCORES, TRAINING_METRICS
from flows.process.runner import exit_file
from flows.record.documents import CLEANING, DECODING, read_output, read_scores
from flows.record.lineage import describe_training
from flows.record.registry import Decision, card
from flows.record.run import RunRecord, read_record
from flows.record.summary import Outcome, summarize
from flows.stages.evaluate import for_dvc
from tests.corpus import test_forms as forms
from tests.corpus.corpora import archive_bytes, files_source, reader_of
from tests.corpus.test_formats import tmx
from tests.evaluation.test_report import a_report, page_with
from tests.flows.publishing import FIGURES
from tests.flows.publishing import MANIFEST as RAW_MANIFEST
from tests.fuzz.fuzzer import Reader
from transformer_core import recipes
from transformer_core.config import load_params, resolve
from transformer_core.corpus.cleaning.cleaner import clean_corpus
from transformer_core.corpus.sources.archives import unpack
from transformer_core.corpus.sources.catalogue import PACKAGED_ENTRIES, FoundEntry, Source, check_direction, load_entry
from transformer_core.corpus.sources.fetching import Fetcher, locked_sums
from transformer_core.corpus.sources.formats import Side, file_lines, file_pairs
from transformer_core.corpus.sources.local_corpus import new_entry, update_entry
from transformer_core.corpus.sources.raw import write_raw
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.corpus.sources.translated import Teachers, TranslatedSource
from transformer_core.corpus.text import read_pairs
from transformer_core.evaluation.metrics import SCORING
from transformer_core.evaluation.scoring import read_aligned, scoring_of
from transformer_core.files import new_directory, read_json, write_json
from transformer_core.parsing.parse_scores import score
from transformer_core.parsing.trees import leaves, read_tree, repaired
from transformer_core.tasks import TREES, task_of

_ENGLISH = [f"a house number {number} & more" for number in range(12)]
_GERMAN = [f"ein süßes Haus Nummer {number}, „ja“" for number in range(12)]
_TEXT = "".join(f"{line}\n" for line in _GERMAN).encode()
_TABLE = "".join(f"{en}\t{de}\n" for en, de in zip(_ENGLISH, _GERMAN, strict=True)).encode()
_TMX = tmx(list(zip(_ENGLISH, _GERMAN, strict=True)))
_CSV = forms.table(forms.WITH_NAMES)
_TREES = (
    b"( (S (NP-SBJ (PRP It))\n   (VP (VBZ is) (NP (-NONE- *T*-1)))) )\n\n(S (NP (DT The) (NN dog)) (VP (VBZ barks)))\n(TOP (X (Y y)))\n"
)
_SYMBOLS = b"(S (NP XX XX )NP (VP XX )VP XX )S\n(S (VP XX )S )NP XX\n\n"
_OWN = b"""\
name: own
languages: [en, de]
licence: null
note: "a note"
size: {pairs: 12, text_bytes: 900, download_bytes: 0}
splits:
  train:
    - files:
        en: {path: ../own.en}
        de: {path: ../own.de, column: 1}
    - files: {en: {path: ../own.en}, de: {path: ../own.de}}
      weight: 0.5
    - translated: {corpus: own, model: ../teacher, side: source, beam: 5}
      tag: <bt>
  valid:
    - files: {en: {path: ../own.en}, de: {path: ../own.de}}
  test:
    - files: {en: {path: ../own.en}, de: {path: ../own.de}}
"""
_OF_TREES = b"name: own\nlanguages: [en, tree]\nlicence: free\nnote: ''\nsplits:\n" + b"".join(
    b"  %s: [{trees: '../*.mrg'}]\n" % split for split in (b"train", b"valid", b"test")
)

# Lines of the example differ too little for the rule.
_CLEAN = recipes.load("own-data").clean.model_copy(update={"drop_overlap": False})


def _read_params(data: bytes, folder: Path) -> None:
    """Write a recipe over a params.yaml that a person has edited; read that, with changed settings too."""
    file = folder / "params.yaml"
    file.write_bytes(data)
    recipes.write(recipes.read("tatoeba"), file, force=True)
    load_params()
    file.write_bytes(data)
    resolve(load_params().model)
    settings_of_run(None, {"train.updates": 5_000})


def _read_entry(data: bytes, folder: Path) -> None:
    """Read an own entry, and its local files, as stages local_files and download do; then update it."""
    path = folder / "corpora/own.yaml"
    path.parent.mkdir()
    path.write_bytes(data)
    (folder / "teacher").mkdir()
    for name, content in (("own.en", _TEXT), ("own.de", _TABLE), ("own.mrg", _TREES), ("teacher/model.safetensors", b"weights")):
        (folder / name).write_bytes(content)
    entry = load_entry(path)
    direction = entry.languages[0], entry.languages[-1]
    found = FoundEntry(entry, path)
    check_direction(found, *direction)
    reader = SourceReader(found, *direction, Fetcher("own", folder / "downloads"))
    for sources in entry.sources.values():
        for source in sources:
            if {"files", "trees"} & set(source.kinds):
                reader.local_files(source)
                for _ in reader.open(source).pairs:
                    pass
            if source.translated:
                for _ in TranslatedSource(source.translated, reader).open(Teachers(lambda *given: given[-1], {})).pairs:
                    pass
    if entry.splits.train[0].files:
        update_entry("own")
        load_entry(path)


def _file_read(name: str, data: bytes, folder: Path, column: str | None = None) -> None:
    (folder / name).write_bytes(data)
    for _ in file_lines(Side(folder / name, "de", column)):
        pass


def _packed(suffix: str, data: bytes, folder: Path) -> None:
    """A member of an archive, read as data/raw reads it; nothing may appear outside the folder for it."""
    archive, inside = folder / f"corpus{suffix}", folder / "inside/unpacked"
    archive.write_bytes(data)
    inside.mkdir(parents=True)
    try:
        members = unpack(archive, ["*a.en", "*a.de*"], inside)
        for _ in file_pairs(*map(Side, members)):
            pass
    finally:
        outside = [path for path in folder.rglob("*") if inside not in (path, *path.parents) and path not in (archive, inside.parent)]
        assert not outside, outside
        assert not any(path.is_symlink() for path in inside.iterdir())


_RECIPES = ("tatoeba", "own-data", "tatoeba-convolutional", "table3/big")
_MULTI30K = PACKAGED_ENTRIES / "multi30k.yaml"
_MEMBERS = [("un/a.en", _TEXT), ("un/a.de.gz", gzip.compress(_TEXT, mtime=0)), ("../../un/b.de", b"no")]


def _own_corpus(data: bytes, folder: Path) -> None:
    """`transformer-core data new`, then stages download and clean: a refusal leaves no file that the next stage takes for whole."""
    (folder / "mine.tsv").write_bytes(data)
    try:
        path = new_entry("mine", folder / "mine.tsv", folder / "mine.tsv", source_language="en", target_language="de")
    finally:
        assert (folder / "corpora/mine.yaml").exists() or not list(folder.glob("corpora/*"))
    _download_and_clean(SourceReader(FoundEntry(load_entry(path), path), "en", "de", Fetcher("mine", folder / "downloads")), folder)
    manifest = read_json(folder / MANIFEST)
    for split, record in manifest["splits"].items():
        pairs = list(read_pairs(folder / RAW / f"{split}.en", folder / RAW / f"{split}.de"))
        assert len(pairs) == record["pairs"]


def _download_and_clean(reader: SourceReader, folder: Path) -> None:
    with new_directory(folder / RAW) as raw:
        write_raw(reader, raw)
    with new_directory(folder / "data/clean") as clean:
        clean_corpus(folder / RAW, clean, "en", "de", _CLEAN, workers=1)


def _corpus_of_any_bytes(data: bytes, folder: Path) -> None:
    """A text of any bytes through stages download and clean."""
    (folder / "t.en").write_bytes(data)
    (folder / "t.de").write_bytes(b"ein guter und wahrer Satz\n" * (data.count(b"\n") + (not data.endswith(b"\n"))))
    _download_and_clean(reader_of(folder, files_source("t")), folder)


def _read_trees(data: bytes, folder: Path) -> None:
    (folder / "bank.mrg").write_bytes(data)
    source = Source(trees="*.mrg")
    for pair in reader_of(folder, source, target=TREES).open(source).pairs:
        read_tree(pair.target.decode())


def _repair_trees(data: bytes, folder: Path) -> None:
    """A parser's output of any text becomes a tree over all words, with a score."""
    (folder / "test.hyp").write_bytes(data)
    (outputs,) = read_aligned(folder / "test.hyp")
    gold = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"
    score(outputs, [gold] * len(outputs))
    for output in outputs:
        assert leaves(repaired(output, leaves(read_tree(gold)))[0]) == leaves(read_tree(gold))


def _state(path: Path, read: Callable[[Path], object], data: bytes, folder: Path) -> None:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    read(folder)


_RECORD = {
    "id": "r", "status": "FINISHED", "start_ms": 1_700_000_000_000, "end_ms": None, "parameters": {"train.warmup": "400"},
    "tags": {"corpus": "t"},
    "metrics": {"bleu": {"value": 3.2, "step": 0}}, "artifacts": {"report.html": "8d"},
}  # fmt: skip


def _read_record(_: Path) -> None:
    record = read_record("r")
    assert record is not None
    record.measure(100, {"train/loss": 3.2})
    record.end()
    assert read_record("r") is not None


# Files of one stage that others read (flows/record/documents.py); what these make of them has the file's values in it.
_WITH_ALL_KEYS = {"origin": [{"split": "train", "file": "a", "sha256": "0" * 64}], "metrics": ["multi30k-lower"]}
_MANIFESTS = [json.dumps(RAW_MANIFEST | other).encode() for other in ({}, _WITH_ALL_KEYS)]
_SCORES = json.dumps({**FIGURES, "paper_bleu": 39.5, "paper_bleu_signature": "multi-bleu"}).encode()
_FIGURES_OF_TRAINING = {"updates": 9, "epochs": 1, "parameters": 5, "valid_perplexity": 7.5, "minutes": 1.5, "tokens_per_second": 90}
_TRAINING_METRICS = json.dumps(_FIGURES_OF_TRAINING).encode()


def _read_manifest(_: Path) -> None:
    manifest = read_output(MANIFEST)
    describe_training(RunRecord(id="f00d"), recipes.load("tatoeba"))
    card("m@champion", Decision("champion", "the first"), "a training", {**FIGURES, "f1": 9.5}, manifest)
    scoring_of(task_of(manifest["target"]))
    page_with(manifest=manifest)


def _read_scores(_: Path) -> None:
    from flows.scores import main

    assert main([]) in (0, 65, 69, 75, 78)  # It has printed its error; no other code is one.
    summarize({"evaluate": Outcome("evaluate", "ran", 0, 1.0)}, "", "", {})
    card("m@champion", Decision("champion", "the first"), "a training", read_scores(SCORING.task), RAW_MANIFEST)


READERS: dict[str, Reader] = {
    "params": Reader(_read_params, lambda: [recipes.read(name).encode() for name in _RECIPES]),
    "entry": Reader(_read_entry, lambda: [_OWN, _OF_TREES, _MULTI30K.read_bytes().replace(b"name: multi30k", b"name: own")]),
    "own-corpus": Reader(_own_corpus, lambda: [_TABLE]),
    "corpus": Reader(_corpus_of_any_bytes, lambda: [_TEXT]),
    "table": Reader(partial(_file_read, "t.tsv", column="2"), lambda: [_TABLE]),
    "csv": Reader(partial(_file_read, "t.csv", column="text_de"), lambda: [_CSV, _CSV.decode().encode("utf-16")]),
    "json-lines": Reader(partial(_file_read, "t.jsonl"), lambda: [forms.json_lines(forms.NESTED)]),
    "parquet": Reader(partial(_file_read, "t.parquet"), lambda: [forms.PARQUET]),
    "arrow": Reader(partial(_file_read, "t.arrow", column="translation.de"), lambda: [forms.arrow_bytes(forms.NESTED)]),
    "xlsx": Reader(partial(_file_read, "t.xlsx"), lambda: [forms.xlsx(forms.WITH_NAMES)]),
    "tmx": Reader(partial(_file_read, "t.tmx"), lambda: [_TMX]),
    "xliff": Reader(partial(_file_read, "t.xlf"), lambda: [forms.xliff(forms.PAIRS), forms.xliff_2(forms.PAIRS)]),
    "gzip": Reader(partial(_file_read, "t.de.gz"), lambda: [gzip.compress(_TEXT, mtime=0)]),
    "xz": Reader(partial(_file_read, "t.de.xz"), lambda: [lzma.compress(_TEXT)]),
    "bzip2": Reader(partial(_file_read, "t.de"), lambda: [bz2.compress(_TEXT)]),
    "zstd": Reader(partial(_file_read, "t.de"), lambda: [forms.zstd(_TEXT)]),
    "tar": Reader(partial(_packed, ".tar"), lambda: [archive_bytes(_MEMBERS, mode) for mode in ("w", "w:gz", "w:xz")]),
    "zip": Reader(partial(_packed, ".zip"), lambda: [archive_bytes(_MEMBERS, "zip")]),
    "trees": Reader(_read_trees, lambda: [_TREES]),
    "parses": Reader(_repair_trees, lambda: [_SYMBOLS]),
    "manifest": Reader(partial(_state, MANIFEST, _read_manifest), lambda: _MANIFESTS),
    "cleaning-report": Reader(partial(_state, CLEANING, lambda _: page_with(cleaning=read_output(CLEANING))),
                              lambda: [json.dumps(a_report().cleaning).encode()]),
    "training-metrics": Reader(partial(_state, TRAINING_METRICS,
                                       lambda folder: write_json(folder / "metrics.json", for_dvc(FIGURES, a_report(), SCORING))),
                               lambda: [_TRAINING_METRICS]),
    "decoding": Reader(partial(_state, DECODING, lambda _: page_with(decoding=read_output(DECODING))),
                       lambda: [json.dumps(a_report().decoding).encode()]),
    "lock": Reader(partial(_state, Path("own.lock"), lambda folder: locked_sums(folder / "own.lock")),
                   lambda: [b'{"https://a./b": "%s"}' % (b"0" * 64)]),
    "record": Reader(partial(_state, Path(".state/record/r/run.json"), _read_record), lambda: [json.dumps(_RECORD).encode()]),
    "exit": Reader(partial(_state, exit_file("train"), lambda _: failure("train", 255, "ERROR: failed")),
                   lambda: [b'{"code": 65, "message": "data: wrong", "remedy": "Mend it."}']),
    "scores": Reader(partial(_state, SCORES, _read_scores), lambda: [_SCORES]),
}  # fmt: skip
