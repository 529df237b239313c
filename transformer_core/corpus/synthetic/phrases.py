"""Noun phrases, prepositional phrases and adverbials: realised in both languages and as a tree, from choices already made."""

from functools import cache
from typing import NamedTuple

from transformer_core.corpus.synthetic import phenomena
from transformer_core.corpus.synthetic.morphology import (
    ACCUSATIVE,
    DATIVE,
    DU,
    ER,
    FORMAL,
    GENITIVE,
    ICH,
    MIXED,
    NOMINATIVE,
    PLURAL,
    SIE,
    STRONG,
    WEAK,
    WIR,
    definite_article,
    like_definite,
    like_indefinite,
)
from transformer_core.corpus.synthetic.numerals import english_number, german_number
from transformer_core.corpus.synthetic.words import Adjective, Noun


class Determiner(NamedTuple):
    """A determiner; its words end in a blank. `german` and `labels` are at `gender * 4 + case`."""

    english: str
    tree: str
    german: tuple[str, ...]
    declension: int
    labels: tuple[int, ...]
    definite: bool


class NounPhrase(NamedTuple):
    """A noun phrase in one case.

    `person` is the verb's; `pronoun` names the pronoun that may refer back to it, `noun` says what may be said of it; `gender` is the
    German one (3 plural); `definite` decides about the order of the clause; `german_tail` stands after it (a relative clause).
    """

    english: str
    tree: str
    german: str
    person: int
    gender: int
    pronoun: str
    noun: Noun
    definite: bool
    is_pronoun: bool
    labels: int
    german_tail: str = ""


class Adverbial(NamedTuple):
    """An adverbial; words without blanks around them, the tree with none."""

    english: str
    tree: str
    german: str
    labels: int


