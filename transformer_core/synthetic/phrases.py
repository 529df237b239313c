"""Noun and prepositional phrases in both languages, from given words."""

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import NamedTuple

from transformer_core.synthetic import morphology, phenomena
from transformer_core.synthetic.lexicon import Adjective, Noun, Text
from transformer_core.synthetic.morphology import DER, ER, LIKE_DER, LIKE_EIN, MIXED, NOMINATIVE, SIE, STRONG, WEAK, cells
from transformer_core.synthetic.numerals import cardinal


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
    """A determiner; its words end in a blank. `german` and `labels` are indexed by `gender * 4 + case`; `negative`: it is kein."""

    tree: str
    german: tuple[str, ...]
    declension: int
    labels: tuple[int, ...]
    definite: bool
    negative: bool


class NounPhrase(NamedTuple):
    """A noun phrase in one case.

    `person` is that of its verb; `pronoun` names the pronoun that may refer back to it; `noun` decides which verbs suit it; `gender` is the
    German one (3 plural); `definite` decides its place in the German clause; `negative`: it has kein; `tail` is a German relative clause,
    which comes after it or after the verb.
    """

    tree: str
    german: str
    person: int
    gender: int
    pronoun: str
    noun: Noun
    definite: bool
    is_pronoun: bool
    labels: int = 0
    negative: bool = False
    tail: str = ""


