"""Inflection: pure functions from a lemma and its principal parts to its forms.

Cases count 0 nominative, 1 accusative, 2 dative, 3 genitive; genders 0 masculine, 1 feminine, 2 neuter, 3 plural of any gender. A
determiner's and an adjective's forms stand in one tuple, at `gender * 4 + case` (a "cell").
"""

NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)
MASCULINE, FEMININE, NEUTER, PLURAL = range(4)
WEAK, MIXED, STRONG = range(3)

# Persons: I, you (informal), he/she/it, we, you (formal), they.
ICH, DU, ER, WIR, FORMAL, SIE = range(6)

_VOWELS = "aeiou"

# Rows masculine, feminine, neuter, plural; columns nominative, accusative, dative, genitive.
_DEFINITE = ["der", "den", "dem", "des", "die", "die", "der", "der", "das", "das", "dem", "des", "die", "die", "den", "der"]
_LIKE_DEFINITE = ["er", "en", "em", "es", "e", "e", "er", "er", "es", "es", "em", "es", "e", "e", "en", "er"]
_LIKE_INDEFINITE = ["-", "en", "em", "es", "e", "e", "er", "er", "-", "-", "em", "es", "e", "e", "en", "er"]
_ADJECTIVES = (
    ["e", "en", "en", "en", "e", "e", "en", "en", "e", "e", "en", "en", "en", "en", "en", "en"],
    ["er", "en", "en", "en", "e", "e", "en", "en", "es", "es", "en", "en", "en", "en", "en", "en"],
    ["er", "en", "em", "en", "e", "e", "er", "er", "es", "es", "em", "en", "e", "e", "en", "er"],
)
RELATIVE_PRONOUNS = [
    "der",
    "den",
    "dem",
    "dessen",
    "die",
    "die",
    "der",
    "deren",
    "das",
    "das",
    "dem",
    "dessen",
    "die",
    "die",
    "denen",
    "deren",
]


def definite_article() -> tuple[str, ...]:
    """The sixteen cells of der, die, das."""
    return tuple(_DEFINITE)


def like_definite(stem: str) -> tuple[str, ...]:
    """The sixteen cells of a word declined like der: dies-, jed-, viel-."""
    return tuple(stem + ending for ending in _LIKE_DEFINITE)


def like_indefinite(stem: str) -> tuple[str, ...]:
    """The sixteen cells of a word declined like ein: kein, mein, unser."""
    return tuple(stem + ending.replace("-", "") for ending in _LIKE_INDEFINITE)


def adjective_cells(stem: str) -> tuple[tuple[str, ...], ...]:
    """The sixteen cells in weak (after der), mixed (after ein) and strong declension (after nothing)."""
    return tuple(tuple(stem + ending for ending in endings) for endings in _ADJECTIVES)


def noun_cases(nominative: str, gender: int, plural: str, *, weak: bool = False, genitive: str | None = None) -> tuple[str, ...]:
    """Four cases of the singular, then four of the plural.

    Args:
        nominative: the singular.
        gender: 0, 1 or 2.
        plural: its nominative, "" for a noun that is not counted.
        weak: declined like der Student: every case but the nominative is the plural's form.
        genitive: the singular's genitive where it is not in -s.
    """
    oblique = plural if weak else nominative
    if genitive is None:
        genitive = nominative if gender == FEMININE else oblique if weak else nominative + "s"
    dative_plural = plural if plural.endswith(("n", "s")) else plural + "n"
    return (nominative, oblique, oblique, genitive, plural, plural, dative_plural, plural)


def english_plural(noun: str) -> str:
    """The regular plural."""
    if noun.endswith("y") and noun[-2] not in _VOWELS:
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "z", "ch", "sh")) else "s")


def english_third_person(verb: str) -> str:
    """The third person singular: goes, watches, tries."""
    irregular = {"be": "is", "have": "has"}
    if verb in irregular:
        return irregular[verb]
    return verb + "es" if verb.endswith("o") else english_plural(verb)


def english_past(verb: str) -> str:
    """The regular past tense and participle."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in _VOWELS:
        return verb[:-1] + "ied"
    return verb + "ed"


def english_ing(verb: str) -> str:
    """The participle in -ing of a verb that doubles no consonant and does not end in -ie."""
    if verb.endswith("e") and verb not in ("be", "see"):
        return verb[:-1] + "ing"
    return verb + "ing"


def german_present(infinitive: str, third: str) -> tuple[str, ...]:
    """The present of the six persons, from the infinitive and the third person singular."""
    irregular = {
        "sein": ("bin", "bist", "sind"),
        "werden": ("werde", "wirst", "werden"),
        "wissen": ("weiß", "weißt", "wissen"),
        "mögen": ("mag", "magst", "mögen"),
        "halten": ("halte", "hältst", "halten"),
        "tun": ("tue", "tust", "tun"),
    }
    if infinitive in irregular:
        first, second, plural = irregular[infinitive]
    else:
        first = infinitive[:-3] + "le" if infinitive.endswith("eln") else infinitive.removesuffix("n").removesuffix("e") + "e"
        second = third[:-1] + ("t" if third[-2] in "sßz" else "st")
        plural = infinitive
    return (first, second, third, plural, plural, plural)


def german_preterite(third: str) -> tuple[str, ...]:
    """The preterite of the six persons, from the third person singular: war, hatte, konnte."""
    plural = third + ("n" if third.endswith("e") else "en")
    return (third, third + "st", third, plural, plural, plural)
