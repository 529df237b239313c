"""Clauses: the parts of one clause in both languages, and their word orders in German.

A German part begins with a blank, so that an empty part adds nothing. A German subordinate clause has a comma on both sides;
`sentences.finish` keeps the last of adjacent marks. Trees may have too many blanks, which `sentences.finished_tree` removes.
"""

from typing import NamedTuple

from transformer_core.synthetic import phenomena
from transformer_core.synthetic.conjugation import Tense, VerbForm
from transformer_core.synthetic.lexicon import Conjunction, Text, Verb, case_of
from transformer_core.synthetic.morphology import ACCUSATIVE, DATIVE
from transformer_core.synthetic.phrases import NounPhrase, preposition, prepositional

NOT = Text("(RB not)", " nicht", phenomena.NEGATION_NICHT)


class Complement(NamedTuple):
    """The complement of a verb: after the verb in English (`tree`), in up to five places of the clause in German.

    The German order is: pronouns (`early`), adverbials of time, `definite` noun phrases (before the time if the clause has "not" or an
    adverb like "already"), `indefinite` noun phrases, "nicht", then predicates, goals and prepositional objects (`late`); clauses come
    after the final verb (`tail`). `negative`: whether it contains kein.
    """

    tree: str = ""
    early: str = ""
    definite: str = ""
    indefinite: str = ""
    late: str = ""
    tail: str = ""
    labels: int = 0
    negative: bool = False

    @classmethod
    def of_object(cls, verb: Verb, found: NounPhrase) -> "Complement":
        """Return the complement of one object, whose phrase is in the accusative or the dative."""
        tree = found.tree
        if verb.preposition:
            tree = f"(PP {preposition(verb.preposition)} {tree})"
        if found.is_pronoun:
            return cls(tree, early=f" {found.german}", labels=found.labels)
        if found.definite:
            return cls(tree, definite=f" {found.german}", tail=found.tail, labels=found.labels)
        return cls(tree, indefinite=f" {found.german}", tail=found.tail, labels=found.labels, negative=found.negative)

    @classmethod
    def of_preposition(cls, verb: Verb, found: NounPhrase) -> "Complement":
        """Return an object that has a preposition in German: waits for the bus, wartet auf den Bus; remembers her, erinnert sich an sie."""
        inner = prepositional(verb.preposition, verb.german_preposition[:-1], found)
        tree = inner.tree if verb.preposition else found.tree
        return cls(tree, late=f" {inner.german}", tail=found.tail, labels=inner.labels, negative=found.negative)

    @classmethod
    def gap(cls, verb: Verb) -> "Complement":
        """Return the complement of a verb whose object is a relative or question word elsewhere: the English preposition, if any."""
        return cls(f"(PP {preposition(verb.preposition)})" if verb.preposition else "")

    @classmethod
    def of_adverbial(cls, adverbial: Text) -> "Complement":
        """Return an adverbial as a complement, in German after "nicht"."""
        return cls(adverbial.tree, late=f" {adverbial.german}", labels=adverbial.labels)


