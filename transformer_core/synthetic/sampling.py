"""Random choices of words, noun phrases and adverbials."""

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import TypeVar

from transformer_core.synthetic import phenomena, phrases
from transformer_core.synthetic.lexicon import PEOPLE, Adjective, Noun, Text, adverbials, case_of, lexicon, names, rows
from transformer_core.synthetic.morphology import DATIVE, ER, GENITIVE, MASCULINE, NOMINATIVE, PLURAL, SIE
from transformer_core.synthetic.numerals import clock, ordinal
from transformer_core.synthetic.phrases import POSSESSIVES, THE, Determiner, NounPhrase, noun_phrase, pronoun

T = TypeVar("T")

# Kinds of people to draw from, each as often as its weight.
SOMEBODY = ("person", "person", "person", "family", "parent")
_OWNERS = ("i", "he", "she", "we", "they")
# Object pronouns that cannot refer to the subject, by the subject's pronoun; with any other subject all are possible.
_OTHERS = {
    "i": ("he", "she", "they"),
    "we": ("he", "she", "they"),
    "he": ("i", "we", "she", "they"),
    "she": ("i", "we", "he", "they"),
    "they": ("i", "we", "he", "she"),
}


@cache
def _tables() -> dict[str, tuple[tuple[Determiner | str, int], ...]]:
    """Return the choices (determiner, number) of each row of the table `determiners`, each as often as its weight."""
    tables = {}
    for row in rows("determiners"):
        weights = [entry.split("=") for entry in row["weights"].split()]
        choices = [(name.removesuffix("+pl"), int(name.endswith("+pl")), int(weight)) for name, weight in weights]
        tables[row["table"]] = tuple(
            (phrases.DETERMINERS.get(name, name), number) for name, number, weight in choices for _ in range(weight)
        )
    return tables


