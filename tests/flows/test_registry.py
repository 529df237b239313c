"""The choice of the champion, through a real registry, on given translations."""

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from flows.pipeline import pipeline
from flows.places.work_pool import stage
from flows.process.paths import HYPOTHESES
from flows.record.registry import CHALLENGER, CHAMPION, EVALUATION, RULE, Decision, card, decide, fetch, register
from tests.embedding_metric import write_checkpoint
from tests.flows.publishing import FIGURES, MANIFEST
from tests.refusals import refused
from transformer_core.evaluation.bleu import corpus_bleu
from transformer_core.evaluation.metrics import SCORING
from transformer_core.evaluation.neural import with_comet

NAME = "toy-en-de"
# The words of a line differ from line to line, so that a bootstrap of lines has something to draw.
REFERENCES = [f"Der {n}. Hund läuft {'sehr ' * (n % 4)}schnell durch den Park {n % 7} und holt Ball {n % 11}." for n in range(200)]
SAME = {"references": "0" * 64, "signature": "tok:13a"}


def with_faults(lines: int) -> list[str]:
    """The references, of which the first so many have lost their meaning: the more, the lower BLEU."""
    return ["Das ist kein Satz aus diesem Text." if n < lines else line for n, line in enumerate(REFERENCES)]


def registered(client: MlflowClient, lines: Sequence[str], kept: bool = True, name: str = NAME, **tags: str) -> ModelVersion:
    """A new version whose artifacts hold these translations, as a published one's do."""
    text = "".join(f"{line}\n" for line in lines)
    folder = Path(f"model{sha256(text.encode()).hexdigest()[:8]}-{kept}")
    file = folder / "artifacts" / EVALUATION / HYPOTHESES
    file.parent.mkdir(parents=True, exist_ok=True)
    if kept:
        file.write_text(text, encoding="utf-8")
    bleu = str(round(corpus_bleu(lines, REFERENCES), 2))
    tags = {**SAME, "bleu": bleu, "hypotheses": sha256(text.encode()).hexdigest(), **tags}
    run = client.create_run("0")
    return register(client, name, str(folder.absolute()), "", run.info.run_id, tags)


def published(client: MlflowClient, outputs: int | Sequence[str], name: str = NAME, **tags: str) -> Decision:
    """Register outputs, or translations with so many faults, decide, and give the alias."""
    hypotheses = with_faults(outputs) if isinstance(outputs, int) else outputs
    version = registered(client, hypotheses, name=name, **tags)
    decision = decide(client, version, SCORING, hypotheses, REFERENCES, "bleu", "test")
    if decision.alias:
        client.set_registered_model_alias(name, decision.alias, version.version)
    return decision


def champion(client: MlflowClient, name: str = NAME) -> str:
    return str(client.get_model_version_by_alias(name, CHAMPION).version)


# Faults of each version, of 200 lines, and the aliases they get: 40 are clearly worse than 20, one more is not.
CASES = {
    "equal": ([20, 20], [CHAMPION, CHAMPION]),
    "slightly worse": ([20, 21], [CHAMPION, CHAMPION]),
    "best again": ([20, 40, 0], [CHAMPION, "", CHAMPION]),
    "worse twice": ([20, 40, 39], [CHAMPION, "", ""]),
    "as good again": ([20, 40, 20], [CHAMPION, "", CHAMPION]),
    "once good enough": ([40, 0, 20], [CHAMPION, CHAMPION, ""]),
}


def test_the_champion_is_not_significantly_worse_than_the_best(client: MlflowClient) -> None:
    for case, (faults, aliases) in CASES.items():
        assert [published(client, number, name=case).alias for number in faults] == aliases, case
        last = max(place for place, alias in enumerate(aliases, start=1) if alias == CHAMPION)
        assert champion(client, case) == str(last), case


def test_comet_decides_where_it_is_asked_for(client: MlflowClient, tmp_path: Path) -> None:
    command = write_checkpoint(tmp_path / "metric.pt")
    aliases = []
    with with_comet(SCORING, command, "evaluate.comet", lambda _: REFERENCES) as scoring:
        for faults, comet in ((40, "70"), (0, "90"), (20, "80")):  # By BLEU, which is said to be equal, the third's rival is the first.
            tags = {"bleu": "50", "comet": comet, "comet_signature": command}
            version = registered(client, with_faults(faults), **tags)
            decision = decide(client, version, scoring, with_faults(faults), REFERENCES, "comet", "test")
            aliases.append((decision.alias, decision.rival))
    assert aliases == [(CHAMPION, ""), (CHAMPION, "1"), ("", "2")]
    assert " COMET, two-sided p = 0.0001" in decision.reason
    other = registered(client, with_faults(20), comet="80", comet_signature="another command")
    assert decide(client, other, scoring, with_faults(20), REFERENCES, "comet", "test").rival == ""


def test_a_test_set_without_comet_is_no_rival_by_comet(client: MlflowClient) -> None:
    by_comet = {"comet": "80", "comet_signature": "c"}
    registered(client, with_faults(20), references="1" * 64, **by_comet, **{"references.test_a": "0" * 64, "bleu.test_a": "20"})
    version = registered(client, with_faults(20), **by_comet)
    assert decide(client, version, SCORING, with_faults(20), REFERENCES, "comet", "test").rival == ""


