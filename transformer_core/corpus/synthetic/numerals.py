"""Numbers, ordinals, clock times and months in words, in both languages."""

from functools import lru_cache

LARGEST = 999_999

_ENGLISH_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_ENGLISH_TENS = ["", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_GERMAN_ONES = [
    "null",
    "eins",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
]
_GERMAN_TENS = ["", "zehn", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]

_ENGLISH_ORDINALS = {1: "first", 2: "second", 3: "third", 5: "fifth", 8: "eighth", 9: "ninth", 12: "twelfth"}
_GERMAN_ORDINALS = {1: "ersten", 3: "dritten", 7: "siebten", 8: "achten"}

MONTHS: tuple[tuple[str, str], ...] = (
    ("January", "Januar"),
    ("February", "Februar"),
    ("March", "März"),
    ("April", "April"),
    ("May", "Mai"),
    ("June", "Juni"),
    ("July", "Juli"),
    ("August", "August"),
    ("September", "September"),
    ("October", "Oktober"),
    ("November", "November"),
    ("December", "Dezember"),
)
DAYS_IN_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@lru_cache(maxsize=1 << 14)  # Of a million, most are rare.
def english_number(number: int) -> str:
    """A number from 0 to 999,999 in British English words: 1001 is "one thousand and one".

    Raises:
        ValueError: the number is out of range.
    """
    if not 0 <= number <= LARGEST:
        raise ValueError(f"no words for {number}: out of 0 to {LARGEST}")
    if number < 20:
        return _ENGLISH_ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return f"{_ENGLISH_TENS[tens]}-{_ENGLISH_ONES[ones]}" if ones else _ENGLISH_TENS[tens]
    unit, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    count, rest = divmod(number, unit)
    link = "" if not rest else " and " if rest < 100 else " "
    return f"{english_number(count)} {name}{link}{english_number(rest) if rest else ''}"


@lru_cache(maxsize=1 << 14)  # Of a million, most are rare.
def german_number(number: int) -> str:
    """A number from 0 to 999,999 as one German word, as in counting: 21 is "einundzwanzig", 101 "einhunderteins".

    Raises:
        ValueError: the number is out of range.
    """
    if not 0 <= number <= LARGEST:
        raise ValueError(f"no words for {number}: out of 0 to {LARGEST}")
    if number < 20:
        return _GERMAN_ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return f"{_before_noun(_GERMAN_ONES[ones])}und{_GERMAN_TENS[tens]}" if ones else _GERMAN_TENS[tens]
    unit, name = (1000, "tausend") if number >= 1000 else (100, "hundert")
    count, rest = divmod(number, unit)
    return f"{_before_noun(german_number(count))}{name}{german_number(rest) if rest else ''}"


def _before_noun(word: str) -> str:
    return word[:-1] if word.endswith("eins") else word


def english_ordinal(number: int) -> str:
    """An ordinal from 1 to 99: "twenty-first"."""
    if number < 20:
        if number in _ENGLISH_ORDINALS:
            return _ENGLISH_ORDINALS[number]
        return f"{_ENGLISH_ONES[number]}th"
    tens, ones = divmod(number, 10)
    if ones:
        return f"{_ENGLISH_TENS[tens]}-{english_ordinal(ones)}"
    return f"{_ENGLISH_TENS[tens][:-1]}ieth"


def german_ordinal(number: int) -> str:
    """An ordinal from 1 to 99 with the ending that it has after "am" and "im": "einundzwanzigsten"."""
    if number < 20:
        return _GERMAN_ORDINALS.get(number, f"{_GERMAN_ONES[number]}ten")
    return f"{german_number(number)}sten"


def english_clock(hour: int, minute: int) -> str:
    """A time of day in words, `hour` from 1 to 12, `minute` a multiple of five: "a quarter to four" is (3, 45)."""
    following = hour % 12 + 1
    if minute == 0:
        return f"{_ENGLISH_ONES[hour]} o'clock"
    if minute == 30:
        return f"half past {_ENGLISH_ONES[hour]}"
    if minute in (15, 45):
        return f"a quarter past {_ENGLISH_ONES[hour]}" if minute == 15 else f"a quarter to {_ENGLISH_ONES[following]}"
    if minute < 30:
        return f"{english_number(minute)} past {_ENGLISH_ONES[hour]}"
    return f"{english_number(60 - minute)} to {_ENGLISH_ONES[following]}"


def german_clock(hour: int, minute: int) -> str:
    """The same time in German; half past three is "halb vier", one o'clock "ein Uhr"."""
    following = hour % 12 + 1
    if minute == 0:
        return f"{_before_noun(_GERMAN_ONES[hour])} Uhr"
    if minute == 30:
        return f"halb {_GERMAN_ONES[following]}"
    if minute in (15, 45):
        return f"Viertel nach {_GERMAN_ONES[hour]}" if minute == 15 else f"Viertel vor {_GERMAN_ONES[following]}"
    if minute < 30:
        return f"{german_number(minute)} nach {_GERMAN_ONES[hour]}"
    return f"{german_number(60 - minute)} vor {_GERMAN_ONES[following]}"
