"""Every form of a verb in both languages at once, so that choosing a tense and a person is one look-up."""

from dataclasses import dataclass
from typing import NamedTuple

from transformer_core.corpus.synthetic import phenomena
from transformer_core.corpus.synthetic.morphology import (
    ER,
    ICH,
    SIE,
    english_ing,
    english_past,
    english_third_person,
    german_present,
    german_preterite,
)

(
    PRESENT,
    PROGRESSIVE,
    PAST,
    PERFECT,
    PLUPERFECT,
    FUTURE,
    SINCE,
    CAN,
    MUST,
    SHOULD,
    WANT,
    MAY,
    COULD,
    HAD_TO,
    WANTED,
    INFINITIVE,
) = range(16)
TENSES = range(16)
PERSONS = range(ICH, SIE + 1)

_HAVE = ("habe", "hast", "hat", "haben", "haben", "haben")
_BE = ("bin", "bist", "ist", "sind", "sind", "sind")
_BECOME = ("werde", "wirst", "wird", "werden", "werden", "werden")
_MODALS = {
    FUTURE: _BECOME,
    CAN: ("kann", "kannst", "kann", "können", "können", "können"),
    MUST: ("muss", "musst", "muss", "müssen", "müssen", "müssen"),
    SHOULD: german_preterite("sollte"),
    WANT: ("will", "willst", "will", "wollen", "wollen", "wollen"),
    MAY: ("darf", "darfst", "darf", "dürfen", "dürfen", "dürfen"),
    COULD: german_preterite("konnte"),
    HAD_TO: german_preterite("musste"),
    WANTED: german_preterite("wollte"),
}
_ENGLISH_MODALS = {FUTURE: "will", CAN: "can", MUST: "must", SHOULD: "should", COULD: "could"}
_REFLEXIVES = {
    "": ("",) * 6,
    "sich": (" mich", " dich", " sich", " uns", " sich", " sich"),
    "sich3": (" mir", " dir", " sich", " uns", " sich", " sich"),
}
_PARTICLES = {"back": "ADVP (RB", "forward": "ADVP (RB", "asleep": "ADJP (JJ", "dressed": "ADJP (VBN", "place": "NP (NN", "part": "NP (NN"}
_PREPOSITIONS = ("for", "to", "of", "about", "in", "after")


