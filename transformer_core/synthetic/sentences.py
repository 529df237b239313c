"""Whole sentences: clauses joined, with capital letters and punctuation."""

import re
from collections.abc import Callable
from typing import NamedTuple

from transformer_core.synthetic import phenomena
from transformer_core.synthetic.clauses import Clause, Complement, assemble, fronted, object_case, statement, subordinate
from transformer_core.synthetic.conjugation import Tense
from transformer_core.synthetic.grammar import again, clause_of, infinitive_clause, main_clause, tense_for, verb_for
from transformer_core.synthetic.lexicon import NOT_THINGS, Text, adverbials, conjunctions
from transformer_core.synthetic.morphology import ACCUSATIVE, ER, MASCULINE, NOMINATIVE, SIE
from transformer_core.synthetic.phrases import DETERMINERS, WHICH, NounPhrase, noun_phrase, pronoun
from transformer_core.synthetic.sampling import SOMEBODY, Sampler

Kind = Callable[[Sampler, str], Text]
MOST_WORDS = 60
_TIMES = ("past", "past", "past", "past", "recent", "present", "present", "present", "future", "future")
_THINGS = ("flat", "upright", "hanging", "device", "vehicle", "clothes", "instrument", "furniture", "animal", "text")
# In a tree: the word of a leaf, and the first letter of the first leaf.
_LEAF = re.compile(r" ([^ ()][^)]*)")
_FIRST_LETTER = re.compile(r"(?<= )[^\s()]")


class Sentence(NamedTuple):
    """An English sentence, its German translation, the phenomena in them as bits, and the English sentence's tree.

    `tree` is in the brackets of the Penn Treebank, its leaves are the tokens of `source`: from `sentence` the input of `finished_tree`, in
    a stream its output; "" if trees were not asked for.
    """

    source: str
    target: str
    labels: int
    tree: str

    @property
    def phenomena(self) -> tuple[str, ...]:
        """Names of the phenomena."""
        return phenomena.names(self.labels)


def sentence(sampler: Sampler) -> Sentence:
    """Draw a sentence of at most 60 English words."""
    while True:
        asks, time = sampler.random() < 0.09, sampler.pick(_TIMES)
        text = sampler.pick(_QUESTIONS)(sampler, time) if asks else _statements(sampler, time)
        found = finish(text, "?" if asks else ".")
        if found.source.count(" ") < MOST_WORDS:
            return found


def finish(text: Text, mark: str) -> Sentence:
    """Return the sentence with capital first letters and the mark; English is the tree's leaves, German loses a comma before a mark."""
    english = " ".join(_LEAF.findall(text.tree)).replace(" 's", "'s").replace(" ,", ",").replace(" can not ", " cannot ")
    german = text.german + mark
    while ",," in german:
        german = german.replace(",,", ",")
    german = german.replace(f",{mark}", mark)
    return Sentence(f"{english[0].upper()}{english[1:]}{mark}", f"{german[0].upper()}{german[1:]}", text.labels, text.tree)


def finished_tree(found: Sentence) -> str:
    """Return the tree of the English sentence without extra blanks, with a capital first letter and the mark."""
    tree = " ".join(found.tree.split()).replace(" )", ")")
    return f"{_FIRST_LETTER.sub(found.source[0], tree, count=1)[:-1]} (. {found.source[-1]}))"


def _statements(sampler: Sampler, time: str) -> Text:
    """Draw one or more statements of one time, joined by "and" or "but"."""
    text = sampler.pick(_KINDS)(sampler, time)
    while sampler.random() < 0.16:
        tree, german = sampler.pick((("(CC and)", " und"), ("(CC and)", " und"), ("(CC but)", ", aber"), ("(CC but)", ", aber")))
        other = sampler.pick(_KINDS)(sampler, time)
        text = Text(f"(S {text.tree} (, ,) {tree} {other.tree})", f"{text.german}{german} {other.german}", text.labels | other.labels)
    return text


