"""Stages elsewhere: what a job is, how it ends and is tried again, and the jobs of Kubernetes, which are valid and restricted."""

import json
import os
import shutil
import time
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from flows.places.jobs import Job, run_elsewhere
from flows.places.kubernetes import KubernetesJobs
from flows.places.slurm import SlurmQueue
from flows.process.runner import exit_file, report_exit
from tests.clone import ROOT
from tests.refusals import refused
from transformer_core import recipes
from transformer_core.config import Params, check_params
from transformer_core.errors import Interrupted
from transformer_core.places import Kubernetes, Slurm
from transformer_core.yaml_io import parse_yaml, read_yaml

TEMPLATES = ROOT / "flows/places/templates"
KUBERNETES = "1.37"
HOURS = 3600.0

pytestmark = pytest.mark.usefixtures("empty_directory")


def settings(section: str = "machine", **keys: object) -> Params:
    """The default settings with changed keys of a section."""
    document = parse_yaml(recipes.read("tatoeba"), "tatoeba")
    document[section].update(keys)
    return check_params(document)


# A place, and what its line has.
WRONG = [
    ({"on": "slurm"}, "places.train.slurm.time: missing"),
    ({"on": "slurm", "time": "2"}, "time: must be a time of Slurm of at least 10 minutes"),
    ({"on": "slurm", "time": "9:59"}, "time: must be a time of Slurm of at least 10 minutes"),
    ({"on": "slurm", "time": "soon"}, "time: must be a time of Slurm"),
    ({"on": "slurm", "time": "1-0", "options": {"mem": "1\n#SBATCH --nodes=99"}}, "options.mem: must match"),
    ({"on": "slurm", "time": "1-0", "nods": 2}, "unknown key. Did you mean 'nodes'?"),
    ({"on": "prefect", "pool": "gpu", "nodes": 2}, "nodes: must be 1"),
    ({"on": "slurmm", "time": "1-0"}, "'slurm', 'kubernetes', 'prefect'"),
]


@pytest.mark.parametrize(("place", "words"), WRONG)
def test_a_wrong_place_is_refused(place: dict[str, object], words: str) -> None:
    with refused(78) as raised:
        settings(places={"train": place})
    assert words in str(raised.value)


def test_a_place_of_no_stage_or_with_nodes_for_another_than_train_is_refused() -> None:
    with refused(78, r"machine\.places\.decode\.nodes: must be 1, for training alone uses several nodes, got 2"):
        settings(places={"decode": {"on": "slurm", "time": "12", "nodes": 2}})
    params = settings(places={"trian": {"on": "slurm", "time": "12"}})
    with refused(78, r"machine\.places\.trian: no such stage\. Did you mean train\?"):
        run_elsewhere("train", params.machine.places["trian"], params)


