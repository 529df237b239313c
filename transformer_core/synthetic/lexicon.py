"""The content words with all their forms in both languages, compiled from the tables in the folder `words`, which explain their columns.

Words are compared by identity, because they are keys of caches; each entry has one object.
"""

import csv
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

from transformer_core.synthetic.conjugation import EnglishVerb, GermanVerb, Tense, conjugate
from transformer_core.synthetic.morphology import ACCUSATIVE, DATIVE, adjective_cells, noun_cases
from transformer_core.synthetic.phenomena import AMBIGUOUS_WORD, REFLEXIVE, SEPARABLE_VERB

PEOPLE = ("person", "family", "parent")
# Frames whose complement is a clause, and those whose object a relative or question word may replace.
CLAUSAL = ("c", "w", "z")
GAPS = ("a", "d", "p")
NOT_THINGS = {*PEOPLE, "amount", "period"}
# Relative frequency of the verbs of a frame; 2 for other frames.
_WEIGHTS = {"i": 2, "g": 4, "l": 3, "by": 8, "foot": 4, "put": 4, "on": 4, "play": 6, "job": 4, "adj": 4, "m": 3, "c": 3, "w": 6, "z": 4}
_REFLEXIVES = {"sich": "mich dich sich uns sich sich", "sich3": "mir dir sich uns sich sich"}


class Text(NamedTuple):
    """A piece of text: English as one or more trees in the brackets of the Penn Treebank, and German."""

    tree: str
    german: str
    labels: int = 0


class Conjunction(NamedTuple):
    """A subordinating conjunction: English tree and German, the time of its clause, and the tense that it requires, if any."""

    tree: str
    german: str
    time: str
    tense: Tense | None
    labels: int


class Adjective:
    """An adjective from a row of the table; `tree` and each form of `forms` [declension][cell] end in a blank.

    A noun has at most one adjective of each `order`. `german` is the form as a predicate, "" if it cannot be one. `vowel`: the English
    article before it is "an".
    """

    def __init__(self, row: dict[str, str], labels: int) -> None:
        self.order, self.english, self.german, self.kinds = int(row["order"]), row["english"], row["german"], _kinds(row["kinds"])
        self.tree = f"(JJ {self.english}) "
        self.forms = tuple(tuple(f"{form} " for form in cells) for cells in adjective_cells(row["stem"] or self.german))
        self.vowel, self.labels = _starts_with_vowel(self.english), labels


class Noun:
    """A noun from a row of the table, with the `complement` (tree and German), if any, that always follows it.

    `trees` are (singular, plural); `forms` are indexed by `number * 4 + case`. `vowel`: the English article is "an". `job`: it is a job of
    people. `at` has the English and the German preposition for a place; `to` the German one for a goal, with its case, 3 or 4.
    `predicates` are those of its `adjectives` that can be a predicate.
    """

    def __init__(self, row: dict[str, str], complement: str, adjectives: Iterable[Adjective], labels: int) -> None:
        self.kind, self.english, self.german, self.gender = row["kind"], row["english"], row["german"], "mfn".index(row["gender"])
        tree, _, tail = (f" {part}" if part else "" for part in complement.partition(" = "))
        self.trees = (f"{_leaves(self.english, 'NN')}{tree}", f"{_leaves(row['plural'], 'NNS')}{tree}")
        cases = noun_cases(self.german, self.gender, row["german plural"], weak=row["declension"] == "weak", genitive=row["genitive"])
        self.forms = tuple(form + tail for form in cases)
        self.pronoun = row["pronoun"] or (("he", "she", "it")[self.gender] if self.kind in PEOPLE else "it")
        self.counted, self.job, self.vowel = bool(row["german plural"]), bool(row["job"]), _starts_with_vowel(self.english)
        self.at, self.to = tuple(row["at"].split()), row["to"]
        self.adjectives = tuple(adjective for adjective in adjectives if self.kind in adjective.kinds)
        self.predicates = tuple(adjective for adjective in self.adjectives if adjective.german)
        self.labels = labels


class Verb:
    """A verb from a row of the table, with its complement; its `english` has particle and preposition.

    `forms` are indexed by [tense][person]; `supported` likewise, always with an English auxiliary; `reflexives` by person, with a blank
    before each, "" for most verbs. `german_preposition` ends in its case, 3 or 4. `lasting`: the action takes some time.
    `simple_present`: the English present differs from the past.
    """

    def __init__(self, row: dict[str, str], labels: int) -> None:
        self.english, self.german, self.frame = _verb_lemma(row), row["german"], row["frame"]
        self.particle, self.preposition, self.german_preposition = row["particle"], row["preposition"], row["german preposition"]
        self.subjects, self.objects = _kinds(row["subjects"]), _kinds(row["objects"])
        self.state, self.lasting = row["aspect"] == "state", row["aspect"] == "lasting"
        self.simple_present = row["english"] != row["past"]
        *reflexive, word = self.german.split()
        self.reflexives = tuple(f" {form}" for form in _REFLEXIVES[reflexive[0]].split()) if reflexive else ("",) * 6
        prefix, _, infinitive = word.rpartition("|")
        self.labels = labels | (REFLEXIVE if reflexive else 0) | (SEPARABLE_VERB if prefix else 0)
        english = EnglishVerb(*(row[column] for column in ("english", "third", "past", "participle", "ing", "particle")))
        german = GermanVerb(prefix, infinitive, row["present"], row["german participle"], row["perfect"] == "sein", row["preterite"])
        self.forms = conjugate(english, german, self.labels)
        self.supported = conjugate(english, german, self.labels, supported=True)


