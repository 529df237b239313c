"""Every form of a verb in both languages, computed once, so that a tense and a person are one look-up."""

from typing import Literal, NamedTuple, get_args

from transformer_core.synthetic import phenomena
from transformer_core.synthetic.morphology import ER, ICH, SIE, german_present, german_preterite

# "since" is an action that continues: has been working, arbeitet seit.
Tense = Literal[
    "present", "progressive", "past", "perfect", "pluperfect", "future", "since", "can", "must", "should", "want", "may",
    "could", "had to", "wanted", "infinitive",
]  # fmt: skip

_HAVE, _BE, _BECOME = (german_present("", forms) for forms in ("habe hast hat haben", "bin bist ist sind", "werde wirst wird werden"))
_GERMAN_MODALS: dict[Tense, tuple[str, ...]] = {
    "future": _BECOME,
    "can": german_present("", "kann kannst kann können"),
    "must": german_present("", "muss musst muss müssen"),
    "should": german_preterite("sollte"),
    "want": german_present("", "will willst will wollen"),
    "may": german_present("", "darf darfst darf dürfen"),
    "could": german_preterite("konnte"),
    "had to": german_preterite("musste"),
    "wanted": german_preterite("wollte"),
}
_ENGLISH_MODALS: dict[Tense, str] = {"future": "will", "can": "can", "must": "must", "should": "should", "could": "could"}
_TAGS = {**dict.fromkeys(_ENGLISH_MODALS.values(), "MD"), "has": "VBZ", "is": "VBZ", "does": "VBZ"}
_TAGS |= dict.fromkeys(("had", "was", "were", "did"), "VBD") | dict.fromkeys(("have", "am", "are", "do"), "VBP")
_PARTICLES = {"back": "ADVP (RB", "forward": "ADVP (RB", "asleep": "ADJP (JJ", "dressed": "ADJP (VBN", "place": "NP (NN", "part": "NP (NN"}


class VerbForm(NamedTuple):
    """One tense and person of a verb, in English as pieces of a tree and in German.

    The English verb phrase is `auxiliary`, an adverb or the subject, `main`, the complement and `close`, inside a "(VP ...)" if there is an
    auxiliary. German has `finite` in the second place and `bracket` (with a blank before it) at the end, or `last` at the end.
    """

    auxiliary: str
    main: str
    close: str
    finite: str
    bracket: str
    last: str
    labels: int


Forms = dict[Tense, tuple[VerbForm, ...]]  # By [tense][person].


class EnglishVerb(NamedTuple):
    """The principal parts of an English verb; `particle` is one or more words after it."""

    base: str
    third: str
    past: str
    participle: str = ""
    ing: str = ""
    particle: str = ""

    def form(self, tense: Tense, person: int, supported: bool) -> tuple[str, str, str]:
        """Return the auxiliary, the main verb and the brackets that close it."""
        auxiliary, mains = self._words(tense, person, supported)
        opening = " ".join(f"{'(S (VP' if tag == 'TO' else '(VP'} ({tag} {word})" for tag, word in mains)
        depth = len(mains) + opening.count("(S ")
        if mains:
            opening += "".join(f" ({_PARTICLES.get(word, 'PRT (RP')} {word}))" for word in self.particle.split())
        return f"({_TAGS[auxiliary]} {auxiliary})" if auxiliary else "", opening, ")" * depth

    def _words(self, tense: Tense, person: int, supported: bool) -> tuple[str, list[tuple[str, str]]]:
        """Return the auxiliary, and the other verbs as (tag, word)."""
        third = person == ER
        base, to, have = ("VB", self.base), ("TO", "to"), "has" if third else "have"
        be = "am" if person == ICH else "is" if third else "are"
        if tense in _ENGLISH_MODALS and not (tense == "must" and supported):
            return _ENGLISH_MODALS[tense], [base]
        if self.base == "be" and tense in ("present", "past"):
            return (be, []) if tense == "present" else ("was" if person in (ICH, ER) else "were", [])
        match tense:
            case "perfect":
                return have, [("VBN", self.participle)]
            case "pluperfect":
                return "had", [("VBN", self.participle)]
            case "progressive":
                return be, [("VBG", self.ing)]
            case "since":
                return have, [("VBN", "been"), ("VBG", self.ing)]
            case "may":
                return be, [("VBN", "allowed"), to, base]
            case "infinitive":
                return "", [to, base]
        head, chain = (_WITH_TO[tense], [to, base]) if tense in _WITH_TO else (self, [])
        past = tense in ("past", "wanted", "had to")
        if supported:
            return "did" if past else "does" if third else "do", [("VB", head.base), *chain]
        return "", [("VBD", head.past) if past else ("VBZ", head.third) if third else ("VBP", head.base), *chain]


_WANT, _MUST = EnglishVerb("want", "wants", "wanted"), EnglishVerb("have", "has", "had")
_WITH_TO: dict[Tense, EnglishVerb] = {"want": _WANT, "wanted": _WANT, "must": _MUST, "had to": _MUST}


class GermanVerb(NamedTuple):
    """The principal parts of a German verb. If `preterite` is "", the English past is a perfect. `sein`: the auxiliary, else haben."""

    prefix: str
    infinitive: str
    present: str
    participle: str
    sein: bool
    preterite: str

    def form(self, tense: Tense, person: int) -> tuple[str, str, str, int]:
        """Return the verb in the second place, its rest at the end, the whole verb at the end, and the labels."""
        prefix, infinitive = self.prefix, self.prefix + self.infinitive
        if tense in _GERMAN_MODALS:
            finite = _GERMAN_MODALS[tense][person]
            return finite, f" {infinitive}", f"{infinitive} {finite}", 0 if tense == "future" else phenomena.MODAL_VERB
        if tense in ("perfect", "pluperfect") or (tense == "past" and not self.preterite):
            label = phenomena.PERFECT_SEIN if self.sein else phenomena.PERFECT_HABEN
            if tense == "pluperfect":
                finite = german_preterite("war" if self.sein else "hatte")[person]
            else:
                finite = (_BE if self.sein else _HAVE)[person]
            return finite, f" {self.participle}", f"{self.participle} {finite}", label
        if tense == "infinitive":
            return "", "", f"{prefix}zu{self.infinitive}" if prefix else f"zu {infinitive}", 0
        finite = (german_preterite(self.preterite) if tense == "past" else german_present(self.infinitive, self.present))[person]
        return finite, f" {prefix}" if prefix else "", prefix + finite, 0


def conjugate(english: EnglishVerb, german: GermanVerb, labels: int, *, supported: bool = False) -> Forms:
    """Return the forms of the six persons in every tense. `supported`: always with an English auxiliary, for "not" and questions."""

    def form(tense: Tense, person: int) -> VerbForm:
        finite, bracket, last, more = german.form(tense, person)
        return VerbForm(*english.form(tense, person, supported), finite, bracket, last, labels | more)

    return {tense: tuple(form(tense, person) for person in range(ICH, SIE + 1)) for tense in get_args(Tense)}
