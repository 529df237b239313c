"""What a command refuses: one line on standard error with the place and the remedy, an exit code, and every file as it was."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from transformer_core import recipes
from transformer_core.corpus.text import write_lines

DEEP = "/".join(["folder"] * 200)
LONG, LONGER = " ".join(["the house"] * 3), " ".join(["the house"] * 50_000)
ENGLISH = ["the dog sees", "a cat", "the house"]
TEXTS = {
    "text.en": ENGLISH, f"{DEEP}/text.en": ENGLISH, "text.de": ["der Hund sieht", "eine Katze", "das Haus"], "two.de": ["d", "d"],
    "empty": [], "blank": ["", " "],
    "long": ["d", LONG], "longer": ["d", LONGER], "gold.tree": ["(S (NN dog))", "(S", ""],
}  # fmt: skip
ATTENTION, SCORE = "attention --out o --model transformer", "score --model transformer"
TRANSLATE, NEW = "translate --model transformer", "data new --force mine"
TUNE = "data tune --force mine text.en text.de --from"
COMPARE, EXPORT = "compare text.de text.de --ref", "export --format ctranslate2 --model transformer"
REFUSALS = [
    ("--wrong translate --model m", 78, r"^transformer-core: .* --wrong\. See: transformer-core --help$"),
    (f"{NEW} text.en text.de --wrong", 78, r"^transformer-core: .* --wrong\. See: transformer-core --help$"),
    ("translate", 78, "required: --model"),
    (f"{TRANSLATE} --beam 0", 78, "--beam: .* from 1 to 100, got '0'"),
    (f"{TRANSLATE} --device cuda:77 text.en", 78, "--device: cuda:77 requested"),
    (f"{TRANSLATE} --engine torch --precision int8 text.en", 78, "^precision int8: the engine torch has none"),
    (f"{TRANSLATE} --out . text.en", 78, r"--out: \. is a directory\. Name a file"),
    (f"{TRANSLATE} --out text.en text.en", 78, r"--out: text\.en is an input file .*\. Name another file"),
    (f"{TRANSLATE} --out linked --prefixes text.en two.de", 78, "--out: linked is an input file"),
    (f"{TRANSLATE} --out o --prefixes two.de text.en", 65, r"text\.en: \d+ lines, but two\.de has \d+"),
    (f"{TRANSLATE} --glossary two.de text.en", 65, r"two\.de:1: not a term, a tab and its translation\. Correct the line"),
    (f"{TRANSLATE} --glossary empty text.en", 65, r"empty: no terms\. Write a line"),
    (f"{TRANSLATE} --glossary two.de --prefixes two.de text.en", 78, "--glossary: not with --prefixes"),
    (f"{TRANSLATE} nowhere", 65, "nowhere: no such file"),
    (f"{TRANSLATE} folder", 65, r"folder: is a folder\. Name a file"),
    ("translate --model nowhere text.en", 65, r"nowhere/config\.json: no such file"),
    ("translate --model mixed --engine torch text.en", 65, r"mixed/spm\.model: not .* SentencePiece"),
    ("translate --model partial --engine torch text.en", 65, r"partial/spm\.model: no such file\. A model directory holds"),
    (f"{EXPORT} --out .", 78, r"--out: is the working directory.*\. Name a new folder"),
    *((f"{EXPORT} --out {there}", 78, f"{there}: exists and is no exported model") for there in ("transformer", "partial", "text.en")),
    *((f"{EXPORT} --out o --model {no}", 78, f"{no}: CTranslate2 has no {no} model") for no in ("recurrent", "convolutional")),
    (f"{ATTENTION} --layers 3 a", 78, "--layers: 3 requested, but the model has 2"),
    (f"{ATTENTION} --layers 1, a", 78, "--layers: .* above 0, got ''"),
    (f"{ATTENTION} ' '", 78, "SOURCE_SENTENCE: no text"),
    (f"{ATTENTION} th\udcff", 78, "SOURCE_SENTENCE: must be valid UTF-8"),
    (f"{ATTENTION} --model recurrent --kind encoder a", 78, r"--kind: .* encoder .*\. It has: cross"),
    (f"{ATTENTION} --model convolutional a", 78, "no attention weights"),
    (f"{ATTENTION} --model learned '{LONG}'", 65, r"SOURCE_SENTENCE: \d+ tokens, .* 6 positions\. Split"),
    (f"{ATTENTION} --model learned a '{LONG}'", 65, r"TARGET_SENTENCE: \d+ tokens"),
    (f"{ATTENTION} --out text.en a b", 78, r"--out: text\.en cannot be written to \(File exists\)"),
    (f"{SCORE} text.en two.de", 65, r"text\.en: 3 lines, but two\.de has 2"),
    (f"{SCORE} text.en bad", 65, r"bad:2: not valid UTF-8 \(byte 0xff at column 3\)\. Re-encode"),
    (f"{SCORE} --device gpu text.en text.de", 78, "--device: must be cpu, cuda or cuda:N, got 'gpu'"),
    (f"{SCORE} --model learned long two.de", 65, r"long:2: \d+ tokens, .* 6 positions\. Split"),
    (f"{SCORE} longer two.de", 65, r"longer:2: \d{3},\d{3} tokens, at most 1,024"),  # The model would take 50 GB.
    (f"{SCORE} --max-input 4 two.de long", 65, r"long:2: \d+ tokens, at most 4"),
    (f"{SCORE} blank blank", 65, "blank: holds no sentence"),
    (f"{COMPARE} two.de", 65, r"text\.de: 3 lines, but two\.de has 2"),
    (f"{COMPARE} text.de --source two.de", 65, r"two\.de: 2 lines, but text\.de has 3"),
    (f"{COMPARE} gold.tree", 65, r"gold\.tree:2: not one tree in brackets"),
    ("compare empty empty --ref empty", 65, "empty: holds no line"),
    ("info --preset base --vocab-size 16", 78, "--vocab-size: .* above 16, got '16'"),
    ("info --preset table3/E-learned --length 1025", 78, "--length: the model has 1024 positions.* 1025 tokens"),
    ("estimate --preset base --rate 0", 78, "--rate: .* above 0, got '0'"),
    ("estimate --length 1000", 78, "--length: a micro-batch holds 640 tokens.* 1000"),
    ("recipe tatoeba", 78, r"params\.yaml: differs from every recipe and would be lost\. Keep a copy, then repeat with --force"),
    (f"{NEW} text.en text.de text.en", 78, "text.en: a third file"),
    ("data new --force ../mine hf:own/books", 78, r"'\.\./mine': not a name for a corpus"),
    ("data tune --force taken --from transformer --test-lines 9", 78, r"--test: .* no FILE .*\. Name files, or leave it out"),
    (f"{NEW} hf:own/books text.de", 78, "text.de: a file beside the dataset hf:own/books"),
    ("data new mine text.en text.de", 78, r"params\.yaml: differs from every recipe"),
    ("data new taken text.en text.de", 78, r"corpora/taken\.yaml: .* already\. .*transformer-core data update taken"),
    ("data new multi30k text.en text.de", 78, r"^multi30k: .* comes with the package\. Choose another name\.$"),
    ("data update multi30k", 78, r"corpora/multi30k\.yaml: no such file\. Your own corpora: taken, web"),
    ("data update web", 78, r"web\.yaml: names no local file with `files`"),
    (f"{TUNE} nowhere", 65, r"nowhere/config\.json: no such file\. A model directory holds"),
    (f"{TUNE} transformer --mix wbe", 78, "--mix: no corpus is called 'wbe'. Did you mean web"),
    (f"{NEW} text.en text.de --source-language 'en us'", 78, r"corpora/mine\.yaml: languages\.0: must be a language: .* got 'en us'"),
    (f"{NEW} text.en text.de --target-language tree", 78, "mine: tree is not a language of text"),
    (f"{NEW} {DEEP}/text.en text.de", 78, r"corpora/mine\.yaml: "),
]


@pytest.fixture
def before(call: Call) -> dict[Path, bytes | None]:  # noqa: ARG001  # In the folder that it moves to.
    """Files for the commands, and what is in them."""
    for name in ("partial", "mixed", "corpora", DEEP):
        Path(name).mkdir(parents=True)
    for name, lines in TEXTS.items():
        write_lines(Path(name), lines)
    Path("bad").write_bytes("das\nd\u00f6".encode() + b"\xff\nHaus\n")
    Path("linked").symlink_to("text.en")
    for folder in ("partial", "mixed"):
        for name in ("config.json", "model.safetensors"):
            Path(folder, name).symlink_to(Path("transformer", name).resolve())
    Path("mixed/spm.model").symlink_to("../text.en")
    Path("corpora/taken.yaml").touch()
    splits = "{train: [{sacrebleu: wmt12}], valid: [{sacrebleu: wmt13}], test: [{sacrebleu: wmt14}]}"
    write_lines(Path("corpora/web.yaml"), ["name: web", "languages: [en, de]", "licence: CC0", "note: ''", f"splits: {splits}"])
    edited = re.sub("tokens_per_microbatch: .*", "tokens_per_microbatch: 640", recipes.read("tatoeba"))
    write_lines(Path("params.yaml"), edited.replace("corpus: tatoeba", "corpus: web").split("\n"))
    return contents()


def contents() -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


@pytest.mark.parametrize(("arguments", "code", "words"), REFUSALS)
def test_a_refusal_is_one_line_and_no_change(arguments: str, code: int, words: str, call: Call, before: dict[Path, bytes | None]) -> None:
    found, line = call(*shlex.split(arguments)).refusal()
    assert re.search(words, line), line
    assert found == code
    assert contents() == before