@pytest.mark.parametrize("submitting", [True, False])
def test_a_stop_reaches_a_job_just_submitted_and_says_so_if_it_may_go_on(
    submitting: bool, program: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    away = 'if [ -f away ]; then echo "error: Unable to contact slurm controller" >&2; exit 1; fi'
    program("squeue", f'{away}; [ ! -f submitted ] || case "$*" in *--me*) echo 7;; *) [ -f ended ] || echo "RUNNING|";; esac')
    program("sbatch", "touch submitted; echo 7")
    program("scancel", "touch ended")
    submit = SlurmQueue.submit

    def stopped(*given: object) -> str:
        if submitting:
            submit(*given)  # type: ignore[arg-type]
        else:
            Path("away").touch()
        raise Interrupted("stopped by SIGINT")

    if submitting:
        monkeypatch.setattr(SlurmQueue, "submit", stopped)
    else:
        monkeypatch.setattr("flows.places.jobs.time", SimpleNamespace(sleep=stopped, monotonic=time.monotonic))
    monkeypatch.setenv("TRANSFORMER_GRACE_SECONDS", "0.1")
    params = settings(places={"train": {"on": "slurm", "time": "12"}})
    with pytest.raises(Interrupted, match="^train: job 7 was stopped$" if submitting else "^train: job 7 may go on: Slurm is away: Unable"):
        run_elsewhere("train", params.machine.places["train"], params)
    assert Path("ended").exists() == submitting


def test_a_job_has_the_name_of_its_settings_and_not_of_the_machine() -> None:
    first = Job.of("train", settings())
    assert Job.of("train", settings(patience_hours=1.0)).name == first.name
    assert Job.of("train", settings("train", warmup=401)).name != first.name
    assert Job.of("train", settings("decode", beam=5)).name == first.name  # A later stage.


# Codes of the nodes, and that of the job: a node that loses another ends with 69, whatever the cause was.
# Without a report of node 0, which writes the outputs, nothing is done.
OUTCOMES: list[tuple[list[int | None], int | None]] = [
    ([0, 0], 0), ([69, 78], 78), ([69, 1], 1), ([69, 75], 69), ([75, 75], 75), ([0, 69], 69), ([None, 0], None),
]  # fmt: skip


@pytest.mark.parametrize(("codes", "code"), OUTCOMES)
def test_the_cause_of_a_failed_job_is_that_of_the_node_whose_error_no_retry_mends(codes: list[int | None], code: int | None) -> None:
    job = Job.of("train", settings())
    assert job.outcome() is None
    for rank, ended in enumerate(codes):
        if ended is not None:
            report_exit(exit_file(f"train-node-{rank}"), ended, f"node {rank} ended with {ended}")
    outcome = job.outcome() or {"code": None, "message": "None"}
    assert (outcome["code"], outcome["message"].rpartition(" ")[2]) == (code, str(code))


def test_a_job_is_queued_again_for_hours_after_its_last_saved_state(tmp_path: Path) -> None:
    job, state = Job.of("train", settings(patience_hours=2.0)), tmp_path / "state-00000010.pt"
    job.clear()
    submitted = (tmp_path / f".state/jobs/{job.name}.submitted").stat().st_mtime
    for hours, code in ((0.0, 69), (1.0, 75), (1.9, 143)):  # Since the job was submitted.
        assert job.tries_again(code, [], submitted + hours * HOURS)
    for hours, code in ((2.1, 69), (1.0, 78), (1.0, 1), (1.0, 0)):
        assert not job.tries_again(code, [], submitted + hours * HOURS)
    state.touch()
    os.utime(state, (submitted + 9 * HOURS,) * 2)
    assert job.tries_again(75, [state], submitted + 10 * HOURS)
    assert not job.tries_again(75, [state], submitted + 12 * HOURS)
    job.file("stop").touch()
    assert not job.tries_again(75, [state], submitted + 10 * HOURS)
    assert not Job.of("train", settings("train", warmup=401)).tries_again(75, [state], submitted)  # It was not submitted.


def test_a_slurm_job_has_the_options_of_its_place_and_a_prelude_that_can_be_read() -> None:
    place = Slurm(on="slurm", time="24:00:00", gpus=8, options={"partition": "gpu"})
    script = SlurmQueue(place, Job.of("train", settings(grace_seconds=200))).script()
    assert {f"#SBATCH --{option}" for option in ("gpus-per-node=8", "partition=gpu", "signal=TERM@230")} <= set(script.splitlines())
    Path("latin.sh").write_bytes("# Für den Rechner".encode("latin-1"))
    for prelude, fault in (("nowhere.sh", "No such file"), ("latin.sh", r"not valid UTF-8 \(byte 3\)")):
        with refused(78, f"prelude: {prelude}: {fault}"):
            SlurmQueue(Slurm(on="slurm", time="12", prelude=prelude), Job.of("train", settings())).script()


def objects(place: Kubernetes) -> list[Any]:
    """The objects that would be applied, which Kubernetes would take."""
    found = list(YAML(typ="safe").load_all(KubernetesJobs(place, Job.of("train", settings())).manifest()))
    for one in found:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    return found


def on_kubernetes(tmp_path: Path, **keys: Any) -> Kubernetes:
    return Kubernetes(on="kubernetes", image="registry.example/pipeline:1", claim="transformer-pipeline", mount=str(tmp_path), **keys)


@pytest.mark.parametrize("gpus", [0, 8])
def test_a_kubernetes_job_is_valid_and_its_pods_find_each_other(gpus: int, tmp_path: Path) -> None:
    service, job = objects(on_kubernetes(tmp_path, nodes=2, gpus=gpus))
    assert (job["spec"]["completions"], job["spec"]["parallelism"], job["spec"]["completionMode"]) == (2, 2, "Indexed")
    template = job["spec"]["template"]
    pod = template["spec"]
    assert pod["terminationGracePeriodSeconds"] > settings().machine.grace_seconds
    (container,) = pod["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["TRANSFORMER_RENDEZVOUS"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}:29400"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert container["workingDir"] == str(tmp_path)
    assert container["resources"]["requests"]
    assert container["resources"].get("limits") == ({"nvidia.com/gpu": 8} if gpus else None)


def test_the_pods_satisfy_the_restricted_profile(tmp_path: Path) -> None:
    """What Kubernetes' Pod Security Standards ask for in their restricted profile."""
    _, job = objects(on_kubernetes(tmp_path))
    pod = job["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert {kind for volume in pod["volumes"] for kind in volume} <= {"name", "persistentVolumeClaim", "emptyDir"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


def test_the_claim_is_valid_and_many_nodes_may_mount_it() -> None:
    (claim,) = YAML(typ="safe").load_all((TEMPLATES / "claim.yaml").read_text(encoding="utf-8"))
    kubernetes_validate.validate(claim, KUBERNETES, strict=True)
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_a_folder_outside_the_claim_is_refused() -> None:
    with refused(78, "is not in /shared, where the claim is mounted"):
        objects(Kubernetes(on="kubernetes", image="i", claim="c", mount="/shared"))


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl merges the patch")
def test_a_patch_changes_any_field_of_a_kubernetes_job(tmp_path: Path) -> None:
    container = {"name": "node", "env": [{"name": "A", "value": "b"}], "resources": {"limits": {"memory": "200Gi"}}}
    patch = {"spec": {"template": {"spec": {"serviceAccountName": "trainer", "containers": [container]}}}}
    (tmp_path / "patch.yaml").write_text(json.dumps(patch), encoding="utf-8")
    _, job = objects(on_kubernetes(tmp_path, gpus=8, patch=str(tmp_path / "patch.yaml")))
    pod = job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "trainer"
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8, "memory": "200Gi"}
    assert {"A", "TRANSFORMER_NODES"} <= {one["name"] for one in pod["containers"][0]["env"]}
    (tmp_path / "patch.yaml").write_text("spec: [\n", encoding="utf-8")
    with refused(78, "^kubectl refuses: .*line 1"):
        objects(on_kubernetes(tmp_path, patch=str(tmp_path / "patch.yaml")))


# What kubectl answers for the job, and the phase.
STATUS = [
    ("", "ended"),
    ({"status": {}}, "waiting"),
    ({"status": {"active": 1, "ready": 0}}, "waiting"),
    ({"status": {"active": 1, "ready": 1}}, "running"),
    ({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}, "ended"),
    ({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}, "ended"),
]


def test_jobs_of_kubernetes_are_asked_for_made_and_deleted(tmp_path: Path, program: Callable[[str, str], None]) -> None:
    """No cluster is here: a program in the place of kubectl answers from a file, and notes what it was asked."""
    program("kubectl", f"""cd {tmp_path}; echo "$*" >> asked; [ -e away ] && {{ echo "Unable to connect" >&2; exit 1; }}
[ $1 = get ] && cat answer; true""")  # fmt: skip
    job = Job.of("train", settings())
    jobs = KubernetesJobs(on_kubernetes(tmp_path), job)
    for answer, phase in STATUS:
        (tmp_path / "answer").write_text(json.dumps(answer) if answer else "")
        assert jobs.look(job.name).phase == phase, answer
        assert jobs.find() == (None if phase == "ended" else job.name)
    assert jobs.submit() == job.name
    jobs.stop(job.name)
    asked = (tmp_path / "asked").read_text().splitlines()[-3:]
    assert [line.split()[0] for line in asked] == ["delete", "apply", "delete"]
    assert "--cascade=foreground" in asked[-1]
    (tmp_path / "away").touch()
    with refused(69, "^Kubernetes is away: Unable to connect"):
        jobs.find()


@pytest.mark.parametrize("name", ["prefect-server", "mlflow-server", "prefect-worker"])
def test_units_and_containers_run_the_same_commands_with_the_same_variables(name: str) -> None:
    unit = ConfigParser(interpolation=None)
    unit.read(TEMPLATES / f"servers/{name}.service", encoding="utf-8")
    container = read_yaml(TEMPLATES / "servers/compose.yaml")["services"][name]
    assert unit["Service"]["ExecStart"].removeprefix("/srv/transformer-pipeline/.venv/bin/") == " ".join(container["command"])
    assert unit["Service"]["EnvironmentFile"] == container["env_file"]
    assert (TEMPLATES / "servers" / Path(container["env_file"]).name).exists()
