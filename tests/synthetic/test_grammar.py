"""Words, phrases and clauses of the generator in both languages, each against forms written by hand."""

import re
from pathlib import Path

import pytest

from tests.synthetic.treebank import leaves, tokens
from transformer_core.synthetic import phrases
from transformer_core.synthetic.clauses import NOT, Clause, Complement, assemble, fronted, statement, subordinate
from transformer_core.synthetic.conjugation import Tense
from transformer_core.synthetic.lexicon import Noun, Text, Verb, conjunctions, lexicon, rows
from transformer_core.synthetic.morphology import ACCUSATIVE, DATIVE, GENITIVE, NOMINATIVE
from transformer_core.synthetic.numerals import cardinal, clock, ordinal
from transformer_core.synthetic.phrases import DETERMINERS, POSSESSIVES, NounPhrase, noun_phrase, owned, prepositional, pronoun
from transformer_core.synthetic.sentences import finish, finished_tree

CASES = {"nom": NOMINATIVE, "acc": ACCUSATIVE, "dat": DATIVE, "gen": GENITIVE}
NAMED = {**DETERMINERS, "my": POSSESSIVES["i"], "our": POSSESSIVES["we"], "which": phrases.WHICH, "21": phrases.numeral(21)}
NAMED |= {"not a": phrases.NOT_A, "not bare": phrases.NOT_BARE}


def table(section: str) -> list[list[str]]:
    """The rows of a section of forms.txt, which says what its cells are."""
    text = Path(__file__).with_name("forms.txt").read_text(encoding="utf-8")
    _, _, rest = text.partition(f"[{section}]")
    rows = [line.split(" | ") for line in rest.partition("\n[")[0].strip().split("\n")[1:]]
    assert rows, section
    return rows


def noun(english: str, german: str = "") -> Noun:
    return next(word for kind in lexicon().nouns.values() for word in kind if word.english == english and german in ("", word.german))


def verb(english: str, german: str = "", frame: str = "") -> Verb:
    return next(word for word in lexicon().verbs if word.english == english and german in ("", word.german) and frame in ("", word.frame))


def phrase(determiner: str, described: str, form: str, german: str = "") -> NounPhrase:
    """`form` is a case, and "pl" for the plural."""
    *words, last = described.split()
    head = noun(last, german)
    adjectives = tuple(next(one for one in head.adjectives if one.english == word) for word in words)
    return noun_phrase(NAMED[determiner], adjectives, head, int("pl" in form), CASES[form[:3]])


# Numbers, times


def test_numbers_ordinals_and_times_are_written_in_words() -> None:
    assert [[number, *cardinal(int(number))] for number, _, _ in table("numbers")] == table("numbers")
    assert [[number, *ordinal(int(number))] for number, _, _ in table("ordinals")] == table("ordinals")
    assert [[time, *clock(*map(int, time.split(":")))] for time, _, _ in table("times")] == table("times")


def test_all_number_words_differ() -> None:
    numbers = [*range(2_000), *range(2_000, 1_000_000, 997)]
    for words in zip(*map(cardinal, numbers), strict=True):
        assert len(set(words)) == len(numbers)


# Words


def test_determiners_and_adjectives_agree_in_gender_number_and_case() -> None:
    english = {"Mann": "old man", "Frau": "old woman", "Buch": "old book", "Bücher": "old book"}
    for determiner, *expected in table("declensions"):
        head = expected[0].split()[-1]
        forms = [f"{case} pl" if head == "Bücher" else case for case in CASES]
        assert [phrase(determiner, english[head], form).german for form in forms] == expected


def test_noun_phrases_are_translated() -> None:
    for determiner, words, form, english, german in table("noun phrases"):
        found = phrase(determiner, words, form)
        assert (leaves(found.tree), found.german) == (english.split(), german)


def test_an_owner_is_in_the_genitive() -> None:
    car, old = noun("car"), phrase("the", "old car", "nom")
    adjective = tuple(one for one in car.adjectives if f"{one.tree}" in old.tree)
    anna = NounPhrase("(NP (NNP Anna))", "Anna", 2, 0, "she", noun("woman"), True, False)
    found = [
        owned(phrase("the", "teacher", "gen"), adjective, car, 0, DATIVE),
        owned(phrase("my", "mother", "gen"), (), car, 1, ACCUSATIVE),
        owned(anna, adjective, car, 0, DATIVE),
    ]
    assert [(leaves(one.tree), one.german) for one in found] == [
        (["the", "teacher", "'s", "old", "car"], "dem alten Auto des Lehrers"),
        (["my", "mother", "'s", "cars"], "die Autos meiner Mutter"),
        (["Anna", "'s", "old", "car"], "Annas altem Auto"),
    ]


