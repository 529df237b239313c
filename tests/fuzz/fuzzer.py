"""A byte fuzzer: seeded mutations of valid examples, each read in this process under a bound of time and memory."""

import io
import random
import re
import resource
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from transformer_core.errors import UserError

SECONDS, BYTES = 10.0, 2 << 30
# Ten faults of a file and a remedy, each in a line of at most 2,000 characters.
_LONGEST_MESSAGE = 22_500
_LONGEST_INPUT = 1 << 18
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_INTERESTING = (
    b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xc2\x85", b"\r", b"\r\n", b"\n",
    b"\t", b"\x1b[31m", b" ", b"'", b'"', b"\\", b"\\u0000", b"\\ud800", b"{", b"}", b"[", b"]", b"(", b")", b"<", b">", b"&", b"*",
    b"!", b"%", b"#", b"~", b"null", b"true", b"NaN", b"Infinity", b"-Infinity", b".nan", b".inf", b"1e999", b"../", b"/etc/passwd",
    b"$(id)", b"; id", b"&amp;", b"&#0;", b"&#x110000;", b"&a ", b"*a", b"!!python/object/apply:os.system ", b"!!binary ",
    b"!!timestamp 2001-99-99", b"2001-99-99", b"!!int 0x", b"!!set ", b"<<: ", b"? ", b"- ", b": ", b"---\n", b"...\n", b"%YAML 9.9\n",
    b"%TAG ! !\n", b"0o9", b"1_000", b"\xf0\x9f\x98\x80",
)  # fmt: skip
_NUMBERS = (
    b"0", b"-0", b"-1", b"1", b"255", b"256", b"65536", b"2147483647", b"2147483648", b"4294967296", b"9223372036854775807",
    b"18446744073709551616", b"1e308", b"1e309", b"-1e309", b"5e-324", b"0.1", b"NaN", b"1" + b"0" * 400, b"9" * 5_000, b"0x7fffffff",
)  # fmt: skip
_NESTED = (b"[", b"{", b"(", b"(S ", b"- ", b"<a>", b'{"a":', b'[{"a":', b"a:\n ", b"<seg>", b"? ", b"&a [*a,")
# Ten levels of nine aliases each: a document that is small only until it is copied or printed.
_LAUGHS = b"a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (level, level, b",".join([b"*a%d" % (level - 1)] * 9)) for level in range(1, 10)
)

Read = Callable[[bytes, Path], None]


@dataclass(frozen=True)
class Reader:
    """A reader under test.

    Attributes:
        read: reads the bytes, in an empty folder that is also the working directory; returns, or raises `UserError`.
        examples: makes the valid inputs that are mutated.
    """

    read: Read
    examples: Callable[[], Sequence[bytes]]


def mutated(examples: Sequence[bytes], number: int, seed: int) -> bytes:
    """Return input `number`: an example with one to eight mutations; input i < len(examples) is example i as it is."""
    if number < len(examples):
        return examples[number]
    draw = random.Random(f"{seed} {number}")
    data = bytearray(draw.choice(examples))
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        _mutate(data, draw, examples)
    return bytes(data[:_LONGEST_INPUT])


def _mutate(data: bytearray, draw: random.Random, examples: Sequence[bytes]) -> None:
    place = draw.randint(0, len(data))
    end = min(len(data), place + draw.choice((1, 2, 8, 64, 4_096)))
    match draw.randrange(10):
        case 0:
            for _ in range(draw.choice((1, 1, 4))):
                if data:
                    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        case 1:
            del data[place:]
        case 2:
            del data[place:end]
        case 3:
            data[place:place] = data[place:end] * draw.choice((1, 2, 100))
        case 4 | 5:
            data[place : place + draw.choice((0, 0, 1, 4))] = draw.choice(_INTERESTING) * draw.choice((1, 1, 1, 3))
        case 6:
            if numbers := list(_NUMBER.finditer(data)):
                found = draw.choice(numbers)
                data[found.start() : found.end()] = draw.choice(_NUMBERS)
        case 7:
            data[place:place] = draw.choice(_NESTED) * draw.choice((2, 30, 1_000, 20_000))
        case 8:
            other = draw.choice(examples)
            begin = draw.randint(0, len(other))
            data[place:end] = other[begin : begin + draw.choice((8, 64, 4_096))]
        case 9:
            data[place:place] = draw.choice((_LAUGHS, draw.randbytes(draw.choice((1, 16, 200)))))


def check(reader: Reader, numbers: range, seed: int) -> None:
    """Read inputs of these numbers; fail with those that are neither taken nor refused."""
    examples, findings = reader.examples(), []
    _fault(reader.read, examples[0], is_example=True)  # What it imports can be large, and is none of an input's.
    with _memory_bound():
        for number in numbers:
            if fault := _fault(reader.read, mutated(examples, number, seed), is_example=number < len(examples)):
                findings.append(f"input {number}: {fault}")
    assert not findings, "\n".join(findings)


def _fault(read: Read, data: bytes, is_example: bool) -> str | None:
    """Return what is wrong with a reader's answer to an input, which it reads in an empty folder."""
    printed = io.StringIO()
    try:
        with TemporaryDirectory() as folder, chdir(folder), _time_bound(), redirect_stdout(printed), redirect_stderr(printed):
            read(data, Path(folder))
    except UserError as error:
        text = str(error)
        if is_example:
            return f"an example is refused: {text}"
        if not error.message.strip() or len(text) > _LONGEST_MESSAGE:
            return f"a message of {len(text):,} characters: {text[:_LONGEST_MESSAGE]}"
        if not all(line.strip() and line.isprintable() for line in text.split("\n")):  # A file of many faults has many lines.
            return f"a message with control characters or an empty line: {text!r}"
    except KeyboardInterrupt:
        raise
    except BaseException:
        return traceback.format_exc()
    return None


class _TooSlowError(BaseException):
    """The time bound was reached. No `Exception`, so that a reader does not turn it into a message."""


@contextmanager
def _time_bound() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _TooSlowError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # Of this process, however busy the machine is.
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _memory_bound() -> Iterator[None]:
    """Let this process grow by at most `BYTES`; beyond, Python raises `MemoryError`."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
