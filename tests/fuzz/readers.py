"""All readers by name."""

from tests.fuzz import model_readers, text_readers

READERS = {**text_readers.READERS, **model_readers.READERS}
