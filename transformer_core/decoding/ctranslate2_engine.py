"""Translation of token ids by CTranslate2: the same model, but CTranslate2's beam search."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch

from transformer_core.config import CTranslate2Precision
from transformer_core.corpus.tokens.subword import BOS, EOS, PAD, Subword, TokenIds
from transformer_core.decoding.beam import Search, length_penalty
from transformer_core.decoding.ctranslate2_export import export_model, positions_of
from transformer_core.decoding.hypotheses import Finished
from transformer_core.decoding.translator import Done, Hypothesis, check_length, check_shortlist, load_subword
from transformer_core.models.directory import CONFIG, read_config
from transformer_core.presets import TransformerSize

_SHARED = 64  # In the first search, sources of up to this many tokens share one maximum length, so that they can be in the same batch.
_NO_PENALTY = 1e-9  # A length penalty that changes no score in float32. With 0 a search would stop by another rule.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.01  # Seconds between two looks at a result: a sentence alone takes a few milliseconds.


@dataclass(frozen=True)
class CTranslate2Engine:
    """A model in CTranslate2 with its vocabulary.

    Its beam search differs from decoding/beam.py. A sentence is done when K hypotheses have ended, each among the K best of its position,
    even if a live hypothesis could still become the best; without penalty, the best of a position must have ended too. PAD, UNK and BOS
    are forbidden before the softmax, so log P is the probability given that none of them occurs.

    An output that comes to the maximum length is cut off without an end token. In greedy search the end token takes the place of its last
    token, as in ours; its scores stay those of the output that CTranslate2 found.

    CTranslate2 ranks by log P / |Y|^alpha, where |Y| counts the end token. For the penalty `wu` its outputs are ranked here: the penalty
    has no part in which of them it finds, unless more than K end and the worst are dropped.
    """

    translator: Any  # A ctranslate2.Translator.
    subword: Subword
    most_positions: int  # Largest number of tokens on either side.
    # Whether the search is among the subwords on the shortlists of all sentences of a batch (CTranslate2's vocabulary map). A
    # translation then depends on its batch.
    shortlist: bool = False

    device = torch.device("cpu")  # A GPU has PyTorch.

    @classmethod
    def load(cls, directory: Path, threads: int, precision: CTranslate2Precision = "float32", shortlist: bool = False) -> Self:
        """Load a model directory, converted to CTranslate2 in a temporary folder: a base model takes seconds and 260 MB there.

        So many batches are translated in parallel as there are threads, with one each, so results do not depend on this number. Raises
        `UserError`: see `export_model`; exit code 78 also if there is no shortlist and one is asked for.
        """
        import ctranslate2  # type: ignore[import-untyped]

        if shortlist:
            check_shortlist([directory])
        config = read_config(directory / CONFIG)
        subword = load_subword(directory, config)
        with TemporaryDirectory() as exported:
            export_model(directory, Path(exported))
            translator = ctranslate2.Translator(
                exported,
                compute_type=precision,
                inter_threads=threads,
                intra_threads=1,
                max_queued_batches=-1,  # Unlimited: with a full queue a call would block.
            )
        assert isinstance(config.model, TransformerSize)  # Only such a model is exported.
        return cls(translator, subword, positions_of(config.model), shortlist)

    def translate_tokens(self, sources: Sequence[TokenIds], search: Search, batch_tokens: int, done: Done = int) -> list[list[Hypothesis]]:
        """Return what `begin` returns with scores; the call is that of `Translator`."""
        return self.begin(sources, search, batch_tokens, done=done)()

    def begin(
        self, sources: Sequence[TokenIds], search: Search, batch_tokens: int, scored: bool = True, done: Done = int
    ) -> Callable[[], list[list[Hypothesis]]]:
        """Begin to translate in threads of CTranslate2; return the function that waits for the translations of each source, best first.

        Args:
            sources: token ids with an end token; one with no other has a single, empty translation.
            search: settings; a patience of None means 1.
            batch_tokens: largest number of source tokens in a batch.
            scored: whether scores and up to `search.beam` translations are wanted. Otherwise each source has its best translation.
                Greedy search then computes no softmax and gives NaN for scores.
            done: called once, with the number of sources: CTranslate2 tells nothing before the end.

        A call of CTranslate2 has a single maximum length, and a call per length would be slow. So the maximum length is first computed
        from the source length rounded up to a power of two, at least `_SHARED`. Sources with outputs as long as their own maximum length
        are searched again with it, or cut if the search is greedy. Therefore outputs do not depend on the other sources.

        Raises `UserError` (65): a source has more tokens than the model has positions.
        """
        for number, source in enumerate(sources, 1):
            check_length(source, self.most_positions, f"sentence {number}", "CTranslate2")
        exact = {number: self._max_length(len(source), search) for number, source in enumerate(sources) if len(source) > 1}
        shared = {number: self._max_length(max(_SHARED, 1 << (len(sources[number]) - 1).bit_length()), search) for number in exact}
        options = _options(search, batch_tokens, scored)
        running = self._start(sources, shared, options)

        def translations() -> list[list[Hypothesis]]:
            found = {number: _result(output) for number, output in running.items()}
            if not options["return_scores"]:
                ranked = {number: [Finished(self._ids(result.hypotheses[0]), math.nan, math.nan)] for number, result in found.items()}
            else:
                too_far = {
                    number: longest
                    for number, longest in exact.items()
                    if longest < shared[number] and any(len(pieces) >= longest for pieces in found[number].hypotheses)
                }
                found |= {number: _result(output) for number, output in self._start(sources, too_far, options).items()}
                ranked = {number: self._ranked(result, search, search.beam if scored else 1) for number, result in found.items()}
            if search.beam == 1:  # The end token takes the last place of an output that is cut off.
                for number, (best,) in ranked.items():
                    if len(best.tokens) >= exact[number]:
                        ranked[number] = [best._replace(tokens=[*best.tokens[: exact[number] - 1], EOS])]
            done(len(sources))
            outputs = (ranked.get(number, [Finished([], 0.0, 0.0)]) for number in range(len(sources)))
            return [[Hypothesis.of(output, self.subword) for output in best_first] for best_first in outputs]

        return translations

    def _start(self, sources: Sequence[TokenIds], max_lengths: dict[int, int], options: dict[str, Any]) -> dict[int, Any]:
        """Start to translate the sources whose maximum lengths are given, by their indices; return a future of each.

        The longest are started first, so that the last batches are short.
        """
        running: dict[int, Any] = {}
        for longest in sorted(set(max_lengths.values()), reverse=True):
            numbers = [number for number, length in max_lengths.items() if length == longest]
            outputs = self.translator.translate_batch(
                [[self.subword.pieces[token] for token in sources[number][:-1]] for number in numbers],
                asynchronous=True,
                batch_type="tokens",
                max_input_length=0,
                max_decoding_length=longest,
                min_decoding_length=int(options["beam_size"] > 1),  # See `Search.patience`.
                # Not a bias of the projection, although scores would be the same: it was no faster (0.95 to 1.07 times).
                disable_unk=True,
                suppress_sequences=[[self.subword.pieces[PAD]], [self.subword.pieces[BOS]]],
                return_end_token=True,
                use_vmap=self.shortlist,
                **options,
            )
            running |= zip(numbers, outputs, strict=True)
        return running

    def _ranked(self, found: Any, search: Search, most: int) -> list[Finished]:
        """Return the best outputs of a result of CTranslate2, at most so many."""
        outputs = []
        for pieces, score in zip(found.hypotheses, found.scores, strict=True):
            penalty = length_penalty(float(len(pieces)), search.alpha, search.penalty)
            # For `wu` their scores are log-probabilities.
            both = (score * penalty, score) if search.penalty == "power" else (score, score / penalty)
            outputs.append(Finished(self._ids(pieces), *both))
        return sorted(outputs, key=lambda output: output.score, reverse=True)[:most]

    def _ids(self, pieces: list[str]) -> list[int]:
        return [self.subword.ids[piece] for piece in pieces]

    def _max_length(self, source_length: int, search: Search) -> int:
        return min(source_length - 1 + search.max_extra, self.most_positions)


def _result(output: Any) -> Any:
    """Wait for a result in Python: while CTranslate2 itself waits, no handler of a signal runs, so that Ctrl-C would end nothing."""
    pause = _SHORTEST_PAUSE
    while not output.done():
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return output.result()


def _options(search: Search, batch_tokens: int, scored: bool) -> dict[str, Any]:
    """Return the options of CTranslate2's search.

    With a beam scores are always computed, and all hypotheses that have ended are asked for: CTranslate2 stops earlier for a single one
    without length penalty, and their lengths tell whether the maximum length was too great.
    """
    count = math.ceil(search.beam * (search.patience or 1.0))
    several = {"patience": count / search.beam, "num_hypotheses": count}  # CTranslate2 would round the product; our search rounds it up.
    return {
        "max_batch_size": batch_tokens,
        "beam_size": search.beam,
        "length_penalty": min(search.alpha, _NO_PENALTY) if search.penalty == "wu" else search.alpha,
        "return_scores": scored or search.beam > 1,
        **(several if search.beam > 1 else {}),  # A beam of 1 ends with the first end token, whatever the patience.
    }
