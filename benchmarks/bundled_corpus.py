"""Choose the bundled English-German corpus from an export of Tatoeba: short sentences of common words, split by linked sentences.

    python benchmarks/bundled_corpus.py deu.txt transformer_core/corpus/sources/catalogue/tatoeba

The export is a table of manythings.org/anki, whose first two columns are English and German.
"""

import argparse
import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

MOST_WORDS = 10  # Of a sentence.
VOCABULARY = 2500, 4000  # Each word of a sentence is among so many of its language's most frequent words.
HELD_OUT = 1000  # Pairs of valid, and of test.
WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
Pair = tuple[str, str]


def words(sentence: str) -> tuple[str, ...]:
    """Return the words of a sentence in small letters, without punctuation."""
    return tuple(word.lower() for word in WORD.findall(sentence))


def links(pairs: Iterable[Pair]) -> Callable[[Pair], tuple[int, tuple[str, ...]]]:
    """Return a function that names the group of a pair: pairs that share a sentence, directly or through other pairs, are of one group."""
    parents: dict[tuple[int, tuple[str, ...]], tuple[int, tuple[str, ...]]] = {}

    def root(sentence: tuple[int, tuple[str, ...]]) -> tuple[int, tuple[str, ...]]:
        while parents.setdefault(sentence, sentence) != sentence:
            parents[sentence] = parents[parents[sentence]]
            sentence = parents[sentence]
        return sentence

    for english, german in pairs:
        parents[root((0, words(english)))] = root((1, words(german)))
    return lambda pair: root((0, words(pair[0])))


def common(pairs: list[Pair]) -> list[Pair]:
    """Return the short pairs of common words, those first whose rarest German word is the most frequent."""
    ranks = []
    for side, most in enumerate(VOCABULARY):
        counts = Counter(word for sentence in dict.fromkeys(pair[side] for pair in pairs) for word in words(sentence))
        ranks.append({word: rank for rank, word in enumerate(sorted(counts, key=lambda word: (-counts[word], word))[:most])})

    def rarest(pair: Pair, side: int) -> int:
        return max((ranks[side].get(word, len(pairs)) for word in words(pair[side])), default=len(pairs))

    kept = [
        pair
        for pair in pairs
        if all(len(sentence.split()) <= MOST_WORDS for sentence in pair) and all(rarest(pair, side) < len(pairs) for side in (0, 1))
    ]
    return sorted(kept, key=lambda pair: (rarest(pair, 1), rarest(pair, 0), pair))


def one_of_each(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the first pair of each English and each German sentence."""
    seen: tuple[set[tuple[str, ...]], set[tuple[str, ...]]] = set(), set()
    kept = []
    for pair in pairs:
        sides = [words(sentence) for sentence in pair]
        if not any(side in known for side, known in zip(sides, seen, strict=True)):
            kept.append(pair)
            for side, known in zip(sides, seen, strict=True):
                known.add(side)
    return kept


def split(pairs: Iterable[Pair], group: Callable[[Pair], object]) -> dict[str, list[Pair]]:
    """Return test, valid and train; a group is in one of them, as the digest of its first English sentence has it."""
    groups = defaultdict(list)
    for pair in pairs:
        groups[group(pair)].append(pair)
    splits: dict[str, list[Pair]] = {"test": [], "valid": [], "train": []}
    for linked in sorted(groups.values(), key=lambda linked: sha256(min(linked)[0].encode()).digest()):
        name = next(name for name in splits if name == "train" or len(splits[name]) + len(linked) <= HELD_OUT)
        splits[name] += linked
    return splits


def shortened(sentence: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Return the sentence without each of its words in turn."""
    return {sentence[:cut] + sentence[cut + 1 :] for cut in range(len(sentence))}


def blanked(sentence: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Return the sentence with a blank for each of its words in turn: sentences that differ in one word share one of these."""
    return {(*sentence[:cut], "", *sentence[cut + 1 :]) for cut in range(len(sentence))}


def near(sources: list[tuple[str, ...]], trained: set[tuple[str, ...]]) -> float:
    """Return the share of the sources that are within one word (other, more or less) of a training source."""
    longer_or_other = trained.union(*map(shortened, trained), *map(blanked, trained))
    found = [not longer_or_other.isdisjoint({source} | blanked(source)) or not trained.isdisjoint(shortened(source)) for source in sources]
    return sum(found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    rows = [line.split("\t") for line in arguments.export.read_text(encoding="utf-8").split("\n") if line]
    pairs = list(dict.fromkeys((" ".join(row[0].split()), " ".join(row[1].split())) for row in rows))
    splits = split(one_of_each(common(pairs)), links(pairs))
    for name, chosen in splits.items():
        chosen.sort(key=lambda pair: sha256("\t".join(pair).encode()).digest())
        text = "".join(f"{english}\t{german}\n" for english, german in chosen)
        (arguments.folder / f"{name}.tsv.xz").write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        print(f"{name}: {len(chosen):,} pairs")
    test, train = ([words(english) for english, _ in splits[name]] for name in ("test", "train"))
    print(f"{near(test, set(train)):.0%} of the test sources are within one word of a training source")


if __name__ == "__main__":
    main()
