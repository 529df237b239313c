"""The recursive part of the grammar: clauses, the clauses that they contain, and the noun phrases with relative clauses in these."""

from typing import NamedTuple

from transformer_core.corpus.synthetic import adverbials, phenomena
from transformer_core.corpus.synthetic.circumstances import duration, fixed, time_of
from transformer_core.corpus.synthetic.clauses import Clause, Complement, subordinate
from transformer_core.corpus.synthetic.complements import complement, gap, object_case, of_object, of_preposition
from transformer_core.corpus.synthetic.conjugation import (
    CAN,
    COULD,
    FUTURE,
    HAD_TO,
    INFINITIVE,
    MAY,
    MUST,
    PAST,
    PERFECT,
    PRESENT,
    PROGRESSIVE,
    SHOULD,
    SINCE,
    WANT,
    WANTED,
    VerbForm,
)
from transformer_core.corpus.synthetic.draws import Draw
from transformer_core.corpus.synthetic.morphology import ER, NOMINATIVE, RELATIVE_PRONOUNS
from transformer_core.corpus.synthetic.phrases import NounPhrase, Text, pronoun
from transformer_core.corpus.synthetic.words import CLAUSAL, GAPS, PEOPLE, Verb

NOT = Text("not", " (RB not)", " nicht", phenomena.NEGATION_NICHT)
# Frames that are never negated, like amounts: the number or the game would be what is denied.
_POSITIVE = ("m", "play")
# Subjects that are not denied anything: "every man does not" could mean two things.
_WHOLE = ("every ", "all ")
# Frames that speak in the present of what will be: she hopes that it will rain.
_OF_NOW = ("c", "w")

# English, tag, German, labels.
_THAT = (("that", "IN", "dass", 0),)
_QUESTIONS = (
    ("whether", "IN", "ob", 0),
    ("whether", "IN", "ob", 0),
    ("when", "WRB", "wann", phenomena.AMBIGUOUS_WORD),
    ("why", "WRB", "warum", 0),
)


class Drawn(NamedTuple):
    """A clause, the adverbial that is to stand before it, if any, and the clause's verb."""

    clause: Clause
    front: Text | None
    verb: Verb


def verb_for(draw: Draw, subject: NounPhrase, clausal: bool) -> Verb:
    """A verb that can be said of a subject."""
    table = draw.lexicon.by_subject if clausal else draw.lexicon.simple_by_subject
    return draw.pick(table[subject.noun.kind])


def any_clause(draw: Draw, time: str, depth: int = 0, *, front: bool = False) -> Drawn:
    """A clause with a subject and a verb of its own.

    Args:
        draw: the choices.
        time: past, recent (which has a perfect), present or future.
        depth: clauses around it; the deeper, the plainer.
        front: whether an adverbial may stand before it.
    """
    verb = draw.pick(draw.lexicon.weighted if depth == 0 else draw.lexicon.simple)
    subject = draw.subject(verb.subjects)
    if depth < 2 and not subject.is_pronoun and draw.random() < 0.06:
        subject = with_relative(draw, subject, time, depth)
        subject = subject._replace(german=subject.german + subject.german_tail)
    return clause_of(draw, verb, subject, time, depth, front=front)


def clause_of(
    draw: Draw,
    verb: Verb,
    subject: NounPhrase,
    time: str,
    depth: int,
    *,
    front: bool = False,
    hole: bool = False,
    question: bool = False,
    dated: bool = True,
    tense: int | None = None,
) -> Drawn:
    """A clause of a verb and its subject; the rest is drawn.

    Args:
        draw: the choices.
        verb: one that can be said of the subject.
        subject: in the nominative.
        time: past, recent, present or future.
        depth: clauses around it.
        front: whether an adverbial may stand before it.
        hole: whether the object is left out, because a relative or question word stands for it.
        question: whether English puts an auxiliary before the subject.
        dated: whether the time may be said.
        tense: the tense, where it is not left to chance; such a clause is not negated.
    """
    deniable = tense is None and not subject.denies and not (hole and question) and not subject.english.startswith(_WHOLE)
    if tense is None:
        tense = tense_for(draw, verb, subject, time)
    deniable = deniable and tense != SINCE and verb.frame not in _POSITIVE and "amount" not in verb.objects
    negated = deniable and draw.random() < 0.16
    found = gap(verb) if hole else complement_of(draw, verb, subject, time, negated, depth)
    denied = subject.denies or found.denies
    middle = NOT if negated else None if denied else middle_adverb(draw, verb, tense)
    dated = dated and (middle is None or (negated and tense != PRESENT))
    when = time_for(draw, verb, tense, time) if dated else None
    before = None
    if when is not None and (front and draw.random() < 0.4):
        before, when = when, None
    elif when is not None and found.tail:
        when = None
    form = (verb.supported if negated or question else verb.forms)[tense * 6 + subject.person]
    return Drawn(assemble(verb, subject, form, found, middle, denied, when), before, verb)