def _plain(sampler: Sampler, time: str) -> Text:
    """Draw a single main clause."""
    return statement(main_clause(sampler, time, front=True))


def _attitude(sampler: Sampler, time: str) -> Text:
    """Draw an adverb of attitude before a main clause: Unfortunately, ...: Leider ..."""
    front = sampler.pick(adverbials("attitude"))
    return fronted(front, main_clause(sampler, time), comma=front.german not in ("vielleicht", "wahrscheinlich"))


def _clause_behind(sampler: Sampler, time: str) -> Text:
    """Draw a main clause and a subordinate one after it: ... because ..."""
    said = main_clause(sampler, time, front=sampler.random() < 0.3)
    conjunction = sampler.pick(conjunctions(time))
    linked = _linked(sampler, said, conjunction.time, conjunction.tense)
    return _with_reason(statement(said), subordinate(conjunction, linked))


def _with_reason(first: Text, second: Text) -> Text:
    """Join a main clause and a subordinate one after it."""
    return Text(f"{first.tree[:-1]} {second.tree})", first.german + second.german, first.labels | second.labels)


def _clause_before(sampler: Sampler, time: str) -> Text:
    """Draw a subordinate clause before a main clause, in German directly before the main verb: When ..., ..."""
    since = time == "present" and sampler.random() < 0.35
    conjunction = conjunctions("since")[0] if since else sampler.pick(conjunctions(time))
    verb, tense = sampler.pick(sampler.lexicon.simple), conjunction.tense
    said = clause_of(sampler, verb, conjunction.time, dated=tense is None, tense=tense)
    front = subordinate(conjunction, said)
    return fronted(front._replace(german=front.german[2:]), _linked(sampler, said, time, None), comma=True)


def _linked(sampler: Sampler, said: Clause, time: str, tense: Tense | None) -> Clause:
    """Draw a clause with another verb, about the subject of the clause before, as a pronoun, or about another subject.

    A pronoun always refers to that subject, because the verbs and adjectives that suit things and people differ.
    """
    before = said.subject
    if before.pronoun and sampler.random() < 0.5:
        verb = verb_for(sampler, before)
        if verb is not said.verb:
            return clause_of(sampler, verb, time, subject=again(before), dated=tense is None, tense=tense)
    verb = sampler.pick(sampler.lexicon.simple)
    subject = sampler.subject(verb.subjects)
    if subject.is_pronoun and subject.pronoun and subject.pronoun == before.pronoun:
        subject = sampler.name(NOMINATIVE)
    return clause_of(sampler, verb, time, subject=subject, dated=tense is None, tense=tense)


def _two_verbs(sampler: Sampler, time: str) -> Text:
    """Draw one subject with two verbs."""
    first = main_clause(sampler, time)
    verb = verb_for(sampler, first.subject) if first.subject.pronoun else first.verb
    if verb is first.verb or first.tail or first.subject.negative:
        return statement(first)
    return _coordinated(first, clause_of(sampler, verb, time, subject=first.subject, dated=False))


def _coordinated(first: Clause, second: Clause) -> Text:
    """Join two clauses with one subject by "and"."""
    tree = f"(S {first.subject.tree} (VP {first.verb_phrase()} (CC and) {second.verb_phrase()}))"
    return Text(tree, f"{first.subject_first()} und{second.after_subject()}", first.labels | second.labels)


def _compound(first: Clause, link: str, second: Clause, german: str, labels: int = 0) -> Text:
    """Join two main clauses by an English conjunction; `german` is the second one with its conjunction."""
    tree = f"(S (S {first.tree()}) (, ,) (CC {link}) (S {second.tree()}))"
    return Text(tree, f"{first.subject_first()}, {german}", first.labels | second.labels | labels)