def test_prepositions_merge_with_the_article() -> None:
    forms = [
        prepositional("in", "in", phrase("the", "garden", "dat")),
        prepositional("to", "in", phrase("the", "cinema", "acc")),
        prepositional("to", "zu", phrase("the", "old station", "dat")),
        prepositional("to", "zu", phrase("the", "bank", "dat", "Bank")),
        prepositional("on", "an", phrase("the", "wall", "dat")),
        prepositional("in", "in", phrase("a", "garden", "dat")),
    ]
    assert [form.german for form in forms] == ["im Garten", "ins Kino", "zum alten Bahnhof", "zur Bank", "an der Wand", "in einem Garten"]


def test_no_german_form_is_missing_or_misspelt_by_rule() -> None:
    nouns = [word for kind in lexicon().nouns.values() for word in kind]
    assert [word.forms[3] for word in nouns if re.match(r"\w*(ss|zs|ßs|xs)\b", word.forms[3])] == []
    counted = [word.forms[6].split()[0] for word in nouns if word.counted]
    assert [form for form in counted if not form.endswith(("n", "s"))] == []
    adjectives = {cell for word in nouns for one in word.adjectives for cells in one.forms for cell in cells}
    assert [form for form in adjectives if not form.endswith(("e ", "en ", "em ", "er ", "es "))] == []


def test_the_tables_name_only_kinds_and_tenses_that_exist() -> None:
    words = lexicon()
    kinds = {*words.nouns, "weather", "city", "amount"}
    for word in words.verbs:
        assert kinds.issuperset(word.subjects), word.english
        if word.frame not in ("m", "adj", "job"):
            assert kinds.issuperset(word.objects), word.english
    assert {row["tense"] for row in rows("conjunctions")} - {""} <= set(words.be.forms)


def test_the_lexicon_has_at_least_400_lemmas() -> None:
    assert len({(row["english"], row["german"]) for name in ("nouns", "verbs", "adjectives") for row in rows(name)}) >= 400


def test_verbs_are_inflected() -> None:
    he = pronoun("he", noun("man"), NOMINATIVE)
    for english, german, present, past, perfect, er, zu, last in table("verb forms"):
        word = verb(english, german)

        def clause(tense: Tense, word: Verb = word) -> Clause:
            return assemble(word, he, tense, Complement())

        assert [" ".join(leaves(f" {clause(tense).verb_phrase()}")) for tense in ("present", "past", "perfect")] == [present, past, perfect]
        assert clause("present").subject_first() == er
        assert (word.forms["infinitive"][0].last, word.forms["past"][he.person].last) == (zu, last)


# Clauses

YESTERDAY, ALREADY = Text("(NP (NN yesterday))", "gestern"), Text("(ADVP (RB already))", "schon")
OTHERS = {
    "tired": Complement("(ADJP (JJ tired))", late=" müde"),
    "to Berlin": Complement.of_adverbial(Text("(PP (TO to) (NP (NNP Berlin)))", "nach Berlin")),
}


@pytest.mark.parametrize("row", table("clauses"), ids=lambda row: row[4])
def test_clauses_are_translated_in_every_order(row: list[str]) -> None:
    said, who, what, adverbs, english, main, last = row
    words, tense = said.rsplit(" ", 1)
    chosen = verb(*words.split("/"))
    subject = phrase("the", "man", "nom") if who == "man" else pronoun(who, noun("man"), NOMINATIVE)
    complement = OTHERS.get(what)
    if complement is None:
        found = pronoun("she", noun("woman"), DATIVE) if what == "she" else phrase(*what.split("/"))
        complement = Complement.of_preposition(chosen, found) if chosen.frame == "p" else Complement.of_object(chosen, found)
    middle = NOT if "not" in adverbs else ALREADY if "already" in adverbs else None
    when = YESTERDAY if "yesterday" in adverbs else None
    clause = assemble(chosen, subject, tense.replace("_", " "), complement, middle, when)  # type: ignore[arg-type]

    plain, after = statement(clause), subordinate(conjunctions("past")[0], clause)
    first = fronted(Text("(ADVP (RB unfortunately))", "leider"), clause, comma=True)
    assert (leaves(plain.tree), plain.german) == (tokens(english), main)
    assert (leaves(after.tree), after.german) == (["because", *tokens(english)], f", weil {last},")
    assert leaves(first.tree) == ["unfortunately", ",", *tokens(english)]
    assert first.german.split()[:2] == ["leider", clause.form.finite]
    assert sorted(first.german.split()) == sorted(["leider", *main.split()])


def test_a_comma_gives_way_to_the_mark_behind_it() -> None:
    text = Text("(S (NP (PRP he)) (VP (MD can) (RB not)  (VP (VB sleep) )))", "er sagt,, dass er schläft,,")
    done = finish(text, ".")
    assert (done.source, done.target) == ("He cannot sleep.", "Er sagt, dass er schläft.")
    assert finished_tree(done) == "(S (NP (PRP He)) (VP (MD can) (RB not) (VP (VB sleep))) (. .))"
