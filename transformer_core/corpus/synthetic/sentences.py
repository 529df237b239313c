"""Whole sentences: clauses joined, letters made capital and commas put right."""

from collections.abc import Callable
from typing import NamedTuple

from transformer_core.corpus.synthetic import adverbials, phenomena
from transformer_core.corpus.synthetic.circumstances import fixed, where
from transformer_core.corpus.synthetic.clauses import Clause, fronted, statement, subordinate
from transformer_core.corpus.synthetic.complements import of_object
from transformer_core.corpus.synthetic.conjugation import PAST, PLUPERFECT
from transformer_core.corpus.synthetic.draws import NUMERAL, OWN, SOMEBODY, Draw, weighted
from transformer_core.corpus.synthetic.grammar import (
    Drawn,
    again,
    any_clause,
    assemble,
    clause_of,
    infinitive_clause,
    tense_for,
    verb_for,
)
from transformer_core.corpus.synthetic.morphology import ACCUSATIVE, NOMINATIVE, SIE
from transformer_core.corpus.synthetic.phrases import MANY, NO, SOME, THE, THESE, THIS, A, Text, noun_phrase, pronoun
from transformer_core.corpus.synthetic.questions import QUESTIONS
from transformer_core.corpus.synthetic.words import PEOPLE

MOST_WORDS = 60


class Sentence(NamedTuple):
    """A finished pair: text as people write it, the English tree, and the labels as bits."""

    english: str
    german: str
    labels: int
    tree: str


class Conjunction(NamedTuple):
    """A subordinating conjunction: how it reads in both languages, the time of its clause, and a tense it asks for."""

    english: str
    tag: str
    german: str
    time: str
    labels: int = 0
    tense: int | None = None


_CONJUNCTIONS: dict[str, tuple[Conjunction, ...]] = {
    "past": (
        Conjunction("because", "IN", "weil", "past"),
        Conjunction("because", "IN", "weil", "past"),
        Conjunction("although", "IN", "obwohl", "past"),
        Conjunction("when", "WRB", "als", "past", phenomena.AMBIGUOUS_WORD, PAST),
        Conjunction("when", "WRB", "als", "past", phenomena.AMBIGUOUS_WORD, PAST),
        Conjunction("before", "IN", "bevor", "past", phenomena.AMBIGUOUS_WORD, PAST),
        Conjunction("after", "IN", "nachdem", "past", phenomena.AMBIGUOUS_WORD, PLUPERFECT),
        Conjunction("while", "IN", "während", "past", 0, PAST),
    ),
    "recent": (
        Conjunction("because", "IN", "weil", "past"),
        Conjunction("although", "IN", "obwohl", "past"),
    ),
    "present": (
        Conjunction("because", "IN", "weil", "present"),
        Conjunction("although", "IN", "obwohl", "present"),
        Conjunction("when", "WRB", "wenn", "present", phenomena.AMBIGUOUS_WORD),
        Conjunction("if", "IN", "wenn", "present"),
        Conjunction("while", "IN", "während", "present"),
    ),
    "future": (
        Conjunction("because", "IN", "weil", "present"),
        Conjunction("when", "WRB", "wenn", "present", phenomena.AMBIGUOUS_WORD),
        Conjunction("if", "IN", "wenn", "present"),
        Conjunction("if", "IN", "wenn", "present"),
        Conjunction("although", "IN", "obwohl", "past"),
    ),
}
_SINCE = Conjunction("since", "IN", "da", "present", phenomena.AMBIGUOUS_WORD)
_TIMES = ("past", "past", "past", "past", "recent", "present", "present", "present", "future", "future")
_JOINS = (
    (", and", " (, ,) (CC and)", " und"),
    (", and", " (, ,) (CC and)", " und"),
    (", but", " (, ,) (CC but)", ", aber"),
    (", but", " (, ,) (CC but)", ", aber"),
)

_THINGS = ("flat", "upright", "hanging", "device", "vehicle", "clothes", "instrument", "furniture", "animal", "text")
_ONE = weighted((THE, 0, 4), (A, 0, 5), (THIS, 0, 1), (OWN, 0, 2))
_SOME_THINGS = weighted((A, 0, 10), (NO, 0, 2), (MANY, 1, 3), (SOME, 1, 2), (NUMERAL, 1, 4), (NO, 1, 1))
Kind = Callable[[Draw, str], Text]


def sentence(draw: Draw) -> Sentence:
    """A sentence of at most 60 English words."""
    while True:
        asks, time = draw.random() < 0.09, draw.pick(_TIMES)
        text = draw.pick(QUESTIONS)(draw, time) if asks else statements(draw, time)
        found = finish(text, "?" if asks else ".")
        if found.english.count(" ") < MOST_WORDS:
            return found


