"""Log-sum-exp and top K of logits against torch's own."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer_core.decoding.hypotheses import logsumexp, top_logits


@given(
    rows=st.integers(1, 5), width=st.integers(4, 2_000), count=st.integers(1, 12), levels=st.integers(1, 10_000), seed=st.integers(0, 999)
)
def test_the_greatest_are_those_of_topk_also_among_equals(rows: int, width: int, count: int, levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (rows, width), generator=generator).double()
    count = min(count, width)
    values, places = top_logits(logits, count)
    assert torch.equal(values, logits.topk(count, dim=1).values)
    assert torch.equal(logits.gather(1, places), values)
    assert all(len(set(row)) == count for row in places.tolist())


@given(rows=st.integers(1, 3), seed=st.integers(0, 999), scale=st.sampled_from([0.01, 1.0, 300.0]))
def test_the_normaliser_is_that_of_torch(rows: int, seed: int, scale: float) -> None:
    logits = scale * torch.randn(rows, 20_000, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits[:, 3] = -torch.inf
    assert torch.allclose(logsumexp(logits), logits.logsumexp(dim=1), rtol=1e-12, atol=0)


def test_the_normaliser_of_a_row_does_not_depend_on_other_rows() -> None:
    logits = torch.randn(33, 70_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = logsumexp(logits)
    assert torch.equal(torch.cat([logsumexp(row[None]) for row in logits]), together)
    assert torch.equal(logsumexp(logits[5:9]), together[5:9])


def test_low_precision_is_summed_in_float32() -> None:
    logits = torch.randn(4, 40_000, generator=torch.Generator().manual_seed(2)).bfloat16()
    assert torch.allclose(logsumexp(logits), logits.double().logsumexp(dim=1).float(), rtol=1e-6)
