"""The lexicon, compiled from the tables `nouns`, `verbs` and `adjectives`."""

from collections.abc import Iterable, Iterator
from functools import cache

from transformer_core.corpus.synthetic import phenomena
from transformer_core.corpus.synthetic.adjectives import ADJECTIVES
from transformer_core.corpus.synthetic.conjugation import Parts
from transformer_core.corpus.synthetic.morphology import (
    ACCUSATIVE,
    DATIVE,
    FEMININE,
    MASCULINE,
    NEUTER,
    adjective_cells,
    english_plural,
    noun_cases,
)
from transformer_core.corpus.synthetic.nouns import NOUNS
from transformer_core.corpus.synthetic.verbs import GROUPS, VERBS
from transformer_core.corpus.synthetic.words import PEOPLE, Adjective, Lexicon, Noun, Place, Verb

_GENDERS = {"m": MASCULINE, "f": FEMININE, "n": NEUTER}


@cache
def lexicon() -> Lexicon:
    """The lexicon, compiled once a process (about 0.1 s)."""
    adjectives = list(_adjectives())
    return Lexicon.of({kind: tuple(_nouns(kind, adjectives)) for kind in NOUNS}, tuple(_verbs()))


def kinds_of(field: str) -> tuple[str, ...]:
    """The kinds of nouns in a field of a table, its groups resolved."""
    return tuple(kind for name in field.split() for kind in GROUPS.get(name, name).split())


def rows(table: str) -> Iterator[list[str]]:
    """The fields of each line of a table, parted by " |", without blanks around them; empty lines left out."""
    for line in table.split("\n"):
        if line.strip():
            yield [field.strip() for field in line.split(" |")]


def _ambiguous(pairs: Iterable[tuple[str, str]]) -> set[str]:
    """The English words that have more than one German one."""
    translations: dict[str, set[str]] = {}
    for english, german in pairs:
        translations.setdefault(english, set()).add(german)
    return {english for english, german in translations.items() if len(german) > 1}


def _adjectives() -> Iterator[tuple[tuple[str, ...], Adjective]]:
    """Each adjective with the kinds that it suits."""
    table = [(block, row) for block, lines in enumerate(ADJECTIVES.split("\n\n")) for row in rows(lines)]
    ambiguous = _ambiguous((english, german) for _, (english, german, _) in table)
    for block, (english, german, kinds) in table:
        predicate, *stems = german.split()
        stem = stems[0] if stems else predicate
        cells = tuple(tuple(form + " " for form in forms) for forms in adjective_cells(stem))
        labels = phenomena.AMBIGUOUS_WORD if english in ambiguous else 0
        yield (
            kinds_of(kinds),
            Adjective(
                block, english + " ", f"(JJ {english}) ", cells, "" if predicate == "-" else predicate, _starts_with_vowel(english), labels
            ),
        )


def _starts_with_vowel(word: str) -> bool:
    return word[0] in "aeiouAEIOU" or word == "honest"


def _nouns(kind: str, adjectives: list[tuple[tuple[str, ...], Adjective]]) -> Iterator[Noun]:
    suitable = tuple(adjective for kinds, adjective in adjectives if kind in kinds)
    ambiguous = _ambiguous((fields[0].partition("/")[0], fields[2]) for fields in _noun_lines())
    for line in NOUNS[kind].split("\n"):
        if line.strip():
            fields = line.split()
            labels = phenomena.AMBIGUOUS_WORD if fields[0].partition("/")[0] in ambiguous else 0
            yield from _noun(kind, fields, suitable, labels)


def _noun_lines() -> Iterator[list[str]]:
    return (line.split() for table in NOUNS.values() for line in table.split("\n") if line.strip())


def _noun(kind: str, fields: list[str], adjectives: tuple[Adjective, ...], labels: int) -> Iterator[Noun]:
    """One noun, or one for each complement that always follows it."""
    singular, _, irregular = fields[0].replace("_", " ").partition("/")
    english = (singular, irregular or english_plural(singular))
    gender, nominative, plural = _GENDERS[fields[1]], fields[2], fields[3].replace("-", "")
    marks = fields[4:]
    genitive = next((mark.removeprefix("gen=") for mark in marks if mark.startswith("gen=")), None)
    forms = noun_cases(nominative, gender, plural, weak="weak" in marks, genitive=nominative + "es" if "es" in marks else genitive)
    pronoun = next((mark for mark in marks if mark in ("he", "she")), None)
    if pronoun is None:
        pronoun = ("he", "she", "it")[gender] if kind in PEOPLE else "it"
    for english_tail, tree_tail, german_tail in list(_tails(marks)) or [("", "", "")]:
        yield Noun(
            kind,
            nominative,
            (english[0] + english_tail, english[1] + english_tail),
            (_leaves(english[0], "NN") + tree_tail, _leaves(english[1], "NNS") + tree_tail),
            tuple(form + german_tail for form in forms),
            gender,
            pronoun,
            bool(plural),
            "job" in marks,
            _starts_with_vowel(singular),
            _place(marks),
            adjectives,
            tuple(adjective for adjective in adjectives if adjective.predicate),
            labels,
        )


def _leaves(words: str, tag: str) -> str:
    """Leaves of a noun of one or two words, the last with the tag."""
    *first, last = words.split()
    return "".join(f"(NN {word}) " for word in first) + f"({tag} {last})"


def _tails(marks: list[str]) -> Iterator[tuple[str, str, str]]:
    """English, tree and German of the complements that always follow a noun."""
    for mark in marks:
        preposition, _, complement = mark.partition("=")
        if preposition in ("of", "for"):
            english, _, german = complement.partition(":")
            article, noun = english.split("_")
            tree = f" (PP (IN {preposition}) (NP (DT {article}) (NN {noun})))"
            german_preposition = "" if preposition == "of" else " für"
            yield f" {preposition} {article} {noun}", tree, f"{german_preposition} {german.replace('_', ' ')}"


def _place(marks: list[str]) -> Place | None:
    for mark in marks:
        where, arrow, goal = mark.partition(">")
        if arrow:
            english, _, german = where.partition(":")
            return Place(english, german, goal[:-1], ACCUSATIVE if goal.endswith("4") else DATIVE)
        if mark in ("on", "in"):
            german = {"on": "auf", "in": "in"}[mark]
            return Place(mark, german, german, ACCUSATIVE)
    return None


def _verbs() -> Iterator[Verb]:
    table = list(rows(VERBS))
    ambiguous = _ambiguous((_english_lemma(english), _german_lemma(german)) for english, german, *_ in table)
    for english, german, frame, subjects, *rest in table:
        lemma = _english_lemma(english)
        parts = Parts.parse(english, german, phenomena.AMBIGUOUS_WORD if lemma in ambiguous else 0)
        kinds = kinds_of(subjects)
        objects = kinds_of(rest[0]) if rest else ()
        yield Verb(
            lemma,
            _german_lemma(german),
            frame,
            tuple(kind for kind in kinds if kind not in ("state", "lasting")),
            objects,
            "state" in kinds,
            "lasting" in kinds,
            parts.base != parts.past,
            bool(parts.particle),
            parts.preposition,
            parts.german_preposition,
            parts.forms(),
            parts.supported_forms(),
            parts.reflexives,
            parts.labels,
        )


def _english_lemma(field: str) -> str:
    words, _, rest = field.partition("+")
    return " ".join([words.split()[0], *rest.split()])


def _german_lemma(field: str) -> str:
    words = field.split()
    return " ".join(words[:2]) if words[0].startswith("sich") else words[0]