class VerbForm(NamedTuple):
    """One tense and person of a verb, English and German. Words that follow another bring their blank along.

    English is `auxiliary` + what stands between + `main`. The tree of the verb phrase is `(VP` + `auxiliary_tree` + ... + `main_tree` +
    ... + `close` + `)`, without the outer brackets where there is no auxiliary. German is `finite` in the second place and `bracket` at
    the end of the clause, or `last` at its end.
    """

    auxiliary: str
    auxiliary_tree: str
    main: str
    main_tree: str
    close: str
    finite: str
    bracket: str
    last: str
    labels: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The principal parts of a verb in both languages, read from a line of the table."""

    base: str
    past: str
    participle: str
    ing: str
    particle: str
    preposition: str
    german_prefix: str
    german_infinitive: str
    german_third: str
    german_participle: str
    perfect_with_sein: bool
    preterite: str
    reflexive: str
    german_preposition: str
    labels: int

    @classmethod
    def parse(cls, english: str, german: str, labels: int) -> "Parts":
        """Read the first two fields of a line of `verbs.VERBS`; see there."""
        words, _, rest = english.partition("+")
        base, *irregular = words.split()
        past = irregular[0] if irregular else english_past(base)
        participle = irregular[1] if irregular else past
        ing = irregular[2] if len(irregular) > 2 else english_ing(base)
        followers = rest.split()
        preposition = followers.pop() if followers and followers[-1] in _PREPOSITIONS else ""

        fields = german.split()
        reflexive = fields.pop(0) if fields[0] in _REFLEXIVES else ""
        prefix, _, infinitive = fields[0].rpartition("|")
        _, third, german_participle, *marks = fields
        return cls(
            base,
            past,
            participle,
            ing,
            " ".join(followers),
            preposition,
            prefix,
            infinitive,
            third,
            german_participle,
            "ist" in marks,
            next((mark[1:] for mark in marks if mark.startswith("=")), ""),
            reflexive,
            next((mark for mark in marks if mark[-1] in "34"), ""),
            labels | (phenomena.REFLEXIVE if reflexive else 0) | (phenomena.SEPARABLE_VERB if prefix else 0),
        )

    @property
    def reflexives(self) -> tuple[str, ...]:
        """The reflexive pronoun of each person with its blank; empty strings for other verbs."""
        return _REFLEXIVES[self.reflexive]

    def forms(self) -> tuple[VerbForm, ...]:
        """At `tense * 6 + person`, as in statements."""
        return tuple(self._form(tense, person, supported=False) for tense in TENSES for person in PERSONS)

    def supported_forms(self) -> tuple[VerbForm, ...]:
        """The same with an auxiliary in English throughout, as "not" and questions need it: does read."""
        return tuple(self._form(tense, person, supported=True) for tense in TENSES for person in PERSONS)

    def _form(self, tense: int, person: int, supported: bool) -> VerbForm:
        german = self._german(tense, person)
        auxiliary, mains = self._english(tense, person, supported)
        auxiliary_tree = f" ({_tag(auxiliary)} {auxiliary})" if auxiliary else ""
        if mains:
            mains[-1:] = [mains[-1], *((word, "PRT (RP") for word in self.particle.split())]
        main = "".join(f" {word}" for word, _ in mains)
        main_tree, close = _nested(mains)
        return VerbForm(f" {auxiliary}" if auxiliary else "", auxiliary_tree, main, main_tree, close, *german)

    def _english(self, tense: int, person: int, supported: bool) -> tuple[str, list[tuple[str, str]]]:
        """The auxiliary and the other verbs with their tags."""
        third = person == ER
        base, have = (self.base, "VB"), "has" if third else "have"
        be = "am" if person == ICH else "is" if third else "are"
        do, did = ("does" if third else "do"), "did"
        if tense in _ENGLISH_MODALS and not (tense == MUST and supported):
            return _ENGLISH_MODALS[tense], [base]
        if tense == PERFECT:
            return have, [(self.participle, "VBN")]
        if tense == PLUPERFECT:
            return "had", [(self.participle, "VBN")]
        if tense == PROGRESSIVE:
            return be, [(self.ing, "VBG")]
        if tense == SINCE:
            return have, [("been", "VBN"), (self.ing, "VBG")]
        if tense == MAY:
            return be, [("allowed", "VBN"), ("to", "TO"), base]
        if tense == INFINITIVE:
            return "", [("to", "TO"), base]
        if self.base == "be" and tense in (PRESENT, PAST):
            return (be, []) if tense == PRESENT else ("was" if person in (ICH, ER) else "were", [])
        wants = {WANT: "want", WANTED: "want", MUST: "have", HAD_TO: "have"}
        past = tense in (PAST, WANTED, HAD_TO)
        chain = [("to", "TO"), base] if tense in wants else []
        head = wants.get(tense, self.base)
        if supported:
            return (did if past else do), [(head, "VB"), *chain]
        if past:
            finite = {"want": "wanted", "have": "had"}.get(head, self.past) if chain else self.past
        else:
            finite = english_third_person(head) if third else head
        return "", [(finite, "VBD" if past else "VBZ" if third else "VBP"), *chain]

    def _german(self, tense: int, person: int) -> tuple[str, str, str, int]:
        """Second-place verb, rest of the verb at the end, all of it at the end, and labels."""
        prefix, infinitive = self.german_prefix, self.german_prefix + self.german_infinitive
        perfect = tense in (PERFECT, PLUPERFECT) or (tense == PAST and not self.preterite)
        if tense in _MODALS:
            finite = _MODALS[tense][person]
            modal = 0 if tense == FUTURE else phenomena.MODAL_VERB
            return finite, f" {infinitive}", f"{infinitive} {finite}", self.labels | modal
        if perfect:
            if tense == PLUPERFECT:
                finite = german_preterite("war" if self.perfect_with_sein else "hatte")[person]
            else:
                finite = (_BE if self.perfect_with_sein else _HAVE)[person]
            label = phenomena.PERFECT_SEIN if self.perfect_with_sein else phenomena.PERFECT_HABEN
            return finite, f" {self.german_participle}", f"{self.german_participle} {finite}", self.labels | label
        if tense == INFINITIVE:
            with_zu = f"{prefix}zu{self.german_infinitive}" if prefix else f"zu {infinitive}"
            return "", "", with_zu, self.labels
        table = german_preterite(self.preterite) if tense == PAST else german_present(self.german_infinitive, self.german_third)
        return table[person], f" {prefix}" if prefix else "", prefix + table[person], self.labels


def _tag(auxiliary: str) -> str:
    if auxiliary in _ENGLISH_MODALS.values():
        return "MD"
    if auxiliary in ("has", "is", "does"):
        return "VBZ"
    return "VBD" if auxiliary in ("had", "was", "were", "did") else "VBP"


def _nested(words: list[tuple[str, str]]) -> tuple[str, str]:
    """The opening and the closing of nested verb phrases, one in the other: " (VP (VBZ wants) (S (VP (TO to) (VP (VB buy)" and "))))"."""
    opening, depth = "", 0
    for word, tag in words:
        if tag.startswith("PRT"):
            opening += f" ({_PARTICLES.get(word, tag)} {word}))"
            continue
        bracket = "(S (VP" if tag == "TO" else "(VP"
        opening += f" {bracket} ({tag} {word})"
        depth += bracket.count("(")
    return opening, ")" * depth
