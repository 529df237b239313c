"""The content words, with all their forms in both languages, and the lexicon that they make up.

Words are compared by identity: there is one object for each entry, and they serve as keys of caches.
"""

from dataclasses import dataclass

from transformer_core.corpus.synthetic import phenomena
from transformer_core.corpus.synthetic.conjugation import VerbForm

PEOPLE = ("person", "family", "parent")
# Frames whose complement is a clause, and those whose object a relative or question word may stand for.
CLAUSAL = ("c", "w", "z")
GAPS = ("a", "d", "p")
_NOT_THINGS = {*PEOPLE, "amount", "period"}
_WEIGHTS = {"i": 2, "g": 4, "l": 3, "by": 8, "foot": 4, "put": 4, "on": 4, "play": 6, "job": 4, "adj": 4, "m": 3, "c": 3, "w": 6, "z": 4}


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective; of those in one `block` only one stands before a noun.

    `english`, `tree` and each form of `german` [declension][cell] end in a blank.
    """

    block: int
    english: str
    tree: str
    german: tuple[tuple[str, ...], ...]
    predicate: str
    vowel: bool
    labels: int


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """How one is at a place and how one goes there: prepositions, and the German case of the goal."""

    english: str
    german: str
    goal: str
    goal_case: int


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun; `english` and `tree` are (singular, plural), `german` is at `number * 4 + case`."""

    kind: str
    lemma: str
    english: tuple[str, str]
    tree: tuple[str, str]
    german: tuple[str, ...]
    gender: int
    pronoun: str
    counted: bool
    job: bool
    vowel: bool
    place: Place | None
    adjectives: tuple[Adjective, ...]
    predicates: tuple[Adjective, ...]
    labels: int


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb with what it takes; `forms` and `supported` are at `tense * 6 + person`."""

    english: str
    german: str
    frame: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    state: bool
    lasting: bool
    simple_present: bool
    particle: bool
    preposition: str
    german_preposition: str
    forms: tuple[VerbForm, ...]
    supported: tuple[VerbForm, ...]
    reflexives: tuple[str, ...]
    labels: int


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """All content words.

    Attributes:
        nouns: by kind.
        verbs: each once.
        weighted: each as often as it is to be drawn, like the next four.
        simple: those that take no clause.
        activities: of these, what somebody may try or promise.
        by_subject: by the kind of noun that they may be said of.
        simple_by_subject: the simple ones of these.
        by_object: those with one object, by its kind.
        transitive: with an accusative that may be a thing, and a person as subject.
        plain_transitive: those of them with one meaning.
        handling: those of them that may be done to a kind of thing and go with "it".
        be: "be" with an adjective.
    """

    nouns: dict[str, tuple[Noun, ...]]
    verbs: tuple[Verb, ...]
    weighted: tuple[Verb, ...]
    simple: tuple[Verb, ...]
    activities: tuple[Verb, ...]
    by_subject: dict[str, tuple[Verb, ...]]
    simple_by_subject: dict[str, tuple[Verb, ...]]
    by_object: dict[str, tuple[Verb, ...]]
    transitive: tuple[Verb, ...]
    plain_transitive: tuple[Verb, ...]
    handling: dict[str, tuple[Verb, ...]]
    be: Verb

    @classmethod
    def of(cls, nouns: dict[str, tuple[Noun, ...]], verbs: tuple[Verb, ...]) -> "Lexicon":
        """Index the verbs; those whose kinds of nouns are not there are left out."""
        weighted = tuple(verb for verb in verbs for _ in range(_WEIGHTS.get(verb.frame, 2)))
        kinds = [*nouns, "weather"]
        simple = tuple(verb for verb in weighted if verb.frame not in CLAUSAL)
        transitive = tuple(verb for verb in verbs if verb.frame == "a" and "person" in verb.subjects and set(verb.objects) - _NOT_THINGS)
        handling = tuple(verb for verb in transitive if not verb.state and not verb.particle and verb.simple_present)
        return cls(
            nouns,
            verbs,
            weighted,
            simple,
            tuple(verb for verb in simple if _is_activity(verb)),
            {kind: tuple(verb for verb in weighted if kind in verb.subjects) for kind in kinds},
            {kind: tuple(verb for verb in simple if kind in verb.subjects) for kind in kinds},
            {kind: tuple(verb for verb in verbs if kind in verb.objects and verb.frame in GAPS) for kind in kinds},
            transitive,
            tuple(verb for verb in transitive if not verb.labels & phenomena.AMBIGUOUS_WORD),
            {kind: tuple(verb for verb in handling if kind in verb.objects) for kind in kinds},
            next(verb for verb in verbs if verb.english == "be" and verb.frame == "adj"),
        )

    def lemmas(self) -> set[tuple[str, str]]:
        """The pairs (English, German) of all nouns, verbs and adjectives."""
        nouns = [noun for kind in self.nouns.values() for noun in kind]
        found = {(noun.english[0], noun.lemma) for noun in nouns} | {(verb.english, verb.german) for verb in self.verbs}
        return found | {(adjective.english.strip(), adjective.predicate) for noun in nouns for adjective in noun.adjectives}


def _is_activity(verb: Verb) -> bool:
    """Whether somebody may try it; "um" is left out, because "um um etwas zu bitten" is ugly."""
    return (
        "person" in verb.subjects and not verb.state and verb.frame not in ("adj", "job") and not verb.german_preposition.startswith("um")
    )
