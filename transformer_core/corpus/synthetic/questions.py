"""Questions of every kind, as one clause."""

from collections.abc import Callable

from transformer_core.corpus.synthetic import phenomena
from transformer_core.corpus.synthetic.clauses import Clause
from transformer_core.corpus.synthetic.complements import object_case
from transformer_core.corpus.synthetic.draws import Draw
from transformer_core.corpus.synthetic.grammar import clause_of
from transformer_core.corpus.synthetic.morphology import ER, MASCULINE, NOMINATIVE
from transformer_core.corpus.synthetic.phrases import WHICH, NounPhrase, Text, noun_phrase, pronoun

# English, German, labels; whether the question itself may say a time.
_WORDS = (
    ("why", "warum", 0, True),
    ("why", "warum", 0, True),
    ("when", "wann", phenomena.AMBIGUOUS_WORD, False),
)


def asked(word: str, tag: str, german: str, clause: Clause, labels: int = 0) -> Text:
    """A question with a question word or phrase before the auxiliary."""
    return Text(
        f"{word} {clause.question()}",
        f"(SBARQ {tag} {clause.question_tree()})",
        f"{german} {clause.verb_first()}",
        clause.labels | labels | phenomena.QUESTION | phenomena.VERB_SECOND,
    )


def yes_or_no(draw: Draw, time: str) -> Text:
    """Has the teacher read the book?"""
    verb = draw.pick(draw.lexicon.simple)
    clause = clause_of(draw, verb, draw.subject(verb.subjects), time, 1, question=True).clause
    return Text(clause.question(), clause.question_tree(), clause.verb_first(), clause.labels | phenomena.QUESTION)


def addressed(draw: Draw, time: str) -> Text:
    """Anna, have you ...: hast du; Mr Weber, have you ...: haben Sie."""
    name = draw.name(NOMINATIVE)
    you = pronoun("sie" if " " in name.english else "du", draw.somebody, NOMINATIVE)
    clause = clause_of(draw, draw.pick(draw.lexicon.activities), you, time, 1, question=True).clause
    return Text(
        f"{name.english}, {clause.question()}",
        f"(S {name.tree} (, ,) {clause.question_tree()})",
        f"{name.german}, {clause.verb_first()}",
        clause.labels | phenomena.QUESTION,
    )


def why_or_when(draw: Draw, time: str) -> Text:
    """Why did ...? Warum ...?"""
    word, german, labels, dated = draw.pick(_WORDS)
    verb = draw.pick(draw.lexicon.simple)
    subject = draw.subject(verb.subjects)
    clause = clause_of(draw, verb, subject, time, 1, question=True, dated=dated).clause
    return asked(word, f"(WHADVP (WRB {word}))", german, clause, labels)


def what(draw: Draw, time: str) -> Text:
    """What did ...? Was ...? Not of verbs whose object says what they mean."""
    verb = draw.pick(draw.lexicon.plain_transitive)
    clause = clause_of(draw, verb, draw.subject(verb.subjects), time, 1, question=True, hole=True).clause
    return asked("what", "(WHNP (WP what))", "was", clause)


def which(draw: Draw, time: str) -> Text:
    """Which book did ...? Welches Buch ...?"""
    verb = draw.pick(draw.lexicon.transitive)
    noun = draw.noun(verb.objects)
    number = int(noun.counted and draw.random() < 0.3)
    found = noun_phrase(WHICH, draw.adjectives(noun), noun, number, object_case(verb))
    clause = clause_of(draw, verb, draw.subject(verb.subjects), time, 1, question=True, hole=True).clause
    return asked(found.english, found.tree.replace("(NP", "(WHNP", 1), found.german, clause, found.labels)


def who(draw: Draw, time: str) -> Text:
    """Who has ...? Wer hat ...?"""
    verb = draw.pick(draw.lexicon.activities)
    subject = NounPhrase("who", "(WHNP (WP who))", "wer", ER, MASCULINE, "he", draw.somebody, True, False, 0)
    clause = clause_of(draw, verb, subject, time, 1).clause
    return Text(
        clause.english(),
        f"(SBARQ {subject.tree} (SQ{clause.verb_phrase_tree()}))",
        clause.subject_first(),
        clause.labels | phenomena.QUESTION,
    )


QUESTIONS: tuple[Callable[[Draw, str], Text], ...] = (yes_or_no, addressed, addressed, why_or_when, what, which, who)
