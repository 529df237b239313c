"""The paper's learning rate (5.3, eq. 3)."""


def learning_rate(update: int, d_model: int, warmup: int, factor: float) -> float:
    """factor * d_model^-0.5 * min(update^-0.5, update * warmup^-1.5); `update` counts from 1."""
    return factor * d_model**-0.5 * min(update**-0.5, update * warmup**-1.5)
