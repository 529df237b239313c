"""Inflection: pure functions from a lemma and its principal parts to its forms.

Cases are 0 nominative, 1 accusative, 2 dative, 3 genitive; genders 0 masculine, 1 feminine, 2 neuter, 3 plural of any gender. The forms
of a determiner or an adjective are one tuple, indexed by `gender * 4 + case` (a "cell").
"""

NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)
MASCULINE, FEMININE, NEUTER, PLURAL = range(4)
WEAK, MIXED, STRONG = range(3)
# Persons: I, you (informal), he/she/it, we, you (formal), they.
ICH, DU, ER, WIR, FORMAL, SIE = range(6)

# Forms of the definite article; endings of words declined like der (dies-, jed-, viel-) and like ein (kein, mein, unser), of adjectives.
DER = "der den dem des die die der der das das dem des die die den der"
LIKE_DER = "er en em es e e er er es es em es e e en er"
LIKE_EIN = "- en em es e e er er - - em es e e en er"
_ADJECTIVES = (
    "e en en en e e en en e e en en en en en en",
    "er en en en e e en en es es en en en en en en",
    "er en em en e e er er es es em en e e en er",
)
RELATIVE_PRONOUNS = "der den dem dessen die die der deren das das dem dessen die die denen deren"


def cells(stem: str, endings: str) -> tuple[str, ...]:
    """Return the sixteen cells of a determiner."""
    return tuple(stem + ending.strip("-") for ending in endings.split())


def adjective_cells(stem: str) -> tuple[tuple[str, ...], ...]:
    """Return the sixteen cells in weak (after der), mixed (after ein) and strong declension (without a determiner)."""
    return tuple(cells(stem, endings) for endings in _ADJECTIVES)


def noun_cases(nominative: str, gender: int, plural: str, *, weak: bool = False, genitive: str = "") -> tuple[str, ...]:
    """Return the four cases of the singular, then of the plural; `plural` is "" for a noun that is not counted.

    `weak`: declined like der Student: every case but the nominative equals the plural. `genitive`: that of the singular if it is not in -s.
    """
    oblique = plural if weak else nominative
    genitive = genitive or (nominative if gender == FEMININE else oblique if weak else nominative + "s")
    dative_plural = plural if plural.endswith(("n", "s")) else plural + "n"
    return (nominative, oblique, oblique, genitive, plural, plural, dative_plural, plural)


def german_present(infinitive: str, present: str) -> tuple[str, ...]:
    """Return the present of the six persons; `present` is the third person singular or, for an irregular verb, the four forms."""
    first, *others = present.split()
    if others:
        second, third, plural = others
    else:
        third, plural = present, infinitive
        first = infinitive[:-3] + "le" if infinitive.endswith("eln") else infinitive.removesuffix("n").removesuffix("e") + "e"
        second = third[:-1] + ("t" if third[-2] in "sßz" else "st")
    return (first, second, third, plural, plural, plural)


def german_preterite(third: str) -> tuple[str, ...]:
    """Return the preterite of the six persons, from the third person singular: war, hatte, konnte."""
    plural = third + ("n" if third.endswith("e") else "en")
    return (third, third + "st", third, plural, plural, plural)
