"""What a corpus is like, in words, before anything is trained on it: size, repeats, lengths, variety, and how far valid and test are."""

from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import TYPE_CHECKING

from transformer_core.corpus.text import Pair, length_in_words, lines_lack_spaces, normalise

if TYPE_CHECKING:
    import pandas as pd

# Words of a split that train lacks, relative to those of pairs taken out of train: 0.9 to 1.2 times as many where the split was drawn from
# the same text (Multi30k, Tatoeba, News Commentary), 1.3 to 1.7 times in news of another year, 2.6 to 18 times in text of another kind.
# News as train has the words of captions and everyday sentences (0.4 to 1.4), whose lengths differ 1.7 and 3.2 times.
_OTHER_WORDS, _OTHER_LENGTH = 2.0, 1.5
# Results with the settings of `data new`: pairs, median words of a source sentence, occurrences of a source word, minutes and BLEU of test.
_MEASURED = "measured.csv"
_VERY_FEW_PAIRS = 10_000
_FURTHER = (
    "what helps such a small corpus: a start from a model of another pair (18.8 to 28.7 BLEU with 2,900 captions); back-translation, where "
    "there is text of the target language alone (20.9 to 25.2): docs/improve.md"
)


def describe(train: Iterable[Pair[str]], held_out: Mapping[str, Iterable[Pair[str]]]) -> Iterator[str]:
    """Yield lines on train and on each split beside it; numbers that belong together are those of source and target.

    The pairs that are left are those after the rules of cleaning that need no settings. A word is unseen if train lacks it; the share in
    brackets is that of pairs taken out of train. If no pair is left, the first line is the only one.
    """
    import pandas as pd

    pairs = _frame(train)
    splits = {split: frame for split, of_split in held_out.items() if len(frame := _frame(of_split))}
    evaluated = pd.concat([pairs[:0], *splits.values()]).map(str.casefold)
    rules = {
        "empty": (pairs == "").any(axis=1),
        "copies": pairs["source"] == pairs["target"],
        "also in valid or test": pairs.map(str.casefold).isin({side: set(evaluated[side]) for side in pairs}).any(axis=1),
        "duplicates": pairs.duplicated(),
    }
    left, dropped = pairs, []
    for rule, found in rules.items():
        dropped.append(f"{found[left.index].sum():,} {rule}")
        left = left[~found[left.index]]
    left = left.reset_index(drop=True)
    counted = f"{len(left):,} of {len(pairs):,} pairs looked at are left ({', '.join(dropped)})"
    if left.empty:
        yield f"train: {counted}"
        return
    words, lengths = [_words(left[side]) for side in left], _median_words(left)
    often = [len(side) / max(side.nunique(), 1) for side in words]
    varied = "{:.1f} and {:.1f}".format(*often)
    yield f"train: {counted}; {'{:g} and {:g}'.format(*lengths)} words a sentence (median), each word {varied} times"
    yield _nearest(len(left), lengths[0], often[0])
    if len(left) < _VERY_FEW_PAIRS:
        yield _FURTHER
    for split, frame in splits.items():
        step = max(10, len(left) // len(frame))  # As many pairs are taken out of train, at most a tenth.
        of_split, its_lengths = [_words(frame[side]) for side in frame], _median_words(frame)
        unseen = list(map(_unseen, of_split, words))
        expected = [_unseen(side[side.index % step == 0], side[side.index % step > 0]) for side in words]
        shares = " and ".join(f"{share:.1%} ({usual:.1%})" for share, usual in zip(unseen, expected, strict=True))
        yield f"{split}: {len(frame):,} pairs, {'{:g} and {:g}'.format(*its_lengths)} words a sentence, unseen words {shares}"
        # The second bound is four standard errors, or more, of such a share above the usual one.
        bounds = [max(_OTHER_WORDS * usual, usual + 2 * max(len(side), 1) ** -0.5) for side, usual in zip(of_split, expected, strict=True)]
        longer = [max(pair) > _OTHER_LENGTH * min(pair) for pair in zip(its_lengths, lengths, strict=True)]
        if any(longer) or any(share > bound for share, bound in zip(unseen, bounds, strict=True)):
            yield f"{split} seems to be of another domain than train, and its scores will be low: add training text that is like it."


def _nearest(pairs: int, words: float, often: float) -> str:
    """Return what was measured on the corpus whose number of pairs, length and variety of the source are nearest, as ratios."""
    import numpy as np
    import pandas as pd

    with resources.files(__package__).joinpath(_MEASURED).open(encoding="utf-8") as file:
        measured = pd.read_csv(file)
    ratios = np.log((measured[["pairs", "words", "often"]] / [max(pairs, 1), max(words, 1), max(often, 1)]).to_numpy(float))
    near = measured.iloc[int(np.square(ratios * [1, 6, 1]).sum(axis=1).argmin())]  # Length tells most: news is not like captions.
    size = f"{near['pairs']:,} pairs, {near['words']:g} words a sentence, each word {near['often']:g} times"
    result = f"{near['bleu']} BLEU after {near['minutes']:g} minutes on two cores (docs/improve.md)"
    return f"nearest measured: {near['corpus']}, {size}: {result}"


def _frame(pairs: Iterable[Pair[str]]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame([[*map(normalise, pair)] for pair in pairs], columns=["source", "target"], dtype=str)


def _words(lines: "pd.Series[str]") -> "pd.Series[str]":
    """Return the words of lines, case-folded and without punctuation, by number of line; characters where words have no spaces."""
    word = r"\w" if lines_lack_spaces(lines.tolist()) else r"\w+"
    return lines.str.casefold().str.findall(word).explode().dropna()


def _unseen(words: "pd.Series[str]", train: "pd.Series[str]") -> float:
    return float(1 - words.isin(train.unique()).mean()) if len(words) else 0.0


def _median_words(pairs: "pd.DataFrame") -> list[float]:
    return [float(pairs[side].map(length_in_words).astype(float).median()) for side in pairs]
