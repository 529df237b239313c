"""Noun phrases, prepositional phrases and adverbials: realised in both languages and as a tree, from choices already made."""

from functools import cache
from typing import NamedTuple

from transformer_core.corpus.synthetic import phenomena
from transformer_core.corpus.synthetic.morphology import (
    DU,
    ER,
    FORMAL,
    ICH,
    MASCULINE,
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
    """A determiner; its words end in a blank. `german` and `labels` are at `gender * 4 + case`; `denies`: it is kein."""

    english: str
    tree: str
    german: tuple[str, ...]
    declension: int
    labels: tuple[int, ...]
    definite: bool
    denies: bool


class NounPhrase(NamedTuple):
    """A noun phrase in one case.

    `person` is the verb's; `pronoun` names the pronoun that may refer back to it, `noun` says what may be said of it; `gender` is the
    German one (3 plural); `definite` decides about the order of the clause; `denies`: it has a kein; `german_tail` stands after it (a
    relative clause).
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
    denies: bool = False
    german_tail: str = ""


class Text(NamedTuple):
    """A stretch of text in both languages, no blanks around it, and the English one's tree (one or more brackets)."""

    english: str
    tree: str
    german: str
    labels: int


def _determiner(english: str, tag: str, german: tuple[str, ...], declension: int, *, definite: bool, labels: int = 0) -> Determiner:
    """A determiner whose cells are labelled as case where they differ from the nominative."""
    marked = tuple(labels | (phenomena.CASE if form != german[cell // 4 * 4] else 0) for cell, form in enumerate(german))
    spaced = tuple(form + " " if form else "" for form in german)
    words, tree = (f"{english} ", f"({tag} {english}) ") if english else ("", "")
    return Determiner(words, tree, spaced, declension, marked, definite, labels == phenomena.NEGATION_KEIN)


THE = _determiner("the", "DT", definite_article(), WEAK, definite=True)
A = _determiner("a", "DT", like_indefinite("ein"), MIXED, definite=False)
AN = _determiner("an", "DT", like_indefinite("ein"), MIXED, definite=False)
BARE = _determiner("", "", ("",) * 16, STRONG, definite=False)
NO = _determiner("no", "DT", like_indefinite("kein"), MIXED, definite=False, labels=phenomena.NEGATION_KEIN)
# Where "not" stands at the verb, "a car" and "cars" are German "kein Auto" and "keine Autos".
NOT_A = NO._replace(english=A.english, tree=A.tree)
NOT_AN = NO._replace(english=AN.english, tree=AN.tree)
NOT_BARE = NO._replace(english="", tree="")
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

_PRONOUNS = {
    "i": (ICH, "I", "me", "ich mich mir"),
    "du": (DU, "you", "you", "du dich dir"),
    "he": (ER, "he", "him", "er ihn ihm"),
    "she": (ER, "she", "her", "sie sie ihr"),
    "we": (WIR, "we", "us", "wir uns uns"),
    "sie": (FORMAL, "you", "you", "Sie Sie Ihnen"),
    "they": (SIE, "they", "them", "sie sie ihnen"),
}
# What "it" is in German, by the gender of the noun that it stands for.
_IT = ("er ihn ihm", "sie sie ihr", "es es ihm")
_CONTRACTIONS = {
    "in dem ": "im ",
    "in das ": "ins ",
    "an dem ": "am ",
    "an das ": "ans ",
    "zu dem ": "zum ",
    "zu der ": "zur ",
    "von dem ": "vom ",
}


def pronoun(name: str, noun: Noun, case: int) -> NounPhrase:
    """A personal pronoun, `name` being a key of `POSSESSIVES` or "it", that stands for a noun."""
    if name == "it":
        person, subject, other, german = ER, "it", "it", _IT[noun.gender]
        labels = phenomena.PRONOUN_AGREEMENT
    else:
        person, subject, other, german = _PRONOUNS[name]
        labels = phenomena.AMBIGUOUS_WORD if subject == "you" else 0
    english = subject if case == NOMINATIVE else other
    labels |= phenomena.CASE if case != NOMINATIVE else 0
    return NounPhrase(english, f"(NP (PRP {english}))", german.split()[case], person, MASCULINE, name, noun, True, True, labels)


def weather_it(noun: Noun) -> NounPhrase:
    """The subject of "it is raining"."""
    return NounPhrase("it", "(NP (PRP it))", "es", ER, MASCULINE, "", noun, True, True, 0)


def name_phrase(name: str, sex: str, noun: Noun) -> NounPhrase:
    """A first name, the same in every case but the genitive."""
    return NounPhrase(name, f"(NP (NNP {name}))", name, ER, MASCULINE, sex, noun, True, False, 0)


def titled_phrase(surname: str, sex: str, noun: Noun, case: int) -> NounPhrase:
    """Mr and Mrs with a surname: Herr, but Herrn outside the nominative."""
    english = "Mr" if sex == "he" else "Mrs"
    german = "Frau" if sex == "she" else "Herr" if case == NOMINATIVE else "Herrn"
    labels = phenomena.CASE if german == "Herrn" else 0
    tree = f"(NP (NNP {english}) (NNP {surname}))"
    return NounPhrase(f"{english} {surname}", tree, f"{german} {surname}", ER, MASCULINE, sex, noun, True, False, labels)


def noun_phrase(determiner: Determiner, adjectives: tuple[Adjective, ...], noun: Noun, number: int, case: int) -> NounPhrase:
    """A determiner, adjectives and a noun, agreeing in gender, number (0 singular, 1 plural) and case."""
    cell = (PLURAL if number else noun.gender) * 4 + case
    labels = determiner.labels[cell] | noun.labels
    if adjectives[0].vowel if adjectives else noun.vowel:
        if determiner is A:
            determiner = AN
        elif determiner is NOT_A:
            determiner = NOT_AN
    english, tree, german, declension = determiner.english, determiner.tree, determiner.german[cell], determiner.declension
    for adjective in adjectives:
        english += adjective.english
        tree += adjective.tree
        german += adjective.german[declension][cell]
        labels |= adjective.labels | phenomena.ADJECTIVE_AGREEMENT
    return NounPhrase(
        english + noun.english[number],
        f"(NP {tree}{noun.tree[number]})",
        german + noun.german[number * 4 + case],
        SIE if number else ER,
        PLURAL if number else noun.gender,
        "they" if number else noun.pronoun,
        noun,
        determiner.definite,
        False,
        labels,
        determiner.denies,
    )


def possessed(owner: NounPhrase, adjectives: tuple[Adjective, ...], noun: Noun, number: int, case: int) -> NounPhrase:
    """The teacher's old car: das alte Auto des Lehrers. `owner` is in the genitive and has a determiner."""
    head = noun_phrase(THE, adjectives, noun, number, case)
    return head._replace(
        english=f"{owner.english}'s {head.english[len(THE.english) :]}",
        tree=f"(NP {owner.tree[:-1]} (POS 's)) {head.tree[len('(NP ') + len(THE.tree) :]}",
        german=f"{head.german} {owner.german}",
        labels=head.labels | owner.labels | phenomena.GENITIVE,
    )


def possessed_by_name(owner: NounPhrase, adjectives: tuple[Adjective, ...], noun: Noun, number: int, case: int) -> NounPhrase:
    """Anna's old car: Annas altes Auto. `owner` is a name that does not end in a hiss."""
    head = noun_phrase(BARE, adjectives, noun, number, case)
    return head._replace(
        english=f"{owner.english}'s {head.english}",
        tree=f"(NP {owner.tree[:-1]} (POS 's)) {head.tree[len('(NP ') :]}",
        german=f"{owner.german}s {head.german}",
        definite=True,
        labels=head.labels | owner.labels | phenomena.GENITIVE,
    )


@cache
def numeral(number: int) -> Determiner:
    """A number of two or more as a determiner."""
    words = _determiner(english_number(number), "CD", (german_number(number),) * 16, STRONG, definite=False, labels=phenomena.NUMBER)
    return words._replace(tree=number_leaves(number) + " ")


def measured(number: int, unit: tuple[str, str], noun: Noun) -> NounPhrase:
    """A number of units, given as English and German plural."""
    count, (english, german) = numeral(number), unit
    tree = f"(NP {count.tree}(NNS {english}))"
    return NounPhrase(f"{count.english}{english}", tree, f"{count.german[0]}{german}", SIE, PLURAL, "", noun, False, False, count.labels[0])


@cache
def number_leaves(number: int) -> str:
    """The leaves of a number in words, in a quantifier phrase where there is more than one."""
    words = english_number(number).split()
    leaves = " ".join(f"({'CC' if word == 'and' else 'CD'} {word})" for word in words)
    return leaves if len(words) == 1 else f"(QP {leaves})"


def prepositional(english: str, german: str, inner: NounPhrase) -> Text:
    """A preposition and its noun phrase, contracted with the article where German does that: im, ins, zum, zur."""
    joined = f"{german} {inner.german}"
    article_end = len(german) + 5
    contracted = _CONTRACTIONS.get(joined[:article_end])
    if contracted:
        joined = contracted + joined[article_end:]
    return Text(f"{english} {inner.english}", f"(PP ({preposition_tag(english)} {english}) {inner.tree})", joined, inner.labels)


def preposition_tag(preposition: str) -> str:
    """The part of speech of an English preposition."""
    return "TO" if preposition == "to" else "IN"
