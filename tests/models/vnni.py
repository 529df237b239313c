"""A mark for tests that multiply 8-bit integers."""

import pytest
import torch

_CAPABILITIES = torch.cpu.get_capabilities()
needs_vnni = pytest.mark.skipif(
    not (_CAPABILITIES.get("avx512_vnni") or _CAPABILITIES.get("avx_vnni")), reason="this CPU does not multiply 8-bit integers"
)