class Lexicon:
    """All content words; `weighted`, `simple`, `by_subject` and `activities` contain each verb as often as its weight."""

    def __init__(self, nouns: Sequence[Noun], verbs: tuple[Verb, ...]) -> None:
        self.nouns = {kind: tuple(noun for noun in nouns if noun.kind == kind) for kind in dict.fromkeys(noun.kind for noun in nouns)}
        self.verbs = verbs
        self.weighted = tuple(verb for verb in verbs for _ in range(_WEIGHTS.get(verb.frame, 2)))
        # Verbs that take no clause; of these, by kind, those that suit a noun as subject; of these, actions that people try or promise.
        self.simple = tuple(verb for verb in self.weighted if verb.frame not in CLAUSAL)
        self.by_subject = {kind: tuple(verb for verb in self.simple if kind in verb.subjects) for kind in self.nouns}
        done = (verb for verb in self.by_subject["person"] if not verb.state and verb.frame not in ("adj", "job"))
        self.activities = tuple(verb for verb in done if not verb.german_preposition.startswith("um"))  # "um um etwas zu bitten" is ugly.
        # Verbs with one object, by its kind.
        self.by_object = {kind: tuple(verb for verb in verbs if kind in verb.objects and verb.frame in GAPS) for kind in self.nouns}
        # Verbs with a thing in the accusative; of these, those with one translation; and, by the thing's kind, actions on it.
        accusative = (verb for verb in verbs if verb.frame == "a" and "person" in verb.subjects)
        self.transitive = tuple(verb for verb in accusative if set(verb.objects) - NOT_THINGS)
        self.plain_transitive = tuple(verb for verb in self.transitive if not verb.labels & AMBIGUOUS_WORD)
        fit = tuple(verb for verb in self.transitive if not verb.state and not verb.particle and verb.simple_present)
        self.handling = {kind: tuple(verb for verb in fit if kind in verb.objects) for kind in self.nouns}
        # Verb "be" with an adjective.
        self.be = next(verb for verb in verbs if verb.english == "be" and verb.frame == "adj")


@cache
def lexicon() -> Lexicon:
    """Return the lexicon, compiled once in each process (about 0.1 s)."""
    labels = _labels((row["english"], row["german"] or row["stem"]) for row in rows("adjectives"))
    adjectives = [Adjective(row, labels[row["english"]]) for row in rows("adjectives")]
    labels = _labels((row["english"], row["german"]) for row in rows("nouns"))
    complements = ((row, complement) for row in rows("nouns") for complement in row["followed by"].split("; "))
    nouns = [Noun(row, complement, adjectives, labels[row["english"]]) for row, complement in complements]
    labels = _labels((_verb_lemma(row), row["german"]) for row in rows("verbs"))
    return Lexicon(nouns, tuple(Verb(row, labels[_verb_lemma(row)]) for row in rows("verbs")))


@cache
def rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a table of words, by column."""
    text = Path(__file__).with_name("words").joinpath(f"{table}.tsv").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, restval=""))  # Empty cells at the end of a line are left out.


@cache
def names(group: str) -> tuple[tuple[str, str, str], ...]:
    """Return the columns `english`, `german` and `more` of a group in the table `names`."""
    return tuple((row["english"], row["german"], row["more"]) for row in rows("names") if row["group"] == group)


@cache
def adverbials(use: str) -> tuple[Text, ...]:
    """Return the adverbials with a use in the table `adverbials`."""
    return tuple(Text(row["tree"], row["german"]) for row in rows("adverbials") if row["use"] == use)


@cache
def conjunctions(use: str) -> tuple[Conjunction, ...]:
    """Return the conjunctions with a use in the table `conjunctions`, each as often as its weight."""
    found = []
    for row in (row for row in rows("conjunctions") if row["use"] == use):
        tense, labels = cast(Tense | None, row["tense"] or None), AMBIGUOUS_WORD if row["ambiguous"] else 0
        found += [Conjunction(row["tree"], row["german"], row["clause"], tense, labels)] * int(row["weight"])
    return tuple(found)


def case_of(preposition: str) -> int:
    """Return the case of a German preposition, from the digit at its end: 4 accusative, 3 dative."""
    return ACCUSATIVE if preposition.endswith("4") else DATIVE


def _kinds(cell: str) -> tuple[str, ...]:
    """Return the kinds of nouns in a cell, groups resolved."""
    groups = {row["group"]: row["kinds"] for row in rows("kinds")}
    return tuple(kind for name in cell.split() for kind in groups.get(name, name).split())


def _labels(pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the label of each English word: AMBIGUOUS_WORD if it has more than one German translation, else 0."""
    translations: dict[str, set[str]] = {}
    for english, german in pairs:
        translations.setdefault(english, set()).add(german)
    return {english: AMBIGUOUS_WORD if len(german) > 1 else 0 for english, german in translations.items()}


def _starts_with_vowel(word: str) -> bool:
    return word[0] in "aeiouAEIOU" or word == "honest"


def _verb_lemma(row: dict[str, str]) -> str:
    """Return an English verb with its particle and preposition."""
    return " ".join(filter(None, (row["english"], row["particle"], row["preposition"])))


def _leaves(words: str, tag: str) -> str:
    """Return the leaves of a noun of one or more words, the last with the tag."""
    *first, last = words.split()
    return "".join(f"(NN {word}) " for word in first) + f"({tag} {last})"
