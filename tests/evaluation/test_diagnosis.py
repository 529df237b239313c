"""What the tables of a training say in words."""

import math

import pytest

from transformer_core.evaluation.diagnosis import fit, unread_source


def fit_of(in_training: float, *on_valid: float) -> str:
    """What is said of a training whose perplexity falls to this one at once, with validations at even distances."""
    updates = [{"update": 20.0 * number, "perplexity": 500.0 if number == 1 else in_training} for number in range(1, 26)]
    return fit(updates, [{"update": 100.0 * number, "perplexity": value} for number, value in enumerate(on_valid, start=1)])


@pytest.mark.parametrize(
    ("in_training", "on_valid", "said"),
    [
        (2.0, (30, 9, 6, 7, 8), "Perplexity 2.00 in training (with dropout), 8.00 on valid: the model overfits since update 300:"),
        (46.0, (300, 200, 150, 120, 102), "the model overfits, or valid is of another domain: raise model.dropout"),  # 0.8 nats.
        (1.83, (9, 4, 3, 2.75, 2.63), "the model underfits, for valid still improves: raise train.updates"),
        (431.0, (900, 700, 5000, 9000, 9697), "9697.00 on valid: the model has learnt little: lower train.learning_rate_factor"),
        (8.0, (30, 12, 9, 8.05, 8.0), "the model fits: more updates would change little"),
    ],
)
def test_over_and_underfitting_are_told_from_the_perplexities(in_training: float, on_valid: tuple[float, ...], said: str) -> None:
    assert said in fit_of(in_training, *on_valid)
    # Nothing without finite updates, or without two finite validations.
    assert fit([], []) == fit([], [{"update": 5, "perplexity": 9}, {"update": 9, "perplexity": 9}]) == fit_of(8.0, 30) == ""
    assert fit_of(8.0, 30, math.nan) == ""


@pytest.mark.parametrize(
    ("update", "gain", "warned"),
    [(200, 0.01, False), (300, 0.19, True), (300, 0.24, False), (500, -0.02, True), (500, 0.5, False), (500, math.nan, False)],
)
def test_a_model_that_does_not_read_its_source_is_named_from_the_half_of_its_updates_on(update: int, gain: float, warned: bool) -> None:
    assert bool(unread_source({"update": update, "source_gain": gain}, 600)) == warned
    assert bool(unread_source({"update": update, "source_gain": gain}, 0)) == (gain < 0.4)  # The training is over.
    assert unread_source({"update": update}, 600) == ""  # A table of an older version.
