"""The recursive part of the grammar: clauses, the clauses in them, and noun phrases with relative clauses.

In all functions, `time` is past, recent (which has a perfect), present or future; `depth` is the number of clauses around one, and deeper
clauses are simpler.
"""

import re
from functools import cache

from transformer_core.synthetic import phenomena
from transformer_core.synthetic.clauses import NOT, Clause, Complement, assemble, object_case, subordinate
from transformer_core.synthetic.conjugation import Tense
from transformer_core.synthetic.lexicon import CLAUSAL, GAPS, PEOPLE, Adjective, Lexicon, Noun, Text, Verb, adverbials, conjunctions
from transformer_core.synthetic.morphology import ACCUSATIVE, DATIVE, ER, NOMINATIVE, RELATIVE_PRONOUNS, SIE, WIR, cells
from transformer_core.synthetic.phrases import BARE, NOT_A, NOT_BARE, A, NounPhrase, noun_phrase, pronoun
from transformer_core.synthetic.sampling import SOMEBODY, Sampler

# Frames that are never negated, like amounts: the negation would be of the number or the game.
_POSITIVE = ("m", "play")
# Subjects whose verb is never negated: "every man does not" could mean two things.
_WHOLE = ("(NP (DT every)", "(NP (DT all)", "(NP (NP (DT every)", "(NP (NP (DT all)")
# Names and noun phrases with an owner: they take no relative clause.
_CLOSED = re.compile(r"^\(NP \(NNP|\(PRP\$|\(POS")
_RELATIVE_PRONOUNS = cells("", RELATIVE_PRONOUNS)
# Frames that are in the present where their clause is in the future: she hopes that it will rain.
_OF_NOW = ("c", "w")


def verb_for(sampler: Sampler, subject: NounPhrase) -> Verb:
    """Draw a verb that suits a subject and takes no clause."""
    return sampler.pick(sampler.lexicon.by_subject[subject.noun.kind])


def main_clause(sampler: Sampler, time: str, *, front: bool = False) -> Clause:
    """Draw a clause with its subject and verb; `front`: an adverbial may come before it."""
    verb = sampler.pick(sampler.lexicon.weighted)
    subject = sampler.subject(verb.subjects)
    if not subject.is_pronoun and sampler.random() < 0.06:
        subject = with_relative(sampler, subject, time, 0)
        subject = subject._replace(german=subject.german + subject.tail)
    return clause_of(sampler, verb, time, 0, subject=subject, front=front)


def clause_of(
    sampler: Sampler,
    verb: Verb,
    time: str,
    depth: int = 1,
    *,
    subject: NounPhrase | None = None,
    front: bool = False,
    hole: bool = False,
    question: bool = False,
    dated: bool = True,
    tense: Tense | None = None,
) -> Clause:
    """Draw the rest of a clause of a verb.

    Args:
        subject: in the nominative, one that suits the verb; drawn if None.
        front: whether an adverbial may come before the clause.
        hole: whether the object is left out, because a relative or question word replaces it.
        question: whether English has an auxiliary before the subject.
        dated: whether there may be an adverbial of time.
        tense: drawn if None; a clause with a given tense is not negated.
    """
    subject = subject or sampler.subject(verb.subjects)
    deniable = tense is None and not subject.negative and not (hole and question) and not subject.tree.startswith(_WHOLE)
    if tense is None:
        tense = tense_for(sampler, verb, subject, time)
    deniable = deniable and tense != "since" and verb.frame not in _POSITIVE and "amount" not in verb.objects
    negated = deniable and sampler.random() < 0.16
    found = Complement.gap(verb) if hole else _complement(sampler, verb, subject, time, negated, depth)
    middle = NOT if negated else None if subject.negative or found.negative else _middle_adverb(sampler, verb, tense)
    dated = dated and (middle is None or (negated and tense != "present"))
    when = _time(sampler, verb, tense, time) if dated else None
    before = None
    if when is not None and (front and sampler.random() < 0.4):
        before, when = when, None
    elif when is not None and found.tail:
        when = None
    return assemble(verb, subject, tense, found, middle, when, front=before, question=question)


def tense_for(sampler: Sampler, verb: Verb, subject: NounPhrase, time: str) -> Tense:
    """Draw a tense that suits verb and time."""
    chance = sampler.random()
    modal = not verb.state and subject.pronoun and subject.noun.kind in PEOPLE and verb.frame != "adj"
    options: tuple[Tense, ...]
    if time == "recent" and not verb.state and chance < 0.7:
        return "perfect"
    if time in ("past", "recent"):
        options = ("could", "had to", "wanted")
        return sampler.pick(options) if chance < 0.18 and modal else "past"
    if time == "future" and verb.frame not in _OF_NOW:
        options = ("want", "can", "must")
        return sampler.pick(options) if chance < 0.25 and modal else "future"
    if verb.lasting and chance < 0.2:
        return "since"
    if verb.state:
        # Where past and present are equal ("cost"), "these books cost ..." would have two translations.
        return "present" if verb.simple_present or subject.person == ER else "future"
    if chance < 0.3 and modal:
        options = ("can", "must", "should", "want", "may")
        return sampler.pick(options)
    return "present" if verb.simple_present and chance < 0.65 else "progressive"