class Clause(NamedTuple):
    """A clause before its parts are put in order.

    English is subject, auxiliary, `adverb`, main verb, `rest`. German is subject, finite verb, `reflexive`, `middle`, the verb's second
    part, `tail`; in a subordinate clause the finite verb comes directly before the tail. `front` is an adverbial before the clause.
    """

    verb: Verb
    subject: NounPhrase
    form: VerbForm
    adverb: str
    rest: str
    middle: str
    tail: str
    labels: int
    front: Text | None = None

    @property
    def reflexive(self) -> str:
        """The German reflexive pronoun, "" for most verbs."""
        return self.verb.reflexives[self.subject.person]

    def tree(self) -> str:
        """Return the English statement: a noun phrase and a verb phrase."""
        return f"{self.subject.tree} {self.verb_phrase()}"

    def verb_phrase(self) -> str:
        """Return the English statement without its subject."""
        form = self.form
        if form.auxiliary:
            return f"(VP {form.auxiliary} {self.adverb} {form.main} {self.rest}{form.close})"
        return f"{self.adverb} {form.main} {self.rest}{form.close}"

    def question(self) -> str:
        """Return the English question: the auxiliary before the subject."""
        form = self.form
        return f"(SQ {form.auxiliary} {self.subject.tree} {self.adverb} {form.main} {self.rest}{form.close})"

    def subject_first(self) -> str:
        """Return the German main clause that starts with its subject."""
        return f"{self.subject.german}{self.after_subject()}"

    def after_subject(self) -> str:
        """Return `subject_first` without the subject; it begins with a blank."""
        return f" {self.form.finite}{self.reflexive}{self.middle}{self.form.bracket}{self.tail}"

    def verb_first(self) -> str:
        """Return the German clause with the finite verb before the subject: a question, or a main clause without its first part."""
        return f"{self.form.finite} {self._subject_and_reflexive()}{self.middle}{self.form.bracket}{self.tail}"

    def verb_last(self) -> str:
        """Return the German subordinate clause without its conjunction and commas."""
        return f"{self._subject_and_reflexive()}{self.middle} {self.form.last}{self.tail}"

    def _subject_and_reflexive(self) -> str:
        """Return German subject and reflexive pronoun: after a verb or a conjunction, "sich" precedes a subject that is not a pronoun."""
        subject, reflexive = self.subject, self.reflexive
        return f"{reflexive[1:]} {subject.german}" if reflexive and not subject.is_pronoun else subject.german + reflexive


def assemble(
    verb: Verb,
    subject: NounPhrase,
    tense: Tense,
    found: Complement,
    middle: Text | None = None,
    when: Text | None = None,
    *,
    front: Text | None = None,
    question: bool = False,
) -> Clause:
    """Assemble a clause from its parts; `middle` is an adverb or NOT. German has kein instead of nicht where there is one."""
    form = (verb.supported if middle is NOT or question else verb.forms)[tense][subject.person]
    labels = subject.labels | form.labels | found.labels
    early, definite, adverb, rest, nicht, german_when = found.early, found.definite, "", found.tree, "", ""
    if when is not None:
        rest, german_when = f"{rest} {when.tree}", f" {when.german}"
        labels |= when.labels
    if middle is not None:
        adverb, early, definite = middle.tree, early + definite, ""
        if middle is not NOT:
            german_when = f" {middle.german}"
        elif not (subject.negative or found.negative):
            nicht = middle.german
            labels |= middle.labels
    field = f"{early}{german_when}{definite}{found.indefinite}{nicht}{found.late}"
    return Clause(verb, subject, form, adverb, rest, field, found.tail, labels, front)


def statement(clause: Clause) -> Text:
    """Return a main clause that starts with its subject or its `front`; in English a comma follows a `front` of several words."""
    if clause.front is not None:
        return fronted(clause.front, clause, comma=clause.front.tree.count(")") > 2)
    return Text(f"(S {clause.tree()})", clause.subject_first(), clause.labels)


def fronted(front: Text, clause: Clause, comma: bool) -> Text:
    """Return a main clause that starts with `front`; German has the verb second."""
    tree = f"(S {front.tree}{' (, ,)' if comma else ''} {clause.tree()})"
    return Text(tree, f"{front.german} {clause.verb_first()}", front.labels | clause.labels | phenomena.VERB_SECOND)


def subordinate(conjunction: Conjunction, clause: Clause) -> Text:
    """Return a conjunction and its clause; German has both commas and the verb last."""
    tree = f"(SBAR {conjunction.tree} (S {clause.tree()}))"
    return Text(tree, f", {conjunction.german} {clause.verb_last()},", clause.labels | conjunction.labels | phenomena.VERB_LAST)


def object_case(verb: Verb) -> int:
    """Return the German case of a verb's object."""
    return case_of(verb.german_preposition) if verb.frame == "p" else DATIVE if verb.frame == "d" else ACCUSATIVE
