"""Strings that a translation must have as they are in its source: ``python benchmarks/probes.py --model models/averaged``.

probes.tsv has 60 English sentences: the kind, the strings with "|" between them, the sentence. A probe is a hit if the translation has all
of its strings, in order, and each as often as the source. --misses prints the others. Terms of a glossary, which the source has not:

    python benchmarks/probes.py --model models/averaged --probes benchmarks/terms.tsv --glossary benchmarks/glossary.tsv
"""

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path

PROBES = Path(__file__).with_name("probes.tsv")


def is_hit(strings: list[str], source: str, translation: str) -> bool:
    """Return whether a translation has the strings in order, each as often as the source, if that has it."""
    rest = translation
    for string in strings:
        _, found, rest = rest.partition(string)
        if not found or translation.count(string) != source.count(string) > 0:
            return False
    return True


def main() -> None:
    """Translate the probes and print the hits of each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a model directory, English to another language")
    parser.add_argument("--misses", action="store_true", help="print each sentence that lost a string, and its translation")
    parser.add_argument("--probes", type=Path, default=PROBES, help="another file of such lines (default: probes.tsv)")
    parser.add_argument("--glossary", type=Path, help="a glossary for the translations")
    arguments = parser.parse_args()
    probes = [line.split("\t") for line in arguments.probes.read_text(encoding="utf-8").splitlines()]
    command = [sys.executable, "-m", "transformer_core.cli", "translate", "--model", str(arguments.model)]
    command += ["--glossary", str(arguments.glossary)] if arguments.glossary else []
    lines = "".join(f"{source}\n" for *_, source in probes)
    translations = subprocess.run(command, input=lines, stdout=subprocess.PIPE, check=True, text=True, encoding="utf-8").stdout.split("\n")
    hits: Counter[str] = Counter()
    for (kind, strings, source), translation in zip(probes, translations, strict=False):
        hit = is_hit(strings.split("|"), source, translation)
        hits[kind] += hit
        if arguments.misses and not hit:
            print(f"{kind}\t{source}\t{translation}")
    for kind, count in Counter(kind for kind, *_ in probes).items():
        print(f"{kind:<12} {hits[kind]:>2} of {count}")
    print(f"{'all':<12} {hits.total():>2} of {len(probes)}")


if __name__ == "__main__":
    main()
