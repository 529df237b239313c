"""Where and when: adverbials drawn at random, from the fixed ones or made of numbers, dates, places and events."""

from functools import cache

from transformer_core.corpus.synthetic import adverbials, nouns, phenomena
from transformer_core.corpus.synthetic.draws import SINGULAR, TABLES, Draw
from transformer_core.corpus.synthetic.lexicon import rows
from transformer_core.corpus.synthetic.morphology import DATIVE, GENITIVE
from transformer_core.corpus.synthetic.numerals import DAYS_IN_MONTH, MONTHS, english_clock, english_ordinal, german_clock, german_ordinal
from transformer_core.corpus.synthetic.phrases import THE, NounPhrase, Text, measured, noun_phrase, prepositional


@cache
def fixed(table: str) -> tuple[Text, ...]:
    """The adverbials of a table of `adverbials`, with trees where the words have tags."""
    return tuple(_fixed(english, german) for english, german in rows(table))


def _fixed(english: str, german: str) -> Text:
    tagged = [word.partition("/") for word in english.split()]
    words = " ".join(word for word, _, _ in tagged)
    leaves = [f"({tag or 'RB'} {word})" for word, _, tag in tagged]
    first = tagged[0][2]
    if first == "IN":
        tree = f"(PP {leaves[0]} (NP {' '.join(leaves[1:])}))"
    else:
        tree = f"({'NP' if first and first != 'RB' else 'ADVP'} {' '.join(leaves)})"
    labels = phenomena.AMBIGUOUS_WORD if german == "noch nie" else 0
    return Text(words, tree, german, labels)


@cache
def clock_times() -> tuple[Text, ...]:
    """Every five minutes of the clock in words, then every quarter of an hour of the day in figures."""
    words = [
        Text(f"at {english}", f"(PP (IN at) (NP {_clock_leaves(english)}))", f"um {german_clock(hour, minute)}", phenomena.CLOCK_TIME)
        for hour in range(1, 13)
        for minute in (0, 0, 0, *range(5, 60, 5), 15, 30, 45)
        for english in [english_clock(hour, minute)]
    ]
    figures = [f"{hour}:{minute:02}" for hour in range(6, 24) for minute in (0, 15, 30, 45)]
    return (*words, *(Text(f"at {time}", f"(PP (IN at) (NP (CD {time})))", f"um {time} Uhr", phenomena.CLOCK_TIME) for time in figures))


def _clock_leaves(words: str) -> str:
    tags = {"a": "DT", "quarter": "NN", "half": "NN", "past": "IN", "to": "TO", "o'clock": "RB"}
    return " ".join(f"({tags.get(word, 'CD')} {word})" for word in words.split())


def time_of(draw: Draw, group: str) -> Text:
    """When: `group` is past, present, habit or future."""
    chance = draw.random()
    if chance < 0.2:
        return draw.pick(clock_times())
    if group in ("past", "future") and chance < 0.5:
        return date(draw, group) if chance < 0.4 else around_event(draw) if chance < 0.45 or group == "future" else ago(draw)
    return draw.pick(fixed(adverbials.TIMES[group]))


def date(draw: Draw, group: str) -> Text:
    """A date in figures or words; one in the future has no year."""
    month = int(draw.random() * 12)
    english, german = MONTHS[month]
    day = draw.number(1, DAYS_IN_MONTH[month])
    chance = draw.random()
    if chance < 0.35:
        words = english_ordinal(day)
        tree = f"(PP (IN on) (NP (NP (DT the) (JJ {words})) (PP (IN of) (NP (NNP {english})))))"
        return Text(f"on the {words} of {english}", tree, f"am {german_ordinal(day)} {german}", phenomena.DATE)
    if group == "future":
        tree = f"(PP (IN on) (NP (CD {day}) (NNP {english})))"
        return Text(f"on {day} {english}", tree, f"am {day}. {german}", phenomena.DATE)
    year = draw.number(1960, 2025)
    if chance < 0.7:
        tree = f"(PP (IN on) (NP (CD {day}) (NNP {english}) (CD {year})))"
        return Text(f"on {day} {english} {year}", tree, f"am {day}. {german} {year}", phenomena.DATE)
    if chance < 0.85:
        return Text(f"in {year}", f"(PP (IN in) (NP (CD {year})))", f"im Jahr {year}", phenomena.DATE)
    return Text(f"in {english} {year}", f"(PP (IN in) (NP (NNP {english}) (CD {year})))", f"im {german} {year}", phenomena.DATE)


def ago(draw: Draw) -> Text:
    """Three days ago: vor drei Tagen."""
    count = _some_time(draw)
    return Text(f"{count.english} ago", f"(ADVP {count.tree} (RB ago))", f"vor {_dative(count)}", count.labels | phenomena.CASE)


def around_event(draw: Draw) -> Text:
    """Before, after or during an event; German has the dative or, after "während", the genitive."""
    english, german, case = draw.pick((("before", "vor", DATIVE), ("after", "nach", DATIVE), ("during", "während", GENITIVE)))
    event = noun_phrase(THE, (), draw.noun(("event",)), SINGULAR, case)
    labels = phenomena.GENITIVE if case == GENITIVE else phenomena.AMBIGUOUS_WORD
    found = prepositional(english, german, event)
    return found._replace(labels=found.labels | labels)


def where(draw: Draw, kinds: tuple[str, ...]) -> Text:
    """At a city, or at a place with the prepositions that go with it."""
    kind = draw.pick(kinds)
    if kind == "city":
        english, german, _ = draw.pick(nouns.CITIES_AND_COUNTRIES)
        return Text(f"in {english}", f"(PP (IN in) (NP (NNP {english})))", german, 0)
    noun = draw.pick(draw.lexicon.nouns[kind])
    assert noun.place is not None
    inner = draw.with_determiner(noun, TABLES["place"], DATIVE, "")
    return prepositional(noun.place.english, noun.place.german, inner)


def goal_of(draw: Draw, kinds: tuple[str, ...]) -> Text:
    """To a city, or to a place with the preposition and case that go with it."""
    kind = draw.pick(kinds)
    if kind == "city":
        english, _, german = draw.pick(nouns.CITIES_AND_COUNTRIES)
        return Text(f"to {english}", f"(PP (TO to) (NP (NNP {english})))", german, 0)
    noun = draw.pick(draw.lexicon.nouns[kind])
    assert noun.place is not None
    inner = draw.with_determiner(noun, TABLES["place"], noun.place.goal_case, "")
    return prepositional("to", noun.place.goal, inner)


def surface(draw: Draw, kinds: tuple[str, ...], case: int) -> Text:
    """On a piece of furniture or a wall: accusative for where to, dative for where."""
    noun = draw.noun(kinds)
    assert noun.place is not None
    return prepositional(noun.place.english, noun.place.german, draw.with_determiner(noun, TABLES["place"], case, ""))


def duration(draw: Draw, kind: str) -> Text:
    """For three years: "seit drei Jahren" of what goes on (`kind` "since"), "drei Jahre lang" of what is over."""
    count = _some_time(draw)
    german = f"seit {_dative(count)}" if kind == "since" else f"{count.german} lang"
    return Text(f"for {count.english}", f"(PP (IN for) {count.tree})", german, count.labels | phenomena.AMBIGUOUS_WORD)


def _some_time(draw: Draw) -> NounPhrase:
    return measured(draw.number(2, 20), adverbials.UNITS[draw.pick(("day", "week", "month", "year"))], draw.somebody)


def _dative(count: NounPhrase) -> str:
    return count.german if count.german.endswith("n") else f"{count.german}n"
