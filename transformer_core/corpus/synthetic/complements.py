"""What a verb takes, frame by frame (see `verbs`), and how it is arranged in German."""

from functools import cache

from transformer_core.corpus.synthetic import adverbials
from transformer_core.corpus.synthetic.circumstances import fixed, goal_of, surface, where
from transformer_core.corpus.synthetic.clauses import Complement
from transformer_core.corpus.synthetic.draws import SOMEBODY, Draw
from transformer_core.corpus.synthetic.morphology import ACCUSATIVE, DATIVE, NOMINATIVE, SIE, WIR
from transformer_core.corpus.synthetic.phrases import (
    BARE,
    NOT_A,
    NOT_BARE,
    A,
    NounPhrase,
    Text,
    noun_phrase,
    preposition_tag,
    prepositional,
)
from transformer_core.corpus.synthetic.words import Adjective, Lexicon, Noun, Verb


def complement(draw: Draw, verb: Verb, subject: NounPhrase, negated: bool) -> Complement:
    """What a verb takes that takes neither one object nor a clause; with `negated` an indefinite object becomes kein."""
    match verb.frame:
        case "da" | "to":
            return _dative_accusative(draw, verb, subject, negated)
        case "l":
            return late(where(draw, verb.objects))
        case "g":
            return late(goal_of(draw, verb.objects))
        case "foot":
            goal = goal_of(draw, verb.objects)
            return late(goal, f"zu Fuß {goal.german}")
        case "by":
            return _by(draw, verb)
        case "put":
            return _put(draw, verb, subject, negated)
        case "on":
            return late(surface(draw, _surfaces(verb.subjects), DATIVE))
        case "play":
            return late(draw.pick(fixed(adverbials.GAMES)))
        case "adj":
            return _adjective(draw, verb, subject)
        case "job":
            return _job(draw, verb, subject, negated)
        case "m":
            return _measure(draw, verb)
        case _:
            return Complement()


def of_object(verb: Verb, found: NounPhrase) -> Complement:
    """One object, accusative or dative as its phrase already is."""
    english, tree = f" {found.english}", f" {found.tree}"
    if verb.preposition:
        english = f" {verb.preposition}{english}"
        tree = f" (PP ({preposition_tag(verb.preposition)} {verb.preposition}){tree})"
    german = f" {found.german}"
    if found.is_pronoun:
        return Complement(english, tree, early=german, labels=found.labels)
    if found.definite:
        return Complement(english, tree, definite=german, tail=found.german_tail, labels=found.labels)
    return Complement(english, tree, indefinite=german, tail=found.german_tail, labels=found.labels, denies=found.denies)


def gap(verb: Verb) -> Complement:
    """The object is a relative or question word elsewhere; a preposition stays behind in English."""
    if not verb.preposition:
        return Complement()
    return Complement(f" {verb.preposition}", f" (PP ({preposition_tag(verb.preposition)} {verb.preposition}))")


def late(adverbial: Text, german: str | None = None) -> Complement:
    """A complement that stands after "nicht"."""
    return Complement(f" {adverbial.english}", f" {adverbial.tree}", late=f" {german or adverbial.german}", labels=adverbial.labels)


def object_case(verb: Verb) -> int:
    """The case of the object that a gap stands for."""
    if verb.frame == "p":
        return ACCUSATIVE if verb.german_preposition.endswith("4") else DATIVE
    return DATIVE if verb.frame == "d" else ACCUSATIVE


def of_preposition(verb: Verb, found: NounPhrase) -> Complement:
    """A prepositional object in German: waits for the bus, wartet auf den Bus; remembers her, erinnert sich an sie."""
    inner = late(prepositional(verb.preposition, verb.german_preposition[:-1], found))
    if not verb.preposition:
        inner = inner._replace(english=f" {found.english}", tree=f" {found.tree}")
    return inner._replace(tail=found.german_tail, denies=found.denies)


def _dative_accusative(draw: Draw, verb: Verb, subject: NounPhrase, negated: bool) -> Complement:
    whom = draw.object(SOMEBODY, DATIVE, subject.pronoun, "plain")
    what = draw.object(verb.objects, ACCUSATIVE, subject.pronoun, negated=negated)
    to = verb.frame == "to"
    english = f" {what.english} to {whom.english}" if to else f" {whom.english} {what.english}"
    tree = f" {what.tree} (PP (TO to) {whom.tree})" if to else f" {whom.tree} {what.tree}"
    early, definite = (f" {whom.german}", "") if whom.is_pronoun else ("", f" {whom.german}")
    indefinite = f" {what.german}"
    if what.definite:
        definite, indefinite = definite + indefinite, ""
    return Complement(english, tree, early, definite, indefinite, labels=whom.labels | what.labels, denies=what.denies)


def _by(draw: Draw, verb: Verb) -> Complement:
    goal, means = goal_of(draw, verb.objects), draw.pick(fixed(adverbials.MEANS))
    english, tree = f" {goal.english} by {means.english}", f" {goal.tree} (PP (IN by) {means.tree})"
    return Complement(english, tree, late=f" {means.german} {goal.german}", labels=goal.labels)


def _put(draw: Draw, verb: Verb, subject: NounPhrase, negated: bool) -> Complement:
    what = of_object(verb, draw.object(verb.objects, ACCUSATIVE, subject.pronoun, negated=negated))
    return _joined(what, late(surface(draw, _surfaces(verb.objects), ACCUSATIVE)))


def _surfaces(kinds: tuple[str, ...]) -> tuple[str, ...]:
    return ("wall",) if "hanging" in kinds else ("furniture",)


def _joined(what: Complement, where: Complement) -> Complement:
    return what._replace(
        english=what.english + where.english, tree=what.tree + where.tree, late=where.late, labels=what.labels | where.labels
    )


@cache
def predicates(verb: Verb, noun: Noun) -> tuple[Adjective, ...]:
    """The adjectives that a verb can say of a noun."""
    return tuple(adjective for adjective in noun.predicates if not verb.objects or adjective.english[:-1] in verb.objects)


def _adjective(draw: Draw, verb: Verb, subject: NounPhrase) -> Complement:
    found = draw.pick(predicates(verb, subject.noun))
    word = found.english[:-1]
    return Complement(f" {word}", f" (ADJP (JJ {word}))", late=f" {found.predicate}", labels=found.labels)


def _job(draw: Draw, verb: Verb, subject: NounPhrase, negated: bool) -> Complement:
    woman = subject.pronoun == "she" or (subject.pronoun == "they" and subject.noun.pronoun == "she")
    noun = draw.pick(jobs(draw.lexicon, "she" if woman else "he"))
    plural = subject.person in (WIR, SIE)
    determiner = (NOT_BARE if negated else BARE) if plural else (NOT_A if negated else A)
    found = noun_phrase(determiner, (draw.pick(predicates(verb, noun)),), noun, int(plural), NOMINATIVE)
    return Complement(f" {found.english}", f" {found.tree}", late=f" {found.german}", labels=found.labels, denies=found.denies)


@cache
def jobs(words: Lexicon, sex: str) -> tuple[Noun, ...]:
    """What a man ("he") or a woman ("she") may be."""
    return tuple(noun for noun in words.nouns["person"] if noun.job and noun.pronoun == sex)


def _measure(draw: Draw, verb: Verb) -> Complement:
    unit, low, high = verb.objects
    found = draw.amount(unit, int(low), int(high))
    return Complement(f" {found.english}", f" {found.tree}", late=f" {found.german}", labels=found.labels)