def finish(text: Text, mark: str) -> Sentence:
    """Capital first letter and the mark at the end; of a comma before another mark only that mark is left."""
    english, german = text.english.replace(" can not ", " cannot "), f"{text.german}{mark}"
    while ",," in german:
        german = german.replace(",,", ",")
    german = german.replace(f",{mark}", mark)
    first = text.tree.index(f" {english[0]}") + 1
    tree = f"{text.tree[:first]}{english[0].upper()}{text.tree[first + 1 : -1]} (. {mark}))"
    return Sentence(f"{english[0].upper()}{english[1:]}{mark}", f"{german[0].upper()}{german[1:]}", text.labels, tree)


def statements(draw: Draw, time: str) -> Text:
    """One or more main clauses with all that belongs to them, of one time."""
    text = draw.pick(_KINDS)(draw, time)
    while draw.random() < 0.16:
        english, tree, german = draw.pick(_JOINS)
        other = draw.pick(_KINDS)(draw, time)
        text = Text(
            f"{text.english}{english} {other.english}",
            f"(S {text.tree}{tree} {other.tree})",
            f"{text.german}{german} {other.german}",
            text.labels | other.labels,
        )
    return text


def main_clause(drawn: Drawn) -> Text:
    """With its adverbial in front where it has one; English parts one of several words with a comma."""
    if drawn.front is None:
        return statement(drawn.clause)
    return fronted(drawn.front, drawn.clause, comma=" " in drawn.front.english)


def plain(draw: Draw, time: str) -> Text:
    """A main clause."""
    return main_clause(any_clause(draw, time, front=True))


def attitude(draw: Draw, time: str) -> Text:
    """Unfortunately, ...: Leider ..."""
    front = draw.pick(fixed(adverbials.ATTITUDE))
    return fronted(front, any_clause(draw, time).clause, comma=front.english not in ("perhaps", "probably"))


def clause_behind(draw: Draw, time: str) -> Text:
    """... because ..."""
    said = any_clause(draw, time, front=draw.random() < 0.3)
    first = main_clause(said)
    conjunction = draw.pick(_CONJUNCTIONS[time])
    second = adjunct(conjunction, linked(draw, said, conjunction.time, conjunction.tense))
    tree = f"{first.tree[:-1]} {second.tree})"
    return Text(f"{first.english} {second.english}", tree, first.german + second.german, first.labels | second.labels)


def clause_before(draw: Draw, time: str) -> Text:
    """When ..., ...: the whole clause fills the first place, the verb follows it."""
    conjunction = _SINCE if time == "present" and draw.random() < 0.35 else draw.pick(_CONJUNCTIONS[time])
    verb = draw.pick(draw.lexicon.simple)
    dated = conjunction.tense is None
    said = clause_of(draw, verb, draw.subject(verb.subjects), conjunction.time, 1, dated=dated, tense=conjunction.tense)
    front = adjunct(conjunction, said.clause)
    return fronted(front._replace(german=front.german[2:]), linked(draw, said, time, None), comma=True)


def adjunct(conjunction: Conjunction, clause: Clause) -> Text:
    """A subordinate clause."""
    return subordinate(conjunction.english, conjunction.tag, conjunction.german, clause, conjunction.labels)


def linked(draw: Draw, said: Drawn, time: str, tense: int | None) -> Clause:
    """A clause about the subject of the one before, now a pronoun, or about another; with another verb.

    A pronoun always means that subject: what is "short", or "eats", is not the same of things and of people.
    """
    before = said.clause.subject
    if before.pronoun and draw.random() < 0.5:
        verb = verb_for(draw, before, clausal=False)
        if verb is not said.verb:
            return clause_of(draw, verb, again(before), time, 1, dated=tense is None, tense=tense).clause
    verb = draw.pick(draw.lexicon.simple)
    subject = draw.subject(verb.subjects)
    if subject.is_pronoun and subject.pronoun and subject.pronoun == before.pronoun:
        subject = draw.name(NOMINATIVE)
    return clause_of(draw, verb, subject, time, 1, dated=tense is None, tense=tense).clause


def two_verbs(draw: Draw, time: str) -> Text:
    """One subject that does two things."""
    drawn = any_clause(draw, time)
    first = drawn.clause
    verb = verb_for(draw, first.subject, clausal=False) if first.subject.pronoun else drawn.verb
    if verb is drawn.verb or first.tail or first.subject.denies:
        return statement(first)
    second = clause_of(draw, verb, first.subject, time, 1, dated=False).clause
    return Text(
        f"{first.english()} and{second.verb_phrase()}",
        f"(S {first.subject.tree} (VP{first.verb_phrase_tree()} (CC and){second.verb_phrase_tree()}))",
        f"{first.subject_first()} und{second.after_subject()}",
        first.labels | second.labels,
    )


