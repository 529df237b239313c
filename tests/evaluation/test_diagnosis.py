"""What the tables of a training say in words."""

import pytest

from transformer_core.evaluation.diagnosis import Row, fit, unread_source

RATE = 20  # Updates between records, as in a training.


def validations(*perplexities: float) -> list[Row]:
    return [{"update": 100.0 * number, "perplexity": value} for number, value in enumerate(perplexities, start=1)]


def trained(perplexity: float, end: int = 500) -> list[Row]:
    """Records of a training whose perplexity falls to this one at once."""
    return [{"update": float(update), "perplexity": 500.0 if update == RATE else perplexity} for update in range(RATE, end + 1, RATE)]


@pytest.mark.parametrize(
    ("in_training", "on_valid", "said"),
    [
        (2.0, (30, 9, 6, 7, 8), "Perplexity 2.00 in training (with dropout), 8.00 on valid: the model overfits since update 300:"),
        (3.0, (30, 14, 13.2, 13.1, 13.1), "the model overfits, or valid is of another domain: raise model.dropout"),
        (46.0, (300, 200, 150, 120, 102), "overfits, or valid is of another domain"),  # 0.8 nats.
        (1.83, (9, 4, 3, 2.75, 2.63), "the model underfits, for valid still improves: raise train.updates"),
        (8.0, (30, 12, 9, 8.05, 8.0), "the model fits: more updates would change little"),
    ],
)
def test_over_and_underfitting_are_told_from_the_perplexities(in_training: float, on_valid: tuple[float, ...], said: str) -> None:
    assert said in fit(trained(in_training), validations(*on_valid))


def test_nothing_is_said_of_a_training_without_finite_updates_or_scores() -> None:
    assert fit([], validations(30, 20)) == fit(trained(8.0), validations(30, float("nan"))) == ""


@pytest.mark.parametrize(
    ("update", "gain", "warned"), [(300, 0.01, True), (500, -0.02, True), (200, 0.01, False), (500, 0.5, False), (500, float("nan"), False)]
)
def test_a_model_that_does_not_read_its_source_is_named_from_the_half_of_its_updates_on(update: int, gain: float, warned: bool) -> None:
    assert bool(unread_source({"update": update, "source_gain": gain}, 600)) == warned


def test_a_table_of_an_older_version_warns_of_nothing() -> None:
    assert unread_source({"update": 600, "nll": 2.0}, 600) == ""
