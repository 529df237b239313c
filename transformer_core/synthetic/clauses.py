"""Clauses: the parts of one clause in both languages, and the orders in which German puts them.

German parts bring the blank before them along, so that a part that is empty leaves no trace; in trees there may be too many blanks. A
German subordinate clause brings both its commas. `sentences.finish` tidies blanks in trees and, of German marks that meet, leaves the last.
"""

from typing import NamedTuple

from transformer_core.synthetic import phenomena
from transformer_core.synthetic.conjugation import Tense, VerbForm
from transformer_core.synthetic.lexicon import Conjunction, Text, Verb, case_of
from transformer_core.synthetic.morphology import ACCUSATIVE, DATIVE
from transformer_core.synthetic.phrases import NounPhrase, preposition, prepositional

NOT = Text("(RB not)", " nicht", phenomena.NEGATION_NICHT)


class Complement(NamedTuple):
    """The complement of a verb. English comes after the verb; German in the middle of the clause, by rank.

    Pronouns come `early`, before adverbials of time; `definite` noun phrases after these, or before them where there is a "not" or an
    adverb like "already"; then `indefinite` ones; predicates, goals and prepositional objects come `late`, after "nicht"; clauses
    after the closing verb (`tail`). `negative`: there is a kein.
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
        """One object, accusative or dative as its phrase already is."""
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
        """A prepositional object in German: waits for the bus, wartet auf den Bus; remembers her, erinnert sich an sie."""
        inner = prepositional(verb.preposition, verb.german_preposition[:-1], found)
        tree = inner.tree if verb.preposition else found.tree
        return cls(tree, late=f" {inner.german}", tail=found.tail, labels=inner.labels, negative=found.negative)

    @classmethod
    def gap(cls, verb: Verb) -> "Complement":
        """The object is a relative or question word elsewhere; a preposition stays behind in English."""
        return cls(f"(PP {preposition(verb.preposition)})" if verb.preposition else "")

    @classmethod
    def of_adverbial(cls, adverbial: Text) -> "Complement":
        """A complement that comes after "nicht"."""
        return cls(adverbial.tree, late=f" {adverbial.german}", labels=adverbial.labels)


class Clause(NamedTuple):
    """A clause without its order.

    English is subject + auxiliary + `adverb` + main verb + `rest`. German is subject, finite verb, `reflexive`, `middle`, the verb's
    second part and `tail`, or with the finite verb after all but the tail. `front` is an adverbial that is to come before the clause.
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
        """The English statement: a noun phrase and a verb phrase."""
        return f"{self.subject.tree} {self.verb_phrase()}"

    def verb_phrase(self) -> str:
        """The English statement without its subject."""
        form = self.form
        if form.auxiliary:
            return f"(VP {form.auxiliary} {self.adverb} {form.main} {self.rest}{form.close})"
        return f"{self.adverb} {form.main} {self.rest}{form.close}"

    def question(self) -> str:
        """English with the auxiliary before the subject."""
        form = self.form
        return f"(SQ {form.auxiliary} {self.subject.tree} {self.adverb} {form.main} {self.rest}{form.close})"

    def subject_first(self) -> str:
        """German main clause that starts with its subject."""
        return f"{self.subject.german}{self.after_subject()}"

    def after_subject(self) -> str:
        """The same without its subject, a blank before it."""
        return f" {self.form.finite}{self.reflexive}{self.middle}{self.form.bracket}{self.tail}"

    def verb_first(self) -> str:
        """German from the finite verb on, the subject behind it: a question, or what follows when something else comes first."""
        return f"{self.form.finite} {self._subject_and_reflexive()}{self.middle}{self.form.bracket}{self.tail}"

    def verb_last(self) -> str:
        """German subordinate clause without its conjunction and commas."""
        return f"{self._subject_and_reflexive()}{self.middle} {self.form.last}{self.tail}"

    def _subject_and_reflexive(self) -> str:
        """Behind a verb or a conjunction, "sich" goes before a subject that is not a pronoun."""
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
    """Put a clause together from its parts; `middle` is an adverb or NOT. A kein takes the place of nicht."""
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
    """A main clause that starts with its subject, or with the adverbial in its front; English parts one of several words with a comma."""
    if clause.front is not None:
        return fronted(clause.front, clause, comma=clause.front.tree.count(")") > 2)
    return Text(f"(S {clause.tree()})", clause.subject_first(), clause.labels)


def fronted(front: Text, clause: Clause, comma: bool) -> Text:
    """A main clause that starts with something else; German has the verb second."""
    tree = f"(S {front.tree}{' (, ,)' if comma else ''} {clause.tree()})"
    return Text(tree, f"{front.german} {clause.verb_first()}", front.labels | clause.labels | phenomena.VERB_SECOND)


def subordinate(conjunction: Conjunction, clause: Clause) -> Text:
    """A conjunction and its clause; German with both commas and the verb last."""
    tree = f"(SBAR {conjunction.tree} (S {clause.tree()}))"
    return Text(tree, f", {conjunction.german} {clause.verb_last()},", clause.labels | conjunction.labels | phenomena.VERB_LAST)


def object_case(verb: Verb) -> int:
    """The case of the object that a gap is left for."""
    return case_of(verb.german_preposition) if verb.frame == "p" else DATIVE if verb.frame == "d" else ACCUSATIVE