def _consequence(sampler: Sampler, time: str) -> Text:
    """Draw two main clauses: ..., so ...: ..., deshalb ... (verb second)."""
    said = main_clause(sampler, time)
    second = _linked(sampler, said, time, None)
    return _compound(said, "so", second, f"deshalb {second.verb_first()}", phenomena.VERB_SECOND)


def _thing(sampler: Sampler, time: str) -> Text:
    """Draw an action on a thing, and a second clause with "it": er, sie or es, or ihn, sie or es, by the thing's gender."""
    noun = sampler.noun(_THINGS)
    verb = sampler.pick(sampler.lexicon.handling[noun.kind])
    subject = sampler.subject(SOMEBODY)
    what = sampler.with_determiner(noun, "thing", ACCUSATIVE, subject.pronoun)
    tense = tense_for(sampler, verb, subject, time)
    first = assemble(verb, subject, tense, Complement.of_object(verb, what))
    other = sampler.pick(sampler.lexicon.handling[noun.kind])
    if other is not verb and sampler.random() < 0.4:
        it = Complement.of_object(other, pronoun("it", noun, ACCUSATIVE))
        return _coordinated(first, assemble(other, subject, tense, it))
    time = "past" if time in ("past", "recent") else "present"
    state = clause_of(sampler, sampler.lexicon.be, time, subject=pronoun("it", noun, NOMINATIVE), dated=False)
    if sampler.random() < 0.5:
        return _with_reason(statement(first), subordinate(conjunctions("present")[0], state))
    return _compound(first, "but", state, f"aber {state.subject_first()}")


def _purpose(sampler: Sampler, time: str) -> Text:
    """Draw an action and its purpose: ... in order to ...: ..., um ... zu ..."""
    verb, subject = sampler.pick(sampler.lexicon.activities), sampler.subject(SOMEBODY)
    first = clause_of(sampler, verb, time, subject=subject)
    aim = infinitive_clause(sampler, subject, time, 1)
    tree = f"(S {first.tree()} (SBAR (IN in) (NN order) {aim.tree}))"
    return Text(tree, f"{first.subject_first()}, um{aim.tail[1:]}", first.labels | aim.labels)


def _object_first(sampler: Sampler, time: str) -> Text:
    """Draw a main clause that starts with its object: This book I have already read: Dieses Buch habe ich schon gelesen."""
    verb = sampler.pick(sampler.lexicon.transitive)
    noun = sampler.noun(tuple(kind for kind in verb.objects if kind not in NOT_THINGS))
    number = int(noun.counted and sampler.random() < 0.3)
    what = noun_phrase(DETERMINERS["these" if number else "this"], sampler.adjectives(noun), noun, number, ACCUSATIVE)
    if sampler.random() < 0.3:
        subject = sampler.name(NOMINATIVE)
    else:
        subject = pronoun(sampler.pick(("i", "we", "she", "he", "they")), sampler.somebody, NOMINATIVE)
    clause = clause_of(sampler, verb, time, subject=subject, hole=True)
    return fronted(Text(what.tree, what.german, what.labels), clause, comma=False)


def _existence(sampler: Sampler, time: str) -> Text:
    """Draw "there is" with a noun and a place: There is a museum in the city: In der Stadt gibt es ein Museum."""
    noun = sampler.noun(("building", "firm", "plant", "animal", "vehicle", "person"))
    what = sampler.with_determiner(noun, "existence", ACCUSATIVE)
    place = sampler.place(("city", "settlement", "nature"))
    plural, past = what.person == SIE, time in ("past", "recent")
    verb = ("VBD were" if plural else "VBD was") if past else "VBP are" if plural else "VBZ is"
    tree = f"(S (NP (EX there)) (VP ({verb}) {what.tree} {place.tree}))"
    german = f"{place.german} {'gab' if past else 'gibt'} es {what.german}"
    return Text(tree, german, what.labels | place.labels | phenomena.VERB_SECOND)