def assemble(
    verb: Verb,
    subject: NounPhrase,
    form: VerbForm,
    found: Complement,
    middle: Text | None,
    denied: bool,
    when: Text | None,
) -> Clause:
    """Put a clause together from its parts; `denied`: a kein has taken the place of nicht."""
    negated = middle is NOT
    labels = subject.labels | form.labels | found.labels
    early, definite, nicht, german_when = found.early, found.definite, "", ""
    english_when = tree_when = ""
    if when is not None:
        english_when, tree_when, german_when = f" {when.english}", f" {when.tree}", f" {when.german}"
        labels |= when.labels
    adverb = adverb_tree = ""
    if middle is not None:
        adverb, adverb_tree = f" {middle.english}", middle.tree if negated else f" {middle.tree}"
        early, definite = early + definite, ""
        if not negated:
            german_when = f" {middle.german}"
        elif not denied:
            nicht = middle.german
            labels |= phenomena.NEGATION_NICHT
    return Clause(
        subject,
        form,
        adverb,
        adverb_tree,
        found.english + english_when,
        found.tree + tree_when,
        verb.reflexives[subject.person],
        f"{early}{german_when}{definite}{found.indefinite}{nicht}{found.late}",
        found.tail,
        labels,
    )


def tense_for(draw: Draw, verb: Verb, subject: NounPhrase, time: str) -> int:
    """A tense that suits verb and time."""
    chance = draw.random()
    modal = not verb.state and subject.pronoun and subject.noun.kind in PEOPLE and verb.frame != "adj"
    if time == "recent" and not verb.state and chance < 0.7:
        return PERFECT
    if time in ("past", "recent"):
        return draw.pick((COULD, HAD_TO, WANTED)) if chance < 0.18 and modal else PAST
    if time == "future" and verb.frame not in _OF_NOW:
        return draw.pick((WANT, CAN, MUST)) if chance < 0.25 and modal else FUTURE
    if verb.lasting and chance < 0.2:
        return SINCE
    if verb.state:
        # "These books cost ..." could be past or present.
        return PRESENT if verb.simple_present or subject.person == ER else FUTURE
    if chance < 0.3 and modal:
        return draw.pick((CAN, MUST, SHOULD, WANT, MAY))
    return PRESENT if verb.simple_present and chance < 0.65 else PROGRESSIVE


def middle_adverb(draw: Draw, verb: Verb, tense: int) -> Text | None:
    """An adverb that stands before the English main verb: often reads, has already read."""
    if tense == PERFECT:
        return draw.pick(fixed(adverbials.PERFECT))
    if tense == PRESENT and not verb.state and draw.random() < 0.5:
        return draw.pick(fixed(adverbials.FREQUENCY))
    return None


def time_for(draw: Draw, verb: Verb, tense: int, time: str) -> Text | None:
    """When something happens, where that is said."""
    if tense == SINCE:
        return duration(draw, "since")
    if tense == PERFECT or verb.frame == "m":
        return None
    if time in ("past", "recent"):
        if verb.lasting and draw.random() < 0.2:
            return duration(draw, "for")
        if verb.state:
            return draw.pick(fixed(adverbials.TIMES["past"])) if draw.random() < 0.3 else None
        return time_of(draw, "past") if draw.random() < 0.62 else None
    if time == "future" and verb.frame not in _OF_NOW:
        return time_of(draw, "future") if draw.random() < 0.6 else None
    if verb.state:
        return None
    if tense == PRESENT:
        return time_of(draw, "habit")
    return time_of(draw, "present") if draw.random() < 0.3 else None