def test_many_insignificant_losses_do_not_add_up(client: MlflowClient) -> None:
    """Each is no significant step from the one before; what counts is the way from the best."""
    decisions = [published(client, faults) for faults in range(4, 16)]
    aliases = [decision.alias for decision in decisions]
    assert aliases[:2] == [CHAMPION, CHAMPION]
    assert aliases[-1] == ""
    assert {decision.rival for decision in decisions[1:]} == {"1"}
    assert aliases == sorted(aliases, key=[CHAMPION, ""].index)
    last_step = next(SCORING.comparisons(with_faults(14), with_faults(15), REFERENCES))
    assert last_step.difference < 0
    assert not last_step.significant


def test_a_decision_is_in_the_tags_and_the_description_and_breaks_no_line_in_a_sentence(client: MlflowClient) -> None:
    decisions = [published(client, faults) for faults in (20, 0, 1, 40)]
    tags = decisions[-1].tags()
    assert (tags["decision"], tags["rival_version"]) == ("no alias", "2")
    assert float(tags["rival_bleu_difference"]) == pytest.approx(corpus_bleu(with_faults(40), REFERENCES) - 100, abs=0.01)
    assert 0 < float(tags["rival_p_value"]) < 0.05
    cards = [card(NAME, decision, "a training", FIGURES, MANIFEST) for decision in decisions]
    said = [
        "Became `champion` when it was published: the first version.",
        "Became `champion` when it was published: significantly better than version 1, the best so far: +",
        "Became `champion` when it was published: not significantly different from version 2, the best so far: -",
        "No alias: significantly worse than version 2, the best so far: -",
    ]
    for text, reason in zip(cards, said, strict=True):
        assert text.startswith(f"BLEU 86.41 on 60 lines of test of tatoeba (`tok:13a`)\n\n{reason}")
    for text in (RULE, pipeline.description, stage.description, *(one.partition("```")[0] for one in cards)):
        assert text
        assert not re.search(r"[^\n|]\n[^\n|]", text), text


def test_each_further_test_set_has_a_champion_of_its_own_also_under_another_name(client: MlflowClient) -> None:
    """The second version is better on its main test set, and worse on what was the main test set of the first."""
    first = registered(client, with_faults(20))
    client.set_registered_model_alias(NAME, CHAMPION, first.version)
    old = {f"{key}.test_old": value for key, value in first.tags.items() if key in ("references", "bleu")}
    for faults, expected in ((40, ""), (0, "champion-old")):
        version = registered(client, with_faults(0), references=f"{faults + 1:064}", **old)
        assert decide(client, version, SCORING, with_faults(0), REFERENCES, "bleu", "test").alias == CHALLENGER
        decision = decide(client, version, SCORING, with_faults(faults), REFERENCES, "bleu", "test_old")
        assert (decision.alias, decision.rival) == (expected, "1")
        assert decision.tags("test_old")["rival_version.test_old"] == "1"


def test_a_score_of_zero_gets_no_alias_even_for_the_first_version(client: MlflowClient) -> None:
    for outputs in ([""] * 200, ["x"] * 200):
        decision = published(client, outputs)
        assert (decision.alias, decision.reason) == ("", "its BLEU is 0.00")
    assert client.get_registered_model(NAME).aliases == {}
    assert published(client, 40).alias == CHAMPION


@pytest.mark.parametrize("other", [{"references": "1" * 64}, {"signature": "tok:intl"}], ids=["references", "signature"])
def test_versions_with_another_test_set_or_signature_are_not_compared(client: MlflowClient, other: dict[str, str]) -> None:
    published(client, 0, **other)
    decision = published(client, 20)
    assert (decision.alias, decision.rival) == (CHALLENGER, "")
    assert "no earlier version" in decision.reason
    assert champion(client) == "1"


def test_versions_with_missing_or_changed_translations_are_not_compared(client: MlflowClient) -> None:
    for kept in (False, True):
        version = registered(client, with_faults(0), kept=kept, **({"hypotheses": "0" * 64} if kept else {}))
        client.set_registered_model_alias(NAME, CHAMPION, version.version)
    published(client, 30)
    assert published(client, 10).rival == "3"


def test_a_deleted_version_is_not_compared_and_the_next_becomes_champion(client: MlflowClient) -> None:
    published(client, 0)
    client.delete_model_version(NAME, "1")
    assert published(client, 20).alias == CHAMPION
    assert champion(client) == "2"


def test_a_model_that_is_not_in_the_registry_is_refused_in_one_line(client: MlflowClient, mlflow_store: str, tmp_path: Path) -> None:
    published(client, 0)
    for model in (NAME, "nothing@champion", f"{NAME}@challenger", f"{NAME}/7"):
        with refused(78, f"has no model {model}: ") as raised:
            fetch(model, mlflow_store, tmp_path)
        assert "\n" not in str(raised.value)


def test_a_failed_download_has_its_cause(client: MlflowClient, mlflow_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> str:
        failures = "##### File model.safetensors #####\n403 Client Error: Forbidden\n"
        raise MlflowException(f"The following failures occurred while downloading\n{failures}", INVALID_PARAMETER_VALUE)

    published(client, 0)
    monkeypatch.setattr("mlflow.artifacts.download_artifacts", failing)
    with refused(69, f"cannot provide model {NAME}@champion: 403 Client Error: Forbidden"):
        fetch(f"{NAME}@champion", mlflow_store, tmp_path)