class Sampler:
    """A stream of random choices: the same on every machine for a seed, because `random.Random` documents its use of a string seed."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed).random
        self.lexicon = lexicon()
        self.somebody: Noun = self.lexicon.nouns["person"][0]
        self._tables = _tables()
        self._first_names = {
            group: tuple(self._person(f"(NNP {english})", german, sex) for english, german, _ in names(group))
            for group, sex in (("man", "he"), ("woman", "she"))
        }
        self._units = {english: german for english, german, _ in names("unit")}

    def pick(self, options: Sequence[T]) -> T:
        """Draw one of the options, all equally likely."""
        return options[int(self.random() * len(options))]

    def number(self, low: int, high: int) -> int:
        """Draw a whole number from `low` to `high`, both included."""
        return low + int(self.random() * (high - low + 1))

    def noun(self, kinds: tuple[str, ...]) -> Noun:
        """Draw a noun of one of the kinds, all kinds equally likely."""
        return self.pick(self.lexicon.nouns[self.pick(kinds)])

    def adjectives(self, noun: Noun) -> tuple[Adjective, ...]:
        """Draw no, one or two adjectives that suit a noun, in the English order."""
        chance = self.random()
        if chance > 0.3 or not noun.adjectives:
            return ()
        first = self.pick(noun.adjectives)
        if chance < 0.05:
            second = self.pick(noun.adjectives)
            if first.order < second.order:
                return (first, second)
        return (first,)

    def subject(self, kinds: tuple[str, ...]) -> NounPhrase:
        """Draw a subject for a verb with these kinds of subject."""
        kind = self.pick(kinds)
        if kind == "weather":
            return NounPhrase("(NP (PRP it))", "es", ER, MASCULINE, "", self.somebody, True, True)
        if kind == "person":
            chance = self.random()
            if chance < 0.3:
                return pronoun(self.pick(_OWNERS), self.somebody, NOMINATIVE)
            if chance < 0.5:
                return self.name(NOMINATIVE)
        noun = self.pick(self.lexicon.nouns[kind])
        table = kind if kind in self._tables else "subject" if noun.counted else "mass"
        return self.with_determiner(noun, table, NOMINATIVE)

    def name(self, case: int) -> NounPhrase:
        """Draw a first name, or Mr or Mrs and a surname; German has Herrn outside the nominative. The genitive is without its -s."""
        if self.random() < 0.7:
            return self.pick(self._first_names["man" if self.random() < 0.5 else "woman"])
        surname, man = self.pick(names("surname"))[0], self.random() < 0.5
        german = "Frau" if not man else "Herr" if case == NOMINATIVE else "Herrn"
        labels = phenomena.CASE if german == "Herrn" else 0
        return self._person(f"(NNP {'Mr' if man else 'Mrs'}) (NNP {surname})", f"{german} {surname}", "he" if man else "she", labels)

    def _person(self, tree: str, german: str, sex: str, labels: int = 0) -> NounPhrase:
        return NounPhrase(f"(NP {tree})", german, ER, MASCULINE, sex, self.somebody, True, False, labels)

    def object(self, kinds: tuple[str, ...], case: int, subject: str, table: str = "", negated: bool = False) -> NounPhrase:
        """Draw an object of a verb whose subject has the pronoun `subject`.

        `table` names the determiners to draw from; if it is empty, kein is possible. `negated`: English has "not" at the verb, and an
        indefinite object takes kein.
        """
        kind = self.pick(kinds)
        if kind == "amount":
            return self.amount("euros", 10, 999)
        if kind == "person":
            chance = self.random()
            if chance < 0.22:
                return pronoun(self.pick(_OTHERS.get(subject, ("i", "we", "he", "she", "they"))), self.somebody, case)
            if chance < 0.4:
                return self.name(case)
        noun = self.pick(self.lexicon.nouns[kind])
        if kind in self._tables:
            table = "one person" if kind == "person" and (table or negated) else kind
        elif negated:
            table = "negated" if noun.counted else "negated mass"
        else:
            table = table or "object" if noun.counted else "mass"
        return self.with_determiner(noun, table, case, subject, negated)

    def with_determiner(self, noun: Noun, table: str, case: int, subject: str = "", negated: bool = False) -> NounPhrase:
        """Draw a determiner from a row of the table `determiners`, and adjectives, for a noun."""
        choice, number = self.pick(self._tables[table])
        adjectives = self.adjectives(noun)
        if not isinstance(choice, str):
            if negated and not choice.definite:
                choice = phrases.NOT_A if choice is phrases.A else phrases.NOT_BARE
        elif choice == "owned":
            return phrases.owned(self._owner(), adjectives, noun, number, case)
        elif choice == "numeral":
            choice = phrases.numeral(self.number(2, 5) if noun.kind in PEOPLE else self.number(2, 20))
        else:
            owners = _OWNERS[:3] if noun.kind == "body" else _OWNERS
            choice = POSSESSIVES[subject if subject in POSSESSIVES and self.random() < 0.8 else self.pick(owners)]
        return noun_phrase(choice, adjectives, noun, number, case)

    def _owner(self) -> NounPhrase:
        chance = self.random()
        if chance < 0.35:
            return self.name(GENITIVE)
        if chance < 0.7:
            return noun_phrase(THE, (), self.noun(("person",)), 0, GENITIVE)
        return noun_phrase(POSSESSIVES[self.pick(_OWNERS)], (), self.noun(("family", "parent")), 0, GENITIVE)

    def amount(self, unit: str, low: int, high: int) -> NounPhrase:
        """Draw a number of units, more often a round one; never one that ends in "one", since its German form before a noun varies."""
        count = self.number(low, high)
        if high > 1000 and self.random() < 0.5:
            count = max(count // 1000, 1) * 1000
        elif count > 100 and self.random() < 0.4:
            count = count // 10 * 10
        if count % 100 == 1:
            count += 1
        return self._measured(count, unit)

    def _measured(self, count: int, unit: str) -> NounPhrase:
        number = phrases.numeral(count)
        tree, german = f"(NP {number.tree}(NNS {unit}))", number.german[0] + self._units[unit]
        return NounPhrase(tree, german, SIE, PLURAL, "", self.somebody, False, False, number.labels[0])

    def time(self, group: str) -> Text:
        """Draw an adverbial of time; `group` is past, present, habit or future."""
        chance = self.random()
        if chance < 0.2:
            return self.pick(_clock_times())
        if group in ("past", "future") and chance < 0.5:
            return self._date(group) if chance < 0.4 else self._around_event() if chance < 0.45 or group == "future" else self._ago()
        return self.pick(adverbials(group))

    def _date(self, group: str) -> Text:
        """Draw a date in figures or words; one in the future has no year."""
        english, german, days = self.pick(names("month"))
        day, chance = self.number(1, int(days)), self.random()
        if chance < 0.35:
            word, german_word = ordinal(day)
            tree = f"(PP (IN on) (NP (NP (DT the) (JJ {word})) (PP (IN of) (NP (NNP {english})))))"
            return Text(tree, f"am {german_word} {german}", phenomena.DATE)
        if group == "future":
            return Text(f"(PP (IN on) (NP (CD {day}) (NNP {english})))", f"am {day}. {german}", phenomena.DATE)
        year = self.number(1960, 2025)
        if chance < 0.7:
            return Text(f"(PP (IN on) (NP (CD {day}) (NNP {english}) (CD {year})))", f"am {day}. {german} {year}", phenomena.DATE)
        if chance < 0.85:
            return Text(f"(PP (IN in) (NP (CD {year})))", f"im Jahr {year}", phenomena.DATE)
        return Text(f"(PP (IN in) (NP (NNP {english}) (CD {year})))", f"im {german} {year}", phenomena.DATE)

    def _ago(self) -> Text:
        """Draw a past time such as "three days ago", "vor drei Tagen"."""
        count = self._some_time()
        return Text(f"(ADVP {count.tree} (RB ago))", f"vor {_dative(count)}", count.labels | phenomena.CASE)

    def _around_event(self) -> Text:
        """Draw a time before, after or during an event; German has the dative or, after "während", the genitive."""
        english, german, case = self.pick((("before", "vor", DATIVE), ("after", "nach", DATIVE), ("during", "während", GENITIVE)))
        found = phrases.prepositional(english, german, noun_phrase(THE, (), self.noun(("event",)), 0, case))
        return found._replace(labels=found.labels | (phenomena.GENITIVE if case == GENITIVE else phenomena.AMBIGUOUS_WORD))

    def duration(self, past: bool) -> Text:
        """Draw a duration such as "for three years": "seit drei Jahren" for a present action, "drei Jahre lang" for a `past` one."""
        count = self._some_time()
        german = f"{count.german} lang" if past else f"seit {_dative(count)}"
        return Text(f"(PP (IN for) {count.tree})", german, count.labels | phenomena.AMBIGUOUS_WORD)

    def _some_time(self) -> NounPhrase:
        return self._measured(self.number(2, 20), self.pick(("days", "weeks", "months", "years")))

    def place(self, kinds: tuple[str, ...], *, goal: bool = False) -> Text:
        """Draw a city or a place, with the prepositions and the case for being there or, with `goal`, going there."""
        kind = self.pick(kinds)
        if kind == "city":
            english, at, to = self.pick(names("place"))
            return Text(f"(PP ({'TO to' if goal else 'IN in'}) (NP (NNP {english})))", to if goal else at)
        noun = self.pick(self.lexicon.nouns[kind])
        if not goal:
            return self._at(noun, DATIVE)
        return phrases.prepositional("to", noun.to[:-1], self.with_determiner(noun, "place", case_of(noun.to)))

    def surface(self, kinds: tuple[str, ...], case: int) -> Text:
        """Draw a piece of furniture or, for a thing that hangs, a wall, with "on": accusative for a direction, dative for a place."""
        return self._at(self.noun(("wall",) if "hanging" in kinds else ("furniture",)), case)

    def _at(self, noun: Noun, case: int) -> Text:
        return phrases.prepositional(noun.at[0], noun.at[1], self.with_determiner(noun, "place", case))


@cache
def _clock_times() -> tuple[Text, ...]:
    """Return every five minutes of the clock in words, then every quarter of an hour from 6:00 to 23:45 in figures."""
    tags = {"a": "DT", "quarter": "NN", "half": "NN", "past": "IN", "to": "TO", "o'clock": "RB"}
    words = [clock(hour, minute) for hour in range(1, 13) for minute in (0, 0, 0, *range(5, 60, 5), 15, 30, 45)]
    times = [(" ".join(f"({tags.get(word, 'CD')} {word})" for word in english.split()), german) for english, german in words]
    figures = [f"{hour}:{minute:02}" for hour in range(6, 24) for minute in (0, 15, 30, 45)]
    times += [(f"(CD {time})", f"{time} Uhr") for time in figures]
    return tuple(Text(f"(PP (IN at) (NP {leaves}))", f"um {german}", phenomena.CLOCK_TIME) for leaves, german in times)


def _dative(count: NounPhrase) -> str:
    return count.german if count.german.endswith("n") else f"{count.german}n"