def complement_of(draw: Draw, verb: Verb, subject: NounPhrase, time: str, negated: bool, depth: int) -> Complement:
    """What a verb takes, be it a noun phrase or a clause."""
    if verb.frame in GAPS:
        table = "" if verb.frame == "a" else "plain"
        found = draw.object(verb.objects, object_case(verb), subject.pronoun, table, negated)
        if depth < 2 and not found.is_pronoun and draw.random() < (0.2 if depth == 0 else 0.12):
            found = with_relative(draw, found, time, depth)
        return of_preposition(verb, found) if verb.frame == "p" else of_object(verb, found)
    if verb.frame not in CLAUSAL:
        return complement(draw, verb, subject, negated)
    if verb.frame == "z":
        return infinitive_clause(draw, subject, time, depth)
    english, tag, german, labels = draw.pick(_THAT if verb.frame == "c" else _QUESTIONS)
    if draw.random() < 0.3:
        subject = again(subject)
        inner_verb = verb_for(draw, subject, clausal=False)
    else:
        inner_verb = draw.pick(draw.lexicon.simple)
        subject = draw.subject(inner_verb.subjects)
    inner = clause_of(draw, inner_verb, subject, time, depth + 1, dated=german != "wann").clause
    text = subordinate(english, tag, german, inner, labels)
    return Complement(f" {text.english}", f" {text.tree}", tail=text.german, labels=text.labels)


def again(subject: NounPhrase) -> NounPhrase:
    """A pronoun for someone who was mentioned."""
    return pronoun(subject.pronoun, subject.noun, NOMINATIVE) if subject.pronoun else subject


def infinitive_clause(draw: Draw, subject: NounPhrase, time: str, depth: int) -> Complement:
    """To buy a car: ein Auto zu kaufen, its unspoken subject that of the clause around it."""
    verb = draw.pick(draw.lexicon.activities)
    found = complement_of(draw, verb, subject, time, False, depth + 1)
    dated = time == "future" and not found.tail and draw.random() < 0.3
    when = draw.pick(fixed(adverbials.TIMES["future"])) if dated else None
    silent = subject._replace(english="", tree="", german="", is_pronoun=True, labels=0)
    clause = assemble(verb, silent, verb.forms[INFINITIVE * 6], found, None, False, when)
    return Complement(
        clause.verb_phrase(), clause.verb_phrase_tree(), tail=f",{clause.verb_last()},", labels=clause.labels | phenomena.INFINITIVE_CLAUSE
    )


def with_relative(draw: Draw, head: NounPhrase, time: str, depth: int) -> NounPhrase:
    """A noun phrase with a relative clause behind it; names, amounts and what already belongs to somebody stay as they are."""
    noun, time = head.noun, "present" if time == "future" else time
    if head.tree.startswith("(NP (NNP") or "(PRP$" in head.tree or "(POS" in head.tree or not head.pronoun:
        return head
    human = noun.kind in PEOPLE
    verbs = draw.lexicon.by_object[noun.kind]
    if draw.lexicon.simple_by_subject[noun.kind] and (not verbs or draw.random() < 0.5):
        word = ("who", "WP") if human else ("that", "WDT")
        subject = head._replace(english=word[0], tree="", german=RELATIVE_PRONOUNS[head.gender * 4], is_pronoun=True, labels=0)
        clause = clause_of(draw, verb_for(draw, subject, clausal=False), subject, time, depth + 1).clause
        english, tree, german = clause.english(), f"(S{clause.tree()})", clause.verb_last()
    else:
        word = ("whom", "WP") if human else ("that", "WDT")
        verb = draw.pick(verbs)
        clause = clause_of(draw, verb, draw.subject(verb.subjects), time, depth + 1, hole=True).clause
        relative = RELATIVE_PRONOUNS[head.gender * 4 + object_case(verb)]
        if verb.frame == "p":
            relative = f"{verb.german_preposition[:-1]} {relative}"
        english, tree, german = f"{word[0]} {clause.english()}", f"(S {clause.tree()})", f"{relative} {clause.verb_last()}"
    labels = head.labels | clause.labels | phenomena.RELATIVE_CLAUSE | phenomena.VERB_LAST
    return head._replace(
        english=f"{head.english} {english}",
        tree=f"(NP {head.tree} (SBAR (WHNP ({word[1]} {word[0]})) {tree}))",
        german_tail=f", {german},",
        labels=labels,
    )
