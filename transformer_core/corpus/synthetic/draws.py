"""Random choices of words and noun phrases."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from transformer_core.corpus.synthetic import adverbials, nouns
from transformer_core.corpus.synthetic.lexicon import lexicon
from transformer_core.corpus.synthetic.morphology import GENITIVE, NOMINATIVE
from transformer_core.corpus.synthetic.phrases import (
    ALL,
    BARE,
    EVERY,
    MANY,
    NO,
    NOT_A,
    NOT_BARE,
    POSSESSIVES,
    SOME,
    THE,
    THESE,
    THIS,
    A,
    Determiner,
    NounPhrase,
    measured,
    name_phrase,
    noun_phrase,
    numeral,
    possessed,
    possessed_by_name,
    pronoun,
    titled_phrase,
    weather_it,
)
from transformer_core.corpus.synthetic.words import PEOPLE, Adjective, Lexicon, Noun

T = TypeVar("T")

SINGULAR = 0
# Kinds of people to draw from, as often as they are to come.
SOMEBODY = ("person", "person", "person", "family", "parent")
# The marks in the tables of determiners: a possessive pronoun, a number, the genitive of an owner.
OWN, NUMERAL, OWNED = "own", "numeral", "owned"
Choice = tuple[Determiner | str, int]


def weighted(*choices: tuple[Determiner | str, int, int]) -> tuple[Choice, ...]:
    """A table to draw from uniformly: each (determiner, number) as often as its weight says."""
    return tuple((determiner, number) for determiner, number, weight in choices for _ in range(weight))


_COUNTED = weighted(
    (THE, 0, 30),
    (A, 0, 24),
    (THIS, 0, 6),
    (OWN, 0, 10),
    (OWNED, 0, 9),
    (NO, 0, 2),
    (EVERY, 0, 2),
    (THE, 1, 10),
    (BARE, 1, 3),
    (THESE, 1, 3),
    (OWN, 1, 3),
    (MANY, 1, 3),
    (SOME, 1, 3),
    (NUMERAL, 1, 6),
    (ALL, 1, 1),
)
_SUBJECT = weighted(
    (THE, 0, 44),
    (A, 0, 12),
    (THIS, 0, 6),
    (OWN, 0, 6),
    (OWNED, 0, 4),
    (NO, 0, 2),
    (EVERY, 0, 3),
    (THE, 1, 13),
    (THESE, 1, 4),
    (OWN, 1, 3),
    (MANY, 1, 4),
    (SOME, 1, 3),
    (NUMERAL, 1, 5),
    (ALL, 1, 2),
)
TABLES: dict[str, tuple[Choice, ...]] = {
    "person": weighted(
        (THE, 0, 46),
        (A, 0, 14),
        (THIS, 0, 5),
        (NO, 0, 2),
        (EVERY, 0, 3),
        (THE, 1, 13),
        (THESE, 1, 3),
        (MANY, 1, 4),
        (SOME, 1, 3),
        (NUMERAL, 1, 4),
    ),
    "family": weighted((OWN, 0, 50), (THE, 0, 8), (OWNED, 0, 22), (A, 0, 3), (OWN, 1, 10), (NUMERAL, 1, 2)),
    "parent": weighted((OWN, 0, 50), (OWNED, 0, 25)),
    "body": weighted((OWN, 0, 1)),
    "sky": weighted((THE, 0, 1)),
    "period": weighted((THE, 0, 1)),
    "wall": weighted((THE, 0, 1)),
    "mass": weighted((BARE, 0, 11), (THE, 0, 5), (THIS, 0, 2), (OWN, 0, 2)),
    "one person": weighted((THE, 0, 10), (A, 0, 4), (THIS, 0, 1), (THE, 1, 3)),
    "negated": weighted((A, 0, 10), (BARE, 1, 4), (THE, 0, 6), (THIS, 0, 2), (OWN, 0, 3), (THE, 1, 1)),
    "negated mass": weighted((BARE, 0, 3), (THE, 0, 1)),
    "plain": weighted((THE, 0, 14), (A, 0, 7), (THIS, 0, 3), (OWN, 0, 7), (OWNED, 0, 4), (THE, 1, 5), (OWN, 1, 2), (THESE, 1, 1)),
    "place": weighted((THE, 0, 14), (A, 0, 3), (THIS, 0, 1)),
}
_OWNERS = ("i", "he", "she", "we", "they")
# Whom an object pronoun may mean, by the subject's pronoun.
_OTHERS = {
    "i": ("he", "she", "they"),
    "we": ("he", "she", "they"),
    "he": ("i", "we", "she", "they"),
    "she": ("i", "we", "he", "they"),
    "they": ("i", "we", "he", "she"),
    "du": ("i", "we", "he", "she", "they"),
    "sie": ("i", "we", "he", "she", "they"),
}


class Draw:
    """A stream of random choices; the same seed makes the same choices on every machine.

    Args:
        seed: of the stream; a string, which `random.Random` digests in a documented way.
        words: the lexicon to draw from.
    """

    def __init__(self, seed: str, words: Lexicon | None = None) -> None:
        self.random = Random(seed).random
        self.lexicon = words or lexicon()
        self.somebody: Noun = self.lexicon.nouns["person"][0]
        self.men = tuple(name_phrase(name, "he", self.somebody) for name in nouns.MEN)
        self.women = tuple(name_phrase(name, "she", self.somebody) for name in nouns.WOMEN)

    def pick(self, options: Sequence[T]) -> T:
        """One of them, each as likely."""
        return options[int(self.random() * len(options))]

    def number(self, low: int, high: int) -> int:
        """A whole number between the two, both included."""
        return low + int(self.random() * (high - low + 1))

    def noun(self, kinds: tuple[str, ...]) -> Noun:
        """A noun of one of the kinds, each kind as likely."""
        return self.pick(self.lexicon.nouns[self.pick(kinds)])

    def adjectives(self, noun: Noun) -> tuple[Adjective, ...]:
        """None, one or two that suit a noun, in the English order."""
        chance = self.random()
        if chance > 0.3 or not noun.adjectives:
            return ()
        first = self.pick(noun.adjectives)
        if chance < 0.05:
            second = self.pick(noun.adjectives)
            if first.block < second.block:
                return (first, second)
        return (first,)

    def subject(self, kinds: tuple[str, ...]) -> NounPhrase:
        """A subject for a verb that is said of these kinds."""
        kind = self.pick(kinds)
        if kind == "weather":
            return weather_it(self.somebody)
        if kind == "person":
            chance = self.random()
            if chance < 0.3:
                return pronoun(self.pick(_OWNERS), self.somebody, NOMINATIVE)
            if chance < 0.5:
                return self.name(NOMINATIVE)
        noun = self.pick(self.lexicon.nouns[kind])
        table = TABLES.get(kind) or (_SUBJECT if noun.counted else TABLES["mass"])
        return self.with_determiner(noun, table, NOMINATIVE, "")

    def name(self, case: int) -> NounPhrase:
        """A person's name."""
        if self.random() < 0.7:
            return self.pick(self.men) if self.random() < 0.5 else self.pick(self.women)
        return titled_phrase(self.pick(nouns.SURNAMES), "he" if self.random() < 0.5 else "she", self.somebody, case)

    def object(self, kinds: tuple[str, ...], case: int, subject: str, table: str = "", negated: bool = False) -> NounPhrase:
        """An object of a verb whose subject the pronoun `subject` stands for.

        `table` names the determiners to draw from; where it is empty, there may be a kein. `negated`: "not" at the verb may become one.
        """
        kind = self.pick(kinds)
        if kind == "amount":
            return self.amount("euro", 10, 999)
        if kind == "person":
            chance = self.random()
            if chance < 0.22:
                return self.object_pronoun(case, subject)
            if chance < 0.4:
                return self.name(case)
        noun = self.pick(self.lexicon.nouns[kind])
        if kind in TABLES:
            determiners = TABLES["one person" if kind == "person" and (table or negated) else kind]
        elif negated:
            determiners = TABLES["negated" if noun.counted else "negated mass"]
        else:
            determiners = TABLES["mass"] if not noun.counted else TABLES[table] if table else _COUNTED
        return self.with_determiner(noun, determiners, case, subject, negated)

    def object_pronoun(self, case: int, subject: str) -> NounPhrase:
        """A personal pronoun that cannot mean the subject."""
        others = _OTHERS.get(subject, ("i", "we", "he", "she", "they"))
        return pronoun(self.pick(others), self.somebody, case)

    def with_determiner(self, noun: Noun, table: tuple[Choice, ...], case: int, subject: str, negated: bool = False) -> NounPhrase:
        """A noun with a determiner from the table, perhaps with adjectives."""
        choice, number = self.pick(table)
        adjectives = self.adjectives(noun)
        if isinstance(choice, str):
            if choice == OWNED:
                return self.owned(adjectives, noun, number, case)
            if choice == NUMERAL:
                choice = numeral(self.number(2, 5) if noun.kind in PEOPLE else self.number(2, 20))
            else:
                owners = _OWNERS[:3] if noun.kind == "body" else _OWNERS
                choice = POSSESSIVES[subject if subject in POSSESSIVES and self.random() < 0.8 else self.pick(owners)]
        elif negated and not choice.definite:
            choice = NOT_A if choice is A else NOT_BARE
        return noun_phrase(choice, adjectives, noun, number, case)

    def owned(self, adjectives: tuple[Adjective, ...], noun: Noun, number: int, case: int) -> NounPhrase:
        """A noun with its owner in the genitive."""
        chance = self.random()
        if chance < 0.35:
            return possessed_by_name(self.name(GENITIVE), adjectives, noun, number, case)
        if chance < 0.7:
            owner = noun_phrase(THE, (), self.noun(("person",)), SINGULAR, GENITIVE)
        else:
            owner = noun_phrase(POSSESSIVES[self.pick(_OWNERS)], (), self.noun(("family", "parent")), SINGULAR, GENITIVE)
        return possessed(owner, adjectives, noun, number, case)

    def amount(self, unit: str, low: int, high: int) -> NounPhrase:
        """A number of units, round ones more often; none that ends in "one", whose German form before a noun wavers."""
        count = self.number(low, high)
        if high > 1000 and self.random() < 0.5:
            count = max(count // 1000, 1) * 1000
        elif count > 100 and self.random() < 0.4:
            count = count // 10 * 10
        if count % 100 == 1:
            count += 1
        return measured(count, adverbials.UNITS[unit], self.somebody)