_KINDS: tuple[Kind, ...] = (
    *[_plain] * 38,
    *[_attitude] * 5,
    *[_clause_behind] * 14,
    *[_clause_before] * 11,
    *[_two_verbs] * 7,
    *[_consequence] * 5,
    *[_thing] * 8,
    *[_purpose] * 4,
    *[_object_first] * 4,
    *[_existence] * 4,
)

# Questions, each of one clause

# English, German, labels, and whether the question may contain an adverbial of time.
_QUESTION_WORDS = (("why", "warum", 0, True), ("why", "warum", 0, True), ("when", "wann", phenomena.AMBIGUOUS_WORD, False))


def _asked(word: str, german: str, clause: Clause, labels: int = 0) -> Text:
    """Return a question with a question word or phrase before the auxiliary."""
    labels |= clause.labels | phenomena.QUESTION | phenomena.VERB_SECOND
    return Text(f"(SBARQ {word} {clause.question()})", f"{german} {clause.verb_first()}", labels)


def _yes_or_no(sampler: Sampler, time: str) -> Text:
    """Draw a question without a question word: Has the teacher read the book?"""
    clause = clause_of(sampler, sampler.pick(sampler.lexicon.simple), time, question=True)
    return Text(clause.question(), clause.verb_first(), clause.labels | phenomena.QUESTION)


def _addressed(sampler: Sampler, time: str) -> Text:
    """Draw a question to somebody named: Anna, have you ...: hast du; Mr Weber, have you ...: haben Sie."""
    name = sampler.name(NOMINATIVE)
    you = pronoun("sie" if " " in name.german else "du", sampler.somebody, NOMINATIVE)
    clause = clause_of(sampler, sampler.pick(sampler.lexicon.activities), time, subject=you, question=True)
    return Text(f"(S {name.tree} (, ,) {clause.question()})", f"{name.german}, {clause.verb_first()}", clause.labels | phenomena.QUESTION)


def _why_or_when(sampler: Sampler, time: str) -> Text:
    """Draw a question for the reason or the time: Why did ...? Warum ...?"""
    word, german, labels, dated = sampler.pick(_QUESTION_WORDS)
    clause = clause_of(sampler, sampler.pick(sampler.lexicon.simple), time, question=True, dated=dated)
    return _asked(f"(WHADVP (WRB {word}))", german, clause, labels)


def _what(sampler: Sampler, time: str) -> Text:
    """Draw a question for the object: What did ...? Was ...? Only with verbs whose translation does not depend on the object."""
    clause = clause_of(sampler, sampler.pick(sampler.lexicon.plain_transitive), time, question=True, hole=True)
    return _asked("(WHNP (WP what))", "was", clause)


def _which(sampler: Sampler, time: str) -> Text:
    """Draw a question for one of several objects: Which book did ...? Welches Buch ...?"""
    verb = sampler.pick(sampler.lexicon.transitive)
    noun = sampler.noun(verb.objects)
    number = int(noun.counted and sampler.random() < 0.3)
    found = noun_phrase(WHICH, sampler.adjectives(noun), noun, number, object_case(verb))
    clause = clause_of(sampler, verb, time, question=True, hole=True)
    return _asked(f"(WH{found.tree[1:]}", found.german, clause, found.labels)


def _who(sampler: Sampler, time: str) -> Text:
    """Draw a question for the subject: Who has ...? Wer hat ...?"""
    subject = NounPhrase("(WHNP (WP who))", "wer", ER, MASCULINE, "he", sampler.somebody, True, False, 0)
    clause = clause_of(sampler, sampler.pick(sampler.lexicon.activities), time, subject=subject)
    return Text(f"(SBARQ {subject.tree} (SQ {clause.verb_phrase()}))", clause.subject_first(), clause.labels | phenomena.QUESTION)


_QUESTIONS: tuple[Kind, ...] = (_yes_or_no, _addressed, _addressed, _why_or_when, _what, _which, _who)