def _determiner(english: str, tag: str, german: tuple[str, ...], declension: int, *, definite: bool, labels: int = 0) -> Determiner:
    """Return a determiner; cells that differ from the nominative have the label CASE."""
    marked = tuple(labels | (phenomena.CASE if form != german[cell // 4 * 4] else 0) for cell, form in enumerate(german))
    spaced = tuple(form + " " if form else "" for form in german)
    tree = f"({tag} {english}) " if english else ""
    return Determiner(tree, spaced, declension, marked, definite, labels == phenomena.NEGATION_KEIN)


THE = _determiner("the", "DT", cells("", DER), WEAK, definite=True)
A = _determiner("a", "DT", cells("ein", LIKE_EIN), MIXED, definite=False)
BARE = _determiner("", "", ("",) * 16, STRONG, definite=False)
NO = _determiner("no", "DT", cells("kein", LIKE_EIN), MIXED, definite=False, labels=phenomena.NEGATION_KEIN)
# With "not" at the verb, "a car" and "cars" are German "kein Auto" and "keine Autos".
NOT_A = replace(NO, tree=A.tree)
NOT_BARE = replace(NO, tree="")
WHICH = _determiner("which", "WDT", cells("welch", LIKE_DER), WEAK, definite=True)
# Determiners by their names in the table `determiners`.
DETERMINERS = {
    "the": THE,
    "a": A,
    "bare": BARE,
    "no": NO,
    "this": _determiner("this", "DT", cells("dies", LIKE_DER), WEAK, definite=True),
    "these": _determiner("these", "DT", cells("dies", LIKE_DER), WEAK, definite=True),
    "every": _determiner("every", "DT", cells("jed", LIKE_DER), WEAK, definite=True),
    "all": _determiner("all", "DT", cells("all", LIKE_DER), WEAK, definite=True),
    "many": _determiner("many", "JJ", cells("viel", LIKE_DER), STRONG, definite=False),
    "some": _determiner("some", "DT", cells("einig", LIKE_DER), STRONG, definite=False),
}
# Person; English nominative, other case and possessive; German nominative, accusative, dative and stem of the possessive.
_PRONOUNS = {
    "i": (morphology.ICH, "I me my", "ich mich mir mein"),
    "du": (morphology.DU, "you you your", "du dich dir dein"),
    "he": (ER, "he him his", "er ihn ihm sein"),
    "she": (ER, "she her her", "sie sie ihr ihr"),
    "we": (morphology.WIR, "we us our", "wir uns uns unser"),
    "sie": (morphology.FORMAL, "you you your", "Sie Sie Ihnen Ihr"),
    "they": (SIE, "they them their", "sie sie ihnen ihr"),
}
POSSESSIVES = {
    name: _determiner(english.split()[2], "PRP$", cells(german.split()[3], LIKE_EIN), MIXED, definite=True)
    for name, (_, english, german) in _PRONOUNS.items()
}
# "It" in German, by the gender of the noun that it refers to.
_IT = ("er ihn ihm", "sie sie ihr", "es es ihm")
_CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "an das": "ans", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}


@cache
def pronoun(name: str, noun: Noun, case: int) -> NounPhrase:
    """Return a personal pronoun that refers to a noun; `name` is a key of `POSSESSIVES` or "it"."""
    if name == "it":
        person, english, german, labels = ER, "it it", _IT[noun.gender], phenomena.PRONOUN_AGREEMENT
    else:
        person, english, german = _PRONOUNS[name]
        labels = phenomena.AMBIGUOUS_WORD if name in ("du", "sie") else 0
    labels |= phenomena.CASE if case != NOMINATIVE else 0
    tree = f"(NP (PRP {english.split()[case != NOMINATIVE]}))"
    return NounPhrase(tree, german.split()[case], person, morphology.MASCULINE, name, noun, True, True, labels)


def noun_phrase(determiner: Determiner, adjectives: tuple[Adjective, ...], noun: Noun, number: int, case: int) -> NounPhrase:
    """Return a determiner, adjectives and a noun that agree in gender, number (0 singular, 1 plural) and case."""
    person, gender, reference = (SIE, morphology.PLURAL, "they") if number else (ER, noun.gender, noun.pronoun)
    cell = gender * 4 + case
    labels = determiner.labels[cell] | noun.labels
    tree, german, declension = determiner.tree, determiner.german[cell], determiner.declension
    if tree == A.tree and (adjectives[0].vowel if adjectives else noun.vowel):
        tree = "(DT an) "
    for adjective in adjectives:
        tree += adjective.tree
        german += adjective.forms[declension][cell]
        labels |= adjective.labels | phenomena.ADJECTIVE_AGREEMENT
    tree = f"(NP {tree}{noun.trees[number]})"
    german += noun.forms[number * 4 + case]
    return NounPhrase(tree, german, person, gender, reference, noun, determiner.definite, False, labels, determiner.negative)


def owned(owner: NounPhrase, adjectives: tuple[Adjective, ...], noun: Noun, number: int, case: int) -> NounPhrase:
    """Return a noun phrase with its owner: the teacher's old car, das alte Auto des Lehrers; Anna's old car, Annas altes Auto.

    `owner` is in the genitive and has a determiner, or is a name that does not end in a sibilant.
    """
    named = owner.tree.startswith("(NP (NNP")
    head = noun_phrase(BARE if named else THE, adjectives, noun, number, case)
    tree = f"(NP {owner.tree[:-1]} (POS 's)) {head.tree.removeprefix('(NP ').removeprefix(THE.tree)}"
    german = f"{owner.german}s {head.german}" if named else f"{head.german} {owner.german}"
    return head._replace(tree=tree, german=german, definite=True, labels=head.labels | owner.labels | phenomena.GENITIVE)


@lru_cache(maxsize=1 << 14)  # Of a million numbers, most are rare.
def numeral(number: int) -> Determiner:
    """Return a number of two or more as a determiner; in a quantifier phrase (QP) if it has more than one word."""
    english, german = cardinal(number)
    leaves = " ".join(f"({'CC' if word == 'and' else 'CD'} {word})" for word in english.split())
    found = _determiner("", "", (german,) * 16, STRONG, definite=False, labels=phenomena.NUMBER)
    return replace(found, tree=f"(QP {leaves}) " if " " in english else f"{leaves} ")


def prepositional(english: str, german: str, inner: NounPhrase) -> Text:
    """Return a preposition and its noun phrase; German contracts some prepositions with the article: im, ins, zum, zur."""
    joined = f"{german} {inner.german}"
    article_end = len(german) + 4
    contracted = _CONTRACTIONS.get(joined[:article_end])
    if contracted and joined[article_end] == " ":
        joined = contracted + joined[article_end:]
    return Text(f"(PP {preposition(english)} {inner.tree})", joined, inner.labels)


def preposition(english: str) -> str:
    """Return the leaf of an English preposition."""
    return f"({'TO' if english == 'to' else 'IN'} {english})"