def _middle_adverb(sampler: Sampler, verb: Verb, tense: Tense) -> Text | None:
    """Draw an adverb before the English main verb, or None: often reads, has already read."""
    if tense == "perfect":
        return sampler.pick(adverbials("perfect"))
    if tense == "present" and not verb.state and sampler.random() < 0.5:
        return sampler.pick(adverbials("frequency"))
    return None


def _time(sampler: Sampler, verb: Verb, tense: Tense, time: str) -> Text | None:
    """Draw an adverbial of time, or None."""
    if tense == "since":
        return sampler.duration(past=False)
    if tense == "perfect" or verb.frame == "m":
        return None
    if time in ("past", "recent"):
        if verb.lasting and sampler.random() < 0.2:
            return sampler.duration(past=True)
        if verb.state:
            return sampler.pick(adverbials("past")) if sampler.random() < 0.3 else None
        return sampler.time("past") if sampler.random() < 0.62 else None
    if time == "future" and verb.frame not in _OF_NOW:
        return sampler.time("future") if sampler.random() < 0.6 else None
    if verb.state:
        return None
    if tense == "present":
        return sampler.time("habit")
    return sampler.time("present") if sampler.random() < 0.3 else None


def _complement(sampler: Sampler, verb: Verb, subject: NounPhrase, time: str, negated: bool, depth: int) -> Complement:
    """Draw the complement of a verb: noun phrases, an adverbial or a clause."""
    if verb.frame in GAPS:
        table = "" if verb.frame == "a" else "plain"
        found = sampler.object(verb.objects, object_case(verb), subject.pronoun, table, negated)
        if depth < 2 and not found.is_pronoun and sampler.random() < (0.2 if depth == 0 else 0.12):
            found = with_relative(sampler, found, time, depth)
        return Complement.of_preposition(verb, found) if verb.frame == "p" else Complement.of_object(verb, found)
    if verb.frame not in CLAUSAL:
        return _phrase(sampler, verb, subject, negated)
    if verb.frame == "z":
        return infinitive_clause(sampler, subject, time, depth)
    conjunction = sampler.pick(conjunctions("that" if verb.frame == "c" else "question"))
    dated = conjunction.german != "wann"
    if sampler.random() < 0.3:
        subject = again(subject)
        verb = verb_for(sampler, subject)
        inner = clause_of(sampler, verb, time, depth + 1, subject=subject, dated=dated)
    else:
        inner = clause_of(sampler, sampler.pick(sampler.lexicon.simple), time, depth + 1, dated=dated)
    text = subordinate(conjunction, inner)
    return Complement(text.tree, tail=text.german, labels=text.labels)


def _phrase(sampler: Sampler, verb: Verb, subject: NounPhrase, negated: bool) -> Complement:
    """Draw the complement of a verb with another frame (see `words/verbs.tsv`); `negated`: an indefinite object takes kein."""
    match verb.frame:
        case "da" | "to":
            return _dative_accusative(sampler, verb, subject, negated)
        case "l":
            return Complement.of_adverbial(sampler.place(verb.objects))
        case "g":
            return Complement.of_adverbial(sampler.place(verb.objects, goal=True))
        case "foot":
            goal = sampler.place(verb.objects, goal=True)
            return Complement.of_adverbial(goal._replace(german=f"zu Fuß {goal.german}"))
        case "by":
            goal, means = sampler.place(verb.objects, goal=True), sampler.pick(adverbials("means"))
            return Complement.of_adverbial(Text(f"{goal.tree} (PP (IN by) {means.tree})", f"{means.german} {goal.german}", goal.labels))
        case "put":
            what = Complement.of_object(verb, sampler.object(verb.objects, ACCUSATIVE, subject.pronoun, negated=negated))
            where = sampler.surface(verb.objects, ACCUSATIVE)
            return what._replace(tree=f"{what.tree} {where.tree}", late=f" {where.german}", labels=what.labels | where.labels)
        case "on":
            return Complement.of_adverbial(sampler.surface(verb.subjects, DATIVE))
        case "play":
            return Complement.of_adverbial(sampler.pick(adverbials("game")))
        case "adj":
            found = sampler.pick(_predicates(verb, subject.noun))
            return Complement.of_adverbial(Text(f"(ADJP {found.tree})", found.german, found.labels))
        case "job":
            return _job(sampler, verb, subject, negated)
        case "m":
            unit, low, high = verb.objects
            amount = sampler.amount(unit, int(low), int(high))
            return Complement.of_adverbial(Text(amount.tree, amount.german, amount.labels))
        case _:
            return Complement()


