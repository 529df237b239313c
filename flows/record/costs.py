"""What stages cost, by earlier runs here: time, price (`machine.price_per_hour`), and energy where it was metered."""

from collections.abc import Mapping, Sequence

from flows.process.runner import last_run, past_runs
from transformer_core.config import Params

# The costs of stages by kind: seconds, price, kwh. A kind of which nothing is known has no stages.
Costs = Mapping[str, Mapping[str, float]]


def seconds_of(names: Sequence[str], params: Params, training: float) -> dict[str, float]:
    """Return the seconds of stages' last runs here with these settings, without those that have none, as if from the cache.

    A training that was resumed, or came from the cache, took at least as long as its updates, `training`.
    """
    seconds = {name: run.seconds for name in names if (run := last_run(name, params))}
    return {**seconds, "train": max(seconds.get("train", 0.0), training)}


def costs(seconds: Mapping[str, float], params: Params) -> Costs:
    """Return the costs of stages that took these seconds; the energy is that of their last runs, of a resumed training its last part."""
    per_hour = params.machine.price_per_hour
    prices = {} if per_hour is None else {name: params.machine.nodes(name) * per_hour * took / 3600 for name, took in seconds.items()}
    runs = {name: run for name in seconds if (run := last_run(name, params))}
    return {"seconds": seconds, "price": prices, "kwh": {name: run.kwh for name, run in runs.items() if run.kwh is not None}}


def in_words(found: Costs) -> str:
    """Return the sum of costs: 1 h 02 min, price 3.10, 0.45 kWh."""
    from transformer_core.evaluation.pages import duration  # Here: stage publish writes no page.

    forms = {"seconds": duration, "price": "price {:,.2f}".format, "kwh": "{:.3g} kWh".format}
    return ", ".join(form(sum(found[kind].values())) for kind, form in forms.items() if found.get(kind))


def expected(names: Sequence[str], params: Params) -> str:
    """Return in words what these stages will cost, by their last runs here."""
    known = {name: seconds for name in names if (seconds := _expected_seconds(name, params)) is not None}
    missing = [name for name in names if name not in known]
    found = {kind: of_stage for kind, of_stage in costs(known, params).items() if kind != "kwh"}
    parts = [f"about {in_words(found)}, by earlier runs here"] if known else []
    parts += [f"not known of {', '.join(missing)}"] if missing else []
    estimate = "; transformer-core estimate measures the speed" if "train" in missing else ""
    return f"Expected: {'; '.join(parts) or 'nothing to do'}{estimate}"


def _expected_seconds(stage: str, params: Params) -> float | None:
    """Return the time of a stage's last run with these settings or any others; of a training of the same model for each token."""
    run = last_run(stage, params) or next(iter(past_runs(stage)), None)
    if run is None or stage != "train":
        return run and run.seconds
    before, now = run.settings, params.model_dump(mode="json")
    if (before["model"], before["bpe"]["vocab_size"]) != (now["model"], now["bpe"]["vocab_size"]):
        return None
    tokens = [settings["train"]["updates"] * settings["train"]["tokens_per_update"] for settings in (before, now)]
    return float(run.seconds * tokens[1] / tokens[0])
