"""Numbers, ordinals and clock times in words, in English and German."""

from functools import cache, lru_cache

from transformer_core.synthetic.lexicon import rows


@cache
def _table() -> dict[int, dict[str, str]]:
    """Return the table `numbers` by number: 0 to 19, then tens."""
    return {int(row["number"]): row for row in rows("numbers")}


@lru_cache(maxsize=1 << 14)  # Of a million numbers, most are rare.
def cardinal(number: int) -> tuple[str, str]:
    """Return a number from 0 to 999,999 in British English words, and as one German word as in counting.

    21 is "twenty-one" and "einundzwanzig", 1001 "one thousand and one" and "eintausendeins".
    """
    if number in _table():
        return _table()[number]["english"], _table()[number]["german"]
    unit = 10 if number < 100 else 100 if number < 1000 else 1000
    count, rest = divmod(number, unit)
    english_rest, german_rest = cardinal(rest) if rest else ("", "")
    if unit == 10:
        english, german = cardinal(count * 10)
        return f"{english}-{english_rest}", f"{_before_noun(german_rest)}und{german}"
    english, german = cardinal(count)
    english_unit, german_unit = ("hundred", "hundert") if unit == 100 else ("thousand", "tausend")
    link = "" if not rest else " and " if rest < 100 else " "
    return f"{english} {english_unit}{link}{english_rest}", f"{_before_noun(german)}{german_unit}{german_rest}"


def _before_noun(german: str) -> str:
    return german[:-1] if german.endswith("eins") else german


def ordinal(number: int) -> tuple[str, str]:
    """Return an ordinal from 1 to 99, in German with the ending after "am" and "im": "twenty-first", "einundzwanzigsten"."""
    if number in _table():
        return _table()[number]["english ordinal"], _table()[number]["german ordinal"]
    return f"{cardinal(number // 10 * 10)[0]}-{ordinal(number % 10)[0]}", f"{cardinal(number)[1]}sten"


def clock(hour: int, minute: int) -> tuple[str, str]:
    """Return a time, `hour` from 1 to 12, `minute` a multiple of five: (3, 45) is "a quarter to four" and "Viertel vor vier"."""
    (english, german), (next_english, next_german) = cardinal(hour), cardinal(hour % 12 + 1)
    distance = min(minute, 60 - minute)
    english_distance, german_distance = ("a quarter", "Viertel") if distance == 15 else cardinal(distance)
    if minute == 0:
        return f"{english} o'clock", f"{_before_noun(german)} Uhr"
    if minute == 30:
        return f"half past {english}", f"halb {next_german}"
    if minute < 30:
        return f"{english_distance} past {english}", f"{german_distance} nach {german}"
    return f"{english_distance} to {next_english}", f"{german_distance} vor {next_german}"