def _dative_accusative(sampler: Sampler, verb: Verb, subject: NounPhrase, negated: bool) -> Complement:
    whom = sampler.object(SOMEBODY, DATIVE, subject.pronoun, "plain")
    what = sampler.object(verb.objects, ACCUSATIVE, subject.pronoun, negated=negated)
    tree = f"{what.tree} (PP (TO to) {whom.tree})" if verb.frame == "to" else f"{whom.tree} {what.tree}"
    early, definite = (f" {whom.german}", "") if whom.is_pronoun else ("", f" {whom.german}")
    indefinite = f" {what.german}"
    if what.definite:
        definite, indefinite = definite + indefinite, ""
    return Complement(tree, early, definite, indefinite, labels=whom.labels | what.labels, negative=what.negative)


@cache
def _predicates(verb: Verb, noun: Noun) -> tuple[Adjective, ...]:
    """Return the adjectives that can be predicates of a noun with a verb."""
    return tuple(adjective for adjective in noun.predicates if not verb.objects or adjective.english in verb.objects)


def _job(sampler: Sampler, verb: Verb, subject: NounPhrase, negated: bool) -> Complement:
    woman = subject.pronoun == "she" or (subject.pronoun == "they" and subject.noun.pronoun == "she")
    noun = sampler.pick(_jobs(sampler.lexicon, "she" if woman else "he"))
    plural = subject.person in (WIR, SIE)
    determiner = (NOT_BARE if negated else BARE) if plural else (NOT_A if negated else A)
    found = noun_phrase(determiner, (sampler.pick(_predicates(verb, noun)),), noun, int(plural), NOMINATIVE)
    return Complement.of_adverbial(Text(found.tree, found.german, found.labels))._replace(negative=found.negative)


@cache
def _jobs(words: Lexicon, sex: str) -> tuple[Noun, ...]:
    """Return the jobs of a man ("he") or a woman ("she")."""
    return tuple(noun for noun in words.nouns["person"] if noun.job and noun.pronoun == sex)


def again(subject: NounPhrase) -> NounPhrase:
    """Return the pronoun of a subject that was mentioned, or the subject itself if it has none."""
    return pronoun(subject.pronoun, subject.noun, NOMINATIVE) if subject.pronoun else subject


def infinitive_clause(sampler: Sampler, subject: NounPhrase, time: str, depth: int) -> Complement:
    """Draw an infinitive clause whose unspoken subject is that of the clause around it: to buy a car, ein Auto zu kaufen."""
    verb = sampler.pick(sampler.lexicon.activities)
    found = _complement(sampler, verb, subject, time, False, depth + 1)
    dated = time == "future" and not found.tail and sampler.random() < 0.3
    when = sampler.pick(adverbials("future")) if dated else None
    silent = subject._replace(tree="", german="", is_pronoun=True, labels=0)
    clause = assemble(verb, silent, "infinitive", found, when=when)
    return Complement(clause.verb_phrase(), tail=f",{clause.verb_last()},", labels=clause.labels | phenomena.INFINITIVE_CLAUSE)


def with_relative(sampler: Sampler, head: NounPhrase, time: str, depth: int) -> NounPhrase:
    """Add a relative clause to a noun phrase; names, amounts and noun phrases with an owner are returned unchanged."""
    noun, time = head.noun, "present" if time == "future" else time
    if not head.pronoun or _CLOSED.search(head.tree):
        return head
    human = noun.kind in PEOPLE
    verbs = sampler.lexicon.by_object[noun.kind]
    if sampler.lexicon.by_subject[noun.kind] and (not verbs or sampler.random() < 0.5):
        word = "(WP who)" if human else "(WDT that)"
        subject = head._replace(tree="", german=_RELATIVE_PRONOUNS[head.gender * 4], is_pronoun=True, labels=0)
        clause = clause_of(sampler, verb_for(sampler, subject), time, depth + 1, subject=subject)
        german = clause.verb_last()
    else:
        word = "(WP whom)" if human else "(WDT that)"
        verb = sampler.pick(verbs)
        clause = clause_of(sampler, verb, time, depth + 1, hole=True)
        preposition = f"{verb.german_preposition[:-1]} " if verb.frame == "p" else ""
        german = f"{preposition}{_RELATIVE_PRONOUNS[head.gender * 4 + object_case(verb)]} {clause.verb_last()}"
    labels = head.labels | clause.labels | phenomena.RELATIVE_CLAUSE | phenomena.VERB_LAST
    tree = f"(NP {head.tree} (SBAR (WHNP {word}) (S {clause.tree()})))"
    return head._replace(tree=tree, tail=f", {german},", labels=labels)
