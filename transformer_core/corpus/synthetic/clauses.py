"""Clauses: the parts of one clause in both languages, and the orders in which German puts them.

Parts bring the blank before them along, so that a part that is empty leaves no trace. A German subordinate clause brings both its
commas; `sentences.finish` removes the second where a full stop or another comma follows.
"""

from typing import NamedTuple

from transformer_core.corpus.synthetic import phenomena
from transformer_core.corpus.synthetic.conjugation import VerbForm
from transformer_core.corpus.synthetic.phrases import NounPhrase, Text


class Complement(NamedTuple):
    """What a verb takes. English stands after the verb; German in the middle of the clause, by rank.

    Pronouns come `early`, before adverbials of time; `definite` noun phrases after these, or before them where there is a "not" or an
    adverb like "already"; then `indefinite` ones; predicates, goals and prepositional objects stand `late`, after "nicht"; clauses stand
    after the closing verb (`tail`). `denies`: there is a kein.
    """

    english: str = ""
    tree: str = ""
    early: str = ""
    definite: str = ""
    indefinite: str = ""
    late: str = ""
    tail: str = ""
    labels: int = 0
    denies: bool = False


class Clause(NamedTuple):
    """A clause without its order.

    English is subject + auxiliary + `adverb` + main verb + `rest`. German is subject, finite verb, `reflexive`, `middle`, the verb's
    second part and `tail`, or with the finite verb after all but the tail.
    """

    subject: NounPhrase
    form: VerbForm
    adverb: str
    adverb_tree: str
    rest: str
    rest_tree: str
    reflexive: str
    middle: str
    tail: str
    labels: int

    def english(self) -> str:
        """In the order of a statement."""
        form = self.form
        return f"{self.subject.english}{form.auxiliary}{self.adverb}{form.main}{self.rest}"

    def tree(self) -> str:
        """The tree of the statement: a noun phrase and a verb phrase."""
        return f"{self.subject.tree}{self.verb_phrase_tree()}"

    def verb_phrase(self) -> str:
        """The English statement without its subject, a blank before it."""
        form = self.form
        return f"{form.auxiliary}{self.adverb}{form.main}{self.rest}"

    def verb_phrase_tree(self) -> str:
        """Its tree, a blank before it."""
        form = self.form
        if form.auxiliary:
            return f" (VP{form.auxiliary_tree}{self.adverb_tree}{form.main_tree}{self.rest_tree}{form.close})"
        return f"{self.adverb_tree}{form.main_tree}{self.rest_tree}{form.close}"

    def question(self) -> str:
        """English with the auxiliary before the subject."""
        form = self.form
        return f"{form.auxiliary[1:]} {self.subject.english}{self.adverb}{form.main}{self.rest}"

    def question_tree(self) -> str:
        """Its tree."""
        form = self.form
        return f"(SQ{form.auxiliary_tree} {self.subject.tree}{self.adverb_tree}{form.main_tree}{self.rest_tree}{form.close})"

    def subject_first(self) -> str:
        """German main clause that starts with its subject."""
        return f"{self.subject.german}{self.after_subject()}"

    def after_subject(self) -> str:
        """The same without its subject, a blank before it."""
        form = self.form
        return f" {form.finite}{self.reflexive}{self.middle}{form.bracket}{self.tail}"

    def verb_first(self) -> str:
        """German from the finite verb on, the subject behind it: a question, or what follows when something else stands first."""
        form, subject = self.form, self.subject
        if subject.is_pronoun:
            return f"{form.finite} {subject.german}{self.reflexive}{self.middle}{form.bracket}{self.tail}"
        return f"{form.finite}{self.reflexive} {subject.german}{self.middle}{form.bracket}{self.tail}"

    def verb_last(self) -> str:
        """German subordinate clause without its conjunction and commas; "sich" goes before a subject that is not a pronoun."""
        subject = self.subject
        if self.reflexive and not subject.is_pronoun:
            return f"{self.reflexive[1:]} {subject.german}{self.middle} {self.form.last}{self.tail}"
        return f"{subject.german}{self.reflexive}{self.middle} {self.form.last}{self.tail}"


def statement(clause: Clause) -> Text:
    """A main clause that starts with its subject."""
    return Text(clause.english(), f"(S {clause.tree()})", clause.subject_first(), clause.labels)


def fronted(front: Text, clause: Clause, comma: bool) -> Text:
    """A main clause that starts with something else; German has the verb second."""
    english_comma, tree_comma = (",", " (, ,)") if comma else ("", "")
    return Text(
        f"{front.english}{english_comma} {clause.english()}",
        f"(S {front.tree}{tree_comma} {clause.tree()})",
        f"{front.german} {clause.verb_first()}",
        front.labels | clause.labels | phenomena.VERB_SECOND,
    )


def subordinate(english: str, tag: str, german: str, clause: Clause, labels: int = 0) -> Text:
    """A conjunction and its clause; German with both commas and the verb last."""
    lead = f"({tag} {english})" if tag == "IN" else f"(WHADVP ({tag} {english}))"
    return Text(
        f"{english} {clause.english()}",
        f"(SBAR {lead} (S {clause.tree()}))",
        f", {german} {clause.verb_last()},",
        clause.labels | labels | phenomena.VERB_LAST,
    )
