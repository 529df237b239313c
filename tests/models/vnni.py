"""A mark for tests that multiply 8-bit integers."""

import pytest

from transformer_core.models.precision import has_vnni

needs_vnni = pytest.mark.skipif(not has_vnni(), reason="this CPU does not multiply 8-bit integers")
