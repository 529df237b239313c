"""The joint subword vocabulary (paper 5.1: byte-pair encoding shared by source and target), with SentencePiece."""

import hashlib
import io
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, takewhile
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from transformer_core.config import PARAMS_FILE, Bpe
from transformer_core.corpus.text import has_symbols, normalise
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import new_file

PAD, UNK, BOS, EOS = range(4)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")

TokenIds = Sequence[int] | NDArray[np.integer[Any]]

# SentencePiece writes spaces as U+2581 and would decode that character as a space.
SPACE_MARK, _PLAIN = "\u2581", "_"
# SentencePiece silently ignores longer lines in training; cleaning limits words, not bytes.
_LONGEST_LINE_BYTES = 1 << 20
_MOST_SYMBOLS = 1 << 20  # A bound that SentencePiece asks for, and then replaces.
# Begins a model file of two sides: the tag of field 200, an extension that SentencePiece skips, which is the target's model.
_TARGET_FIELD, _TARGET_TAG = 200, b"\xc2\x0c"
_QUOTES = dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u301d\u301e\u301f\uff02", '"')
_QUOTES |= dict.fromkeys("\u2018\u2019\u201a\u201b\u2039\u203a\uff07", "'")


@dataclass(frozen=True)
class Subword:
    """A trained subword model: text to token ids and back.

    It has the SentencePiece model, the SHA-256 of its file, and the model that splits target text if it is another one (`two_sided`); both
    have the same token ids.
    """

    processor: sentencepiece.SentencePieceProcessor
    hash: str
    target: sentencepiece.SentencePieceProcessor | None = None

    @classmethod
    def load(cls, path: Path, remedy: str = "Make it with: dvc repro bpe") -> "Subword":
        """Read a model file. Raises `UserError` (65) with this remedy: no such file, or not a SentencePiece model with our special ids."""
        try:
            model = path.read_bytes()
        except FileNotFoundError:
            raise UserError(f"{path}: no such file", remedy) from None
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            target = sentencepiece.SentencePieceProcessor(model_proto=_target_of(model)) if model.startswith(_TARGET_TAG) else None
            subword = cls(processor, hashlib.sha256(model).hexdigest(), target)
            processor.decode([*range(len(subword.pieces))])  # All are valid UTF-8.
            if (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()) != (PAD, UNK, BOS, EOS):
                raise ValueError
        except (RuntimeError, ValueError):
            raise UserError(f"{path}: not a SentencePiece model in UTF-8 with pad, unk, bos, eos at 0, 1, 2, 3", remedy) from None
        return subword

    @cached_property
    def vocab_size(self) -> int:
        """Number of token ids, the special ones included."""
        return int(self.processor.get_piece_size()) if self.target is None else int(self._model.trainer_spec.vocab_size)

    @cached_property
    def of_target(self) -> "Subword":
        """The vocabulary as it reads text of the target language."""
        return self if self.target is None else replace(self, processor=self.target)

    @cached_property
    def pieces(self) -> list[str]:
        """The piece of each token id."""
        return [str(self.processor.id_to_piece(token)) for token in range(self.vocab_size)]

    @cached_property
    def begins_word(self) -> list[bool]:
        """Whether each token id begins a word; eos is a word of its own."""
        return begin_words(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text and eos; the text is normalised first, as training text was."""
        return self._encoded([_prepared(text)])[0]

    def encode_clean(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of normalised texts, each with eos."""
        return self._encoded([text.replace(SPACE_MARK, _PLAIN) for text in texts])

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        """Return token ids with eos. Of two sides, a piece that one of them alone knows is found by its text, as Marian does."""
        if self.target is None:
            encoded: list[list[int]] = self.processor.encode(texts, add_eos=True, num_threads=1)
            return encoded
        return [[*(self.ids.get(piece, UNK) for piece in pieces), EOS] for pieces in self.processor.encode(texts, out_type=str)]

    @cached_property
    def ids(self) -> dict[str, int]:
        return {piece: token for token, piece in enumerate(self.pieces)}

    def unknown_characters(self, text: str) -> set[str]:
        """Return the characters of a text that are read as the unknown token, which no output contains."""
        prepared = _prepared(text)
        tokens = zip(self._encoded([prepared])[0][:-1], self.processor.encode(prepared, out_type=str), strict=True)
        return {character for token, piece in tokens if token == UNK for character in piece}

    @property
    def lowercases(self) -> bool:
        """Whether it lowercases every text (`bpe.lowercase`)."""
        return bool(self.processor.normalize("A") == self.processor.normalize("a"))

    @property
    def forms(self) -> list[str]:
        """The forms of characters that it replaces (`bpe.normalise`); nfkc includes width."""
        probes = {"width": "\uff11", "quotes": "\u201c", "nfkc": "\ufb01"}
        found = [form for form, probe in probes.items() if self.processor.normalize(probe).strip(SPACE_MARK) != probe]
        return [form for form in found if form != "width" or "nfkc" not in found]

    @property
    def has_bytes(self) -> bool:
        """Whether it has a token for each byte (`bpe.byte_fallback`), from which it reads and writes characters without a token."""
        return bool(self.vocab_size > EOS + 1 and self.processor.is_byte(EOS + 1))

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The texts that are always one token."""
        return frozenset(piece.piece for piece in self._model.pieces if piece.type == piece.USER_DEFINED)

    @property
    def is_bpe(self) -> bool:
        """Whether this is a BPE model of one side."""
        return self.target is None and bool(self._model.trainer_spec.model_type == self._model.trainer_spec.BPE)

    @property
    def _model(self) -> Any:
        return _proto(self.processor.serialized_model_proto())

    @cached_property
    def merge_costs(self) -> dict[str, float]:
        """The cost of merging to each piece, lowest first; single characters have one too, special tokens and a user's symbols none."""
        return {piece.piece: -piece.score for piece in self._model.pieces if piece.type == piece.NORMAL}

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids up to the first eos, in one line without control characters; pad and bos are skipped."""
        tokens = takewhile(lambda token: token != EOS, map(int, ids))
        return printable(self.processor.decode([token for token in tokens if token not in (PAD, BOS)]))


def printable(text: str) -> str:
    """Return what a vocabulary wrote as one line without control characters, which a piece or bytes of byte fallback may give."""
    return text if text.isprintable() else normalise(text)


def padded(rows: Sequence[TokenIds]) -> NDArray[np.int64]:
    """Return token ids as rows, padded on the right to the longest: (B, T)."""
    lengths = np.array([*map(len, rows)])
    filled = np.full((len(rows), int(lengths.max())), PAD, dtype=np.int64)
    filled[np.arange(filled.shape[1]) < lengths[:, None]] = np.concatenate(rows)
    return filled


def sampled(lines: Iterable[str], total: int, wanted: int, seed: int) -> Iterator[str]:
    """Sample `wanted` of the `total` lines uniformly, in order, or all if there are not more; a seed draws the same lines of both sides."""
    random, drawn = Random(seed), 0
    for number, line in enumerate(lines):
        # Algorithm S in Knuth, The Art of Computer Programming, volume 2, 3.4.2.
        if random.random() * (total - number) < wanted - drawn:
            drawn += 1
            yield line


def begin_words(pieces: Sequence[str]) -> list[bool]:
    """Return whether each of all pieces of a vocabulary, by id, begins a word; eos is a word of its own."""
    return [piece.startswith(SPACE_MARK) or token == EOS for token, piece in enumerate(pieces)]


def train_subword(lines: Iterable[str], path: Path, settings: Bpe, **options: Any) -> None:
    """Learn a subword model from lines of all languages and write it to `path`; `options` of SentencePiece come before `settings`.

    The bytes depend on the lines, their order and the settings only: the model contains no file name, and the number of threads, which
    would change it, is fixed. Raises `UserError`: 65 if there is no text; 78 if the corpus does not allow the vocabulary size, with the
    bound.
    """
    model = io.BytesIO()
    fallback: dict[str, Any] = {"byte_fallback": True} if settings.byte_fallback else {}  # Also false would be written to the file.
    with TemporaryDirectory() as folder:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=filter(None, map(_prepared, lines)),
                model_writer=model,
                **{"model_type": settings.type, "vocab_size": settings.vocab_size} | options,
                character_coverage=settings.character_coverage,
                max_sentence_length=_LONGEST_LINE_BYTES,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                user_defined_symbols=settings.user_symbols,
                num_threads=1,
                minloglevel=2,
                **fallback,
                **_normalisation(settings, Path(folder)),
            )
        except RuntimeError as error:
            raise _wrong_vocabulary(error, settings) from error
    made = model.getvalue()
    if settings.lowercase or settings.normalise:
        proto = _proto(made)
        proto.normalizer_spec.ClearField("normalization_rule_tsv")  # The name of a temporary file; the table is in the model.
        made = proto.SerializeToString(deterministic=True)
    with new_file(path) as temporary:
        temporary.write_bytes(made)


def train_symbols(sides: Iterable[Iterable[str]], path: Path, settings: Bpe) -> None:
    """Write a vocabulary of the symbols of each side to `path`: of its strings between spaces if it `has_symbols`, or its characters.

    Its size follows from the lines. Each side has a model of its own, so that CH may be a phoneme, and two letters of a word in capitals.
    Raises `UserError` (65): a side has no text.
    """
    models = []
    for lines in map(list, sides):
        kind = "word" if has_symbols(lines) else "char"
        train_subword(lines, path, settings, model_type=kind, vocab_size=_MOST_SYMBOLS, use_all_vocab=True)
        models.append(path.read_bytes())
    pieces = dict.fromkeys(piece.piece for model in models for piece in _proto(model).pieces[len(SPECIAL) :])
    path.write_bytes(two_sided(models[0], models[-1], [*pieces]))


def _replacements(settings: Bpe) -> dict[str, str]:
    """Return what a vocabulary with these settings reads in place of a character, or of a half-width kana and its mark.

    SentencePiece's own rule nmt_nfkc_cf would also write "ss" for "\u00df", which a German reference has.
    """
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    found = {text: text for text in chain(characters, (letter + mark for letter in characters[0xFF66:0xFF9E] for mark in "\uff9e\uff9f"))}
    for text in found if {"width", "nfkc"} & {*settings.normalise} else ():
        wide = text.isalnum() and unicodedata.east_asian_width(text[0]) in ("F", "H")
        if (wide or "nfkc" in settings.normalise) and " " not in (form := unicodedata.normalize("NFKC", text)):
            found[text] = form
    if "quotes" in settings.normalise:
        found |= _QUOTES
    if settings.lowercase:
        found = {text: form.lower() for text, form in found.items()}
    return {text: form for text, form in found.items() if text != form}


def two_sided(source: bytes, target: bytes, pieces: Sequence[str]) -> bytes:
    """Return one model file for two SentencePiece models with common token ids, as Marian's: it splits text as each of them does.

    No side has to have all `pieces`, those of the token ids from `EOS` + 1 on. If both are the same, with these ids, that is the file.
    Raises `RuntimeError`: a model is damaged; `ValueError`: a BPE model lacks pieces, which would change its merges.
    """
    own = sentencepiece.SentencePieceProcessor(model_proto=source)
    if source == target and [*map(own.id_to_piece, range(own.get_piece_size()))] == [*SPECIAL, *pieces]:
        return source
    body = _with_ids(target, pieces)
    size, length = len(body), b""
    while size > 0x7F:
        size, length = size >> 7, length + bytes([size & 0x7F | 0x80])
    return _TARGET_TAG + length + bytes([size]) + body + _with_ids(source, pieces)


def _with_ids(model: bytes, pieces: Sequence[str]) -> bytes:
    """Return a model in which token ids have these pieces. Its other ones have greater ids; the pieces that it lacks split no text."""
    proto = _proto(sentencepiece.SentencePieceProcessor(model_proto=model).serialized_model_proto())
    trainer = proto.trainer_spec
    own = {piece.piece: (piece.score, piece.type) for piece in proto.pieces if piece.piece not in SPECIAL}
    if trainer.model_type == trainer.BPE and not own.keys() >= {*pieces}:
        raise ValueError("a BPE model that lacks pieces of the vocabulary")
    unused, control, unknown, user = (getattr(proto.SentencePiece, kind) for kind in ("UNUSED", "CONTROL", "UNKNOWN", "USER_DEFINED"))
    kinds = dict.fromkeys(SPECIAL, (0.0, control)) | {"<unk>": (0.0, unknown)}
    kinds |= {piece: own.pop(piece, (0.0, user if is_tag(piece) else unused)) for piece in pieces}
    del proto.pieces[:]
    for piece, (score, kind) in (kinds | own).items():
        proto.pieces.add(piece=piece, score=score, type=kind)
    trainer.vocab_size = len(kinds)
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = PAD, UNK, BOS, EOS
    trainer.pad_piece, trainer.unk_piece, trainer.bos_piece, trainer.eos_piece = SPECIAL
    return bytes(proto.SerializeToString(deterministic=True))


def is_tag(piece: str) -> bool:
    """Whether this is the tag by which a Marian model of several languages knows the target, as ">>deu<<" before the text."""
    return piece.startswith(f"{SPACE_MARK}>>") and piece.endswith("<<")


def _target_of(model: bytes) -> bytes:
    from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

    (found,) = (field.data for field in UnknownFieldSet(_proto(model)) if field.field_number == _TARGET_FIELD)
    return bytes(found)


def _normalisation(settings: Bpe, folder: Path) -> dict[str, Any]:
    """Return SentencePiece's options for the forms of characters; a table of the replaced ones is written to `folder`."""
    table = folder / "replacements.tsv"
    if not (settings.lowercase or settings.normalise):
        return {"normalization_rule_name": "identity"}
    rows = ("\t".join(" ".join(f"{ord(part):X}" for part in text) for text in row) + "\n" for row in _replacements(settings).items())
    table.write_text("".join(rows), encoding="ascii")
    return {"normalization_rule_tsv": str(table)}


def _proto(model: bytes) -> Any:
    """Return a model file's message."""
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]  # The class is made when the module is imported.
    proto.ParseFromString(model)
    return proto


def _prepared(text: str) -> str:
    return normalise(text).replace(SPACE_MARK, _PLAIN)


def _wrong_vocabulary(error: RuntimeError, settings: Bpe) -> UserError:
    message = str(error)
    where = f"{PARAMS_FILE}: bpe.vocab_size"
    if most := re.search(r"Vocabulary size too high .*<= (\d+)", message):
        return configuration_error(f"{where}: this corpus allows at most {most[1]}, got {settings.vocab_size}", "Lower it or add text.")
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        fault = f"{where}: the characters of this corpus need at least {least[1]}, got {settings.vocab_size}"
        return configuration_error(fault, "Raise it or lower bpe.character_coverage, at least 0.98.")
    if "!sentences_.empty()" in message:
        return UserError("the training text for the subword model is empty", "data/clean/report.json has the dropped pairs.")
    raise error
