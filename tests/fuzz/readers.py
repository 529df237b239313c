"""All readers by name."""

import importlib
import importlib.util

from tests.fuzz.fuzzer import Reader

READERS: dict[str, Reader] = {
    name: reader
    for module in ("tests.fuzz.text_readers", "tests.fuzz.model_readers")
    if importlib.util.find_spec(module)
    for name, reader in importlib.import_module(module).READERS.items()
}