def consequence(draw: Draw, time: str) -> Text:
    """..., so ...: ..., deshalb ..., verb second."""
    said = any_clause(draw, time)
    first, second = said.clause, linked(draw, said, time, None)
    return Text(
        f"{first.english()}, so {second.english()}",
        f"(S (S {first.tree()}) (, ,) (CC so) (S {second.tree()}))",
        f"{first.subject_first()}, deshalb {second.verb_first()}",
        first.labels | second.labels | phenomena.VERB_SECOND,
    )


def thing(draw: Draw, time: str) -> Text:
    """Somebody does something to a thing, and "it" follows: er, sie or es by the thing's gender."""
    noun = draw.noun(_THINGS)
    verb = draw.pick(draw.lexicon.handling[noun.kind])
    subject = draw.subject(SOMEBODY)
    what = draw.with_determiner(noun, _ONE, ACCUSATIVE, subject.pronoun)
    tense = tense_for(draw, verb, subject, time)
    first = assemble(verb, subject, verb.forms[tense * 6 + subject.person], of_object(verb, what), None, False, None)
    other = draw.pick(draw.lexicon.handling[noun.kind])
    if other is not verb and draw.random() < 0.4:
        form = other.forms[tense * 6 + subject.person]
        second = assemble(other, subject, form, of_object(other, pronoun("it", noun, ACCUSATIVE)), None, False, None)
        return Text(
            f"{first.english()} and{second.verb_phrase()}",
            f"(S {subject.tree} (VP{first.verb_phrase_tree()} (CC and){second.verb_phrase_tree()}))",
            f"{first.subject_first()} und{second.after_subject()}",
            first.labels | second.labels,
        )
    state = clause_of(
        draw, draw.lexicon.be, pronoun("it", noun, NOMINATIVE), "past" if time in ("past", "recent") else "present", 1, dated=False
    ).clause
    if draw.random() < 0.5:
        reason = subordinate("because", "IN", "weil", state)
        tree = f"(S {first.tree()} {reason.tree})"
        return Text(f"{first.english()} {reason.english}", tree, first.subject_first() + reason.german, first.labels | reason.labels)
    return Text(
        f"{first.english()}, but {state.english()}",
        f"(S (S {first.tree()}) (, ,) (CC but) (S {state.tree()}))",
        f"{first.subject_first()}, aber {state.subject_first()}",
        first.labels | state.labels,
    )


def purpose(draw: Draw, time: str) -> Text:
    """... in order to ...: ..., um ... zu ..."""
    verb = draw.pick(draw.lexicon.activities)
    subject = draw.subject(SOMEBODY)
    first = clause_of(draw, verb, subject, time, 1).clause
    aim = infinitive_clause(draw, subject, time, 1)
    return Text(
        f"{first.english()} in order{aim.english}",
        f"(S {first.tree()} (SBAR (IN in) (NN order){aim.tree}))",
        f"{first.subject_first()}, um{aim.tail[1:]}",
        first.labels | aim.labels,
    )


def object_first(draw: Draw, time: str) -> Text:
    """This book I have already read: Dieses Buch habe ich schon gelesen."""
    verb = draw.pick(draw.lexicon.transitive)
    noun = draw.noun(tuple(kind for kind in verb.objects if kind not in (*PEOPLE, "amount", "period")))
    number = int(noun.counted and draw.random() < 0.3)
    what = noun_phrase(THESE if number else THIS, draw.adjectives(noun), noun, number, ACCUSATIVE)
    subject = (
        draw.name(NOMINATIVE) if draw.random() < 0.3 else pronoun(draw.pick(("i", "we", "she", "he", "they")), draw.somebody, NOMINATIVE)
    )
    clause = clause_of(draw, verb, subject, time, 1, hole=True).clause
    return fronted(Text(what.english, what.tree, what.german, what.labels), clause, comma=False)


def existence(draw: Draw, time: str) -> Text:
    """There is a museum in the city: In der Stadt gibt es ein Museum."""
    what = draw.with_determiner(draw.noun(("building", "firm", "plant", "animal", "vehicle", "person")), _SOME_THINGS, ACCUSATIVE, "")
    place = where(draw, ("city", "settlement", "nature"))
    plural = what.person == SIE
    past = time in ("past", "recent")
    verb, tag = (("were" if plural else "was"), "VBD") if past else ("are", "VBP") if plural else ("is", "VBZ")
    return Text(
        f"there {verb} {what.english} {place.english}",
        f"(S (NP (EX there)) (VP ({tag} {verb}) {what.tree} {place.tree}))",
        f"{place.german} {'gab' if past else 'gibt'} es {what.german}",
        what.labels | place.labels | phenomena.VERB_SECOND,
    )


_KINDS: tuple[Kind, ...] = tuple(
    kind
    for kind, weight in (
        (plain, 38),
        (attitude, 5),
        (clause_behind, 14),
        (clause_before, 11),
        (two_verbs, 7),
        (consequence, 5),
        (thing, 8),
        (purpose, 4),
        (object_first, 4),
        (existence, 4),
    )
    for _ in range(weight)
)
