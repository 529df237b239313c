"""What the tables of a training say, in words: whether the model reads its source, and whether it over- or underfits."""

import math
from collections.abc import Mapping, Sequence

# `source_gain` of models that read: 0.5 to 5 nats a token (docs/training.md). Of one with 0.4 BLEU: 0.26; if its sources are shuffled: 0.0.
_LEAST_GAIN = 0.4
# Before half of a training attention may not have formed yet. Then 5,000 pairs of news have 0.24 and, at the end, 0.75 with 3.1 BLEU.
_SHARE = 0.5
# In nats a token of valid. The default recipe's gap to its training text is 0.4, that of 900 pairs after 14 epochs 1.4.
_RISE, _GAP, _STILL_FALLING = 0.03, 0.7, 0.03
# A perplexity in training above which there is nothing yet that could fit too well.
_LITTLE = 150


def unread_source(validation: Mapping[str, float], updates: int) -> str:
    """Return a warning if a validation shows a model that does not read its source, although half of its updates are done; else nothing.

    What is asked for grows with the share of the updates that is done; without `updates` the training is over.
    """
    gain, done = validation.get("source_gain", math.nan), validation["update"] / updates if updates else 1
    if done < _SHARE or not gain < _LEAST_GAIN * done:
        return ""
    return (
        f"The model hardly reads its source: with the sources of other pairs valid loses {max(gain, 0):.2f} nats a token. Check that the "
        "lines of both sides of data/clean/train belong together. If so: more text, a smaller model, or more updates (docs/training.md)."
    )


def fit(updates: Sequence[Mapping[str, float]], validation: Sequence[Mapping[str, float]]) -> str:
    """Return a sentence on how well the model fits its training text and valid, and what to change; nothing without two validations."""
    valid = {row["update"]: math.log(row["perplexity"]) for row in validation}
    end = max(valid, default=0)
    recent = [math.log(row["perplexity"]) for row in updates if row["update"] > 0.9 * end]
    before = [nll for update, nll in valid.items() if update <= 0.8 * end]
    if not recent or not before or math.isnan(valid[end]):
        return ""
    trained = sum(recent) / len(recent)
    best = min(valid, key=lambda update: valid[update])
    if trained > math.log(_LITTLE):
        advice = "has learnt little: lower train.learning_rate_factor, raise train.updates, or look at data/clean"
    elif valid[end] > valid[best] + _RISE:
        advice = f"overfits since update {best:,.0f}: raise model.dropout, or end earlier (train.patience, average.of: best)"
    elif valid[end] > trained + _GAP:
        advice = "overfits, or valid is of another domain: raise model.dropout, or add text like valid"
    elif before[-1] > valid[end] + _STILL_FALLING:
        advice = "underfits, for valid still improves: raise train.updates"
    else:
        advice = "fits: more updates would change little, a larger model or less dropout might"
    return f"Perplexity {math.exp(trained):.2f} in training (with dropout), {math.exp(valid[end]):.2f} on valid: the model {advice}."