def _determiner(english: str, tag: str, german: tuple[str, ...], declension: int, *, definite: bool, labels: int = 0) -> Determiner:
    """A determiner whose cells are labelled as case where they differ from the nominative."""
    base = [german[cell // 4 * 4] for cell in range(16)]
    marked = tuple(labels | (phenomena.CASE if form != base[cell] else 0) for cell, form in enumerate(german))
    spaced = tuple(form + " " if form else "" for form in german)
    return Determiner(f"{english} " if english else "", f"({tag} {english}) " if english else "", spaced, declension, marked, definite)


THE = _determiner("the", "DT", definite_article(), WEAK, definite=True)
A = _determiner("a", "DT", like_indefinite("ein"), MIXED, definite=False)
AN = _determiner("an", "DT", like_indefinite("ein"), MIXED, definite=False)
NO = _determiner("no", "DT", like_indefinite("kein"), MIXED, definite=False, labels=phenomena.NEGATION_KEIN)
# "not ... a car" and "not ... cars" are German kein: the English determiner stays, and "not" stands at the verb.
NOT_A = A._replace(german=NO.german, labels=NO.labels)
NOT_AN = AN._replace(german=NO.german, labels=NO.labels)
BARE = _determiner("", "", ("",) * 16, STRONG, definite=False)
NOT_BARE = BARE._replace(german=NO.german, declension=MIXED, labels=NO.labels)
THIS = _determiner("this", "DT", like_definite("dies"), WEAK, definite=True)
THESE = _determiner("these", "DT", like_definite("dies"), WEAK, definite=True)
EVERY = _determiner("every", "DT", like_definite("jed"), WEAK, definite=True)
ALL = _determiner("all", "DT", like_definite("all"), WEAK, definite=True)
MANY = _determiner("many", "JJ", like_definite("viel"), STRONG, definite=False)
SOME = _determiner("some", "DT", like_definite("einig"), STRONG, definite=False)
WHICH = _determiner("which", "WDT", like_definite("welch"), WEAK, definite=True)
POSSESSIVES: dict[str, Determiner] = {
    pronoun: _determiner(english, "PRP$", like_indefinite(german), MIXED, definite=True)
    for pronoun, english, german in (
        ("i", "my", "mein"),
        ("du", "your", "dein"),
        ("he", "his", "sein"),
        ("she", "her", "ihr"),
        ("we", "our", "unser"),
        ("sie", "your", "Ihr"),
        ("they", "their", "ihr"),
    )
}
_AFTER_VOWEL = {A: AN, NOT_A: NOT_AN}

_PRONOUNS = {
    "i": (ICH, "I", "me", "ich mich mir"),
    "du": (DU, "you", "you", "du dich dir"),
    "he": (ER, "he", "him", "er ihn ihm"),
    "she": (ER, "she", "her", "sie sie ihr"),
    "we": (WIR, "we", "us", "wir uns uns"),
    "sie": (FORMAL, "you", "you", "Sie Sie Ihnen"),
    "they": (SIE, "they", "them", "sie sie ihnen"),
    "it0": (ER, "it", "it", "er ihn ihm"),
    "it1": (ER, "it", "it", "sie sie ihr"),
    "it2": (ER, "it", "it", "es es ihm"),
}
_CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "an das": "ans", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}


def pronoun(name: str, case: int) -> NounPhrase:
    """A personal pronoun; `name` as in `POSSESSIVES`, or "it0", "it1", "it2" for the German gender of what "it" stands for."""
    person, subject, other, german = _PRONOUNS[name]
    english = subject if case == NOMINATIVE else other
    labels = phenomena.PRONOUN_AGREEMENT if name.startswith("it") else phenomena.AMBIGUOUS_WORD if english == "you" else 0
    labels |= phenomena.CASE if case != NOMINATIVE else 0
    gender = PLURAL if person in (WIR, SIE) else 0
    return NounPhrase(english, f"(NP (PRP {english}))", german.split()[case], person, gender, name, True, True, labels)


def name_phrase(name: str, sex: str) -> NounPhrase:
    """A proper name, the same in every case but the genitive."""
    leaves = " ".join(f"(NNP {part})" for part in name.split())
    return NounPhrase(name, f"(NP {leaves})", name, ER, 0, sex, True, False, 0)


def titled_phrase(surname: str, sex: str, case: int) -> NounPhrase:
    """Mr and Mrs with a surname: Herr, but Herrn outside the nominative."""
    title, german = ("Mr", "Herr" if case == NOMINATIVE else "Herrn") if sex == "he" else ("Mrs", "Frau")
    labels = phenomena.CASE if german == "Herrn" else 0
    return NounPhrase(f"{title} {surname}", f"(NP (NNP {title}) (NNP {surname}))", f"{german} {surname}", ER, 0, sex, True, False, labels)


def noun_phrase(determiner: Determiner, adjectives: tuple[Adjective, ...], noun: Noun, number: int, case: int) -> NounPhrase:
    """A determiner, at most two adjectives and a noun, agreeing in gender, number (0 singular, 1 plural) and case."""
    gender = PLURAL if number else noun.gender
    cell = gender * 4 + case
    labels = determiner.labels[cell] | noun.labels
    if (adjectives[0].vowel if adjectives else noun.vowel) and determiner in _AFTER_VOWEL:
        determiner = _AFTER_VOWEL[determiner]
    english, tree, german = determiner.english, determiner.tree, determiner.german[cell]
    for adjective in adjectives:
        english += adjective.english
        tree += adjective.tree
        german += adjective.german[determiner.declension][cell]
        labels |= adjective.labels | phenomena.ADJECTIVE_AGREEMENT
    return NounPhrase(
        english + noun.english[number],
        f"(NP {tree}{noun.tree[number]})",
        german + noun.german[number * 4 + case],
        SIE if number else ER,
        gender,
        "they" if number else noun.pronoun,
        determiner.definite,
        False,
        labels,
    )


def possessed(owner: NounPhrase, adjectives: tuple[Adjective, ...], noun: Noun, number: int, case: int) -> NounPhrase:
    """The teacher's old car, das alte Auto des Lehrers; `owner` is in the genitive. A name stands before: Annas altes Auto."""
    by_name = "(DT" not in owner.tree and "(PRP$" not in owner.tree
    head = noun_phrase(BARE if by_name else THE, adjectives, noun, number, case)
    english_head = head.english if by_name else head.english[len(THE.english) :]
    head_tree = head.tree[len("(NP ") :] if by_name else head.tree[len("(NP ") + len(THE.tree) :]
    return head._replace(
        english=f"{owner.english}'s {english_head}",
        tree=f"(NP {owner.tree[:-1]} (POS 's)) {head_tree}",
        german=f"{owner.german}s {head.german}" if by_name else f"{head.german} {owner.german}",
        definite=True,
        labels=head.labels | owner.labels | phenomena.GENITIVE,
    )


@cache
def numeral(number: int) -> Determiner:
    """A number of two or more as a determiner."""
    german = (german_number(number),) * 16
    return _determiner(english_number(number), "CD", german, STRONG, definite=False, labels=phenomena.NUMBER)._replace(
        tree=number_leaves(number) + " "
    )


@cache
def number_leaves(number: int) -> str:
    """The leaves of a number in words; a quantifier phrase where there is more than one."""
    words = english_number(number).split()
    leaves = " ".join(f"({'CC' if word == 'and' else 'CD'} {word})" for word in words)
    return leaves if len(words) == 1 else f"(QP {leaves})"


def prepositional(english: str, german: str, inner: NounPhrase) -> Adverbial:
    """A preposition and its noun phrase, contracted with the article where German does that: im, ins, zum, zur."""
    joined = f"{german} {inner.german}"
    if inner.english.startswith("the "):
        article_end = len(german) + 4
        contracted = _CONTRACTIONS.get(joined[:article_end])
        if contracted:
            joined = contracted + joined[article_end:]
    tag = "TO" if english == "to" else "IN"
    return Adverbial(f"{english} {inner.english}", f"(PP ({tag} {english}) {inner.tree})", joined, inner.labels | phenomena.CASE)


