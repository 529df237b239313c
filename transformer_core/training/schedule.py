"""The paper's learning rate (5.3, eq. 3), and a linear fall to zero at the end for those who want one."""


def learning_rate(update: int, d_model: int, warmup: int, factor: float) -> float:
    """factor * d_model^-0.5 * min(update^-0.5, update * warmup^-1.5); `update` counts from 1."""
    return factor * d_model**-0.5 * min(update**-0.5, update * warmup**-1.5)


def cooled(update: int, updates: int, share: float) -> float:
    """What the rate is multiplied by: 1, and over the last `share` of the updates in equal steps down to almost 0."""
    return min(1.0, (updates - update + 1) / (round(share * updates) + 1))
