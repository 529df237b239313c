"""Translation memories (TMX) and XLIFF 1.2 and 2: sentences in several languages, marked up in XML."""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from xml.etree import ElementTree

from transformer_core.compressed import decompressed
from transformer_core.errors import UserError

# Elements of TMX 1.4 and XLIFF that hold the codes of the file that was translated; only what is inside their <sub> is text.
_CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})
_XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# Elements with a sentence in several languages, and those that are emptied of what was read, or else all units would stay in memory.
_UNITS = frozenset({"tu", "trans-unit", "segment"})
_EMPTIED = frozenset({"tu", "trans-unit", "unit", "group", "file"})
# Attributes with the languages of <source> and <target>, of XLIFF 1.2 and 2.
_DIRECTION = (("source-language", "target-language"), ("srcLang", "trgLang"))
_UNITS_LOOKED_AT = 1_000
# The elements with the text of a unit, and the language of each.
_Variants = list[tuple[str, ElementTree.Element]]


def sentences(path: Path, languages: Iterable[str]) -> Iterator[list[bytes]]:
    """Yield each unit's sentence by language, or an empty one; de reads de-AT. Raises `UserError` (65): as `decompressed`, or damaged."""
    wanted = [_tag(language) for language in languages]
    for variants in _units(path):
        yield [_text_in(variants, language).replace("\n", " ").strip().encode() for language in wanted]


def languages_in(path: Path) -> list[str]:
    """Return the languages of the first units, sorted."""
    return sorted({language for variants in islice(_units(path), _UNITS_LOOKED_AT) for language, _ in variants if language})


def _units(path: Path) -> Iterator[_Variants]:
    above: list[ElementTree.Element] = []
    languages = "", ""
    try:
        with decompressed(path) as file:
            for event, element in ElementTree.iterparse(file, events=("start", "end")):
                name = _local_name(element)
                if event == "start":
                    above.append(element)
                    for source, target in _DIRECTION:
                        if source in element.attrib:
                            languages = element.get(source, ""), element.get(target, "")
                    continue
                above.pop()
                if name in _UNITS:
                    yield _variants_of(element, languages)
                if name in _EMPTIED and above:
                    above[-1].clear()
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # The last two: invalid UTF-8, or an unknown encoding.
        raise UserError(f"{path}: damaged TMX or XLIFF file ({error})", "Get it again.") from None


def _variants_of(unit: ElementTree.Element, languages: tuple[str, str]) -> _Variants:
    if _local_name(unit) == "tu":
        segments = [(variant.get(_XML_LANGUAGE) or variant.get("lang") or "", variant.find("{*}seg")) for variant in unit]
    else:  # Not those in <alt-trans>, which are translations of similar texts.
        segments = [(language, unit.find(f"{{*}}{side}")) for language, side in zip(languages, ("source", "target"), strict=True)]
    return [(segment.get(_XML_LANGUAGE) or language, segment) for language, segment in segments if segment is not None]


def _text_in(variants: _Variants, language: str) -> str:
    """Return the text in a language, or else in a regional form of it; "" if there is none."""
    own = [segment for name, segment in variants if _tag(name) == language]
    regional = (segment for name, segment in variants if _tag(name).startswith(f"{language}-"))
    return next(filter(None, map(_text_of, chain(own[:1], regional))), "")


def _tag(language: str) -> str:
    return language.lower().replace("_", "-")


def _text_of(segment: ElementTree.Element) -> str:
    """Return the text of an element, and remove the codes in it."""
    for element in segment.iter():
        if _local_name(element) in _CODES:
            element.text = None
            for child in element:
                child.tail = None
    return "".join(segment.itertext())


def _local_name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
