"""The paper's learning rate (5.3, eq. 3), and a linear fall to zero at the end for those who want one."""


def learning_rate(update: int, d_model: int, warmup: int, factor: float) -> float:
    """factor * d_model^-0.5 * min(update^-0.5, update * warmup^-1.5); `update` counts from 1."""
    return factor * d_model**-0.5 * min(update**-0.5, update * warmup**-1.5)


def cooled(update: int, updates: int, cooldown: int) -> float:
    """What the rate is multiplied by: 1, then over the last `cooldown` of all updates in equal steps down to 1 / (cooldown + 1)."""
    return min(1.0, (updates - update + 1) / (cooldown + 1))
