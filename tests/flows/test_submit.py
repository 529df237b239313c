import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from flows.cluster.group import free_port
from flows.process.child import grace_seconds
from flows.process.settings import tracked
from flows.submit import main
from tests.clone import ROOT, git
from tests.flows.servers import server

TEMPLATES = ROOT / "flows/cluster/templates"
KUBERNETES = "1.37"

Submit = Callable[..., str]

# Replacements of Slurm's commands, which record their calls; srun runs its command once, as node 1, or ends with $ENDS.
FAKES = {
    "sbatch": 'cat > "$HERE/job.sbatch"; echo "Submitted batch job 7"',
    "scontrol": 'echo "$*" >> "$HERE/scontrol.calls"; [ "$2" = hostnames ] && printf "node-a\\nnode-b\\n"; '
    '[ "$2" = node ] && printf "NodeName=%s Arch=x86_64\\n   NodeAddr=$ADDRESS NodeHostName=%s\\n" "$3" "$3"; true',
    "srun": 'echo "$*" >> "$HERE/srun.calls"; [ -n "$SCANCEL" ] && kill "$PPID"; [ -n "$ENDS" ] && exit "$ENDS"; '
    'shift 2; SLURM_NODEID=1 "$@"',
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a committed repository, whose stage train needs no other stage, and Slurm's commands."""
    folder = tmp_path_factory.mktemp("submit")
    root = folder / "repository"
    root.mkdir()
    (root / "params.yaml").write_bytes((ROOT / "transformer_core/recipes/tatoeba.yaml").read_bytes())
    (root / "dvc.yaml").write_text("stages:\n  train:\n    cmd: 'true'\n    deps: [corpora]\n    outs: [train.txt]\n")
    (root / "corpora").mkdir()
    (root / "corpora/README.md").touch()
    git("init", "-q", at=root)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=root, check=True)
    commit(root)
    (folder / "bin").mkdir()
    for name, body in FAKES.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


@pytest.fixture
def repository(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the repository as the working directory, with Slurm's commands in the path."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "repository")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name, value in {"HERE": tmp_path, "ADDRESS": "10.0.0.1", "HOME": tmp_path, "TRANSFORMER_STATE": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("TRANSFORMER_CLONES", raising=False)
    return tmp_path / "repository"


@pytest.fixture
def submit(repository: Path, capfd: pytest.CaptureFixture[str]) -> Submit:
    """The output of `python -m flows.submit`, which must end with `code`."""
    assert repository.exists()

    def submitted(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        assert main(arguments) == code
        return "".join(capfd.readouterr())

    return submitted


def commit(folder: Path = Path()) -> None:
    git("add", "-A", at=folder)
    git("commit", "-q", "--allow-empty", "-m", "b", at=folder)


KUBERNETES_JOB = [
    "kubernetes", "--image", "registry.example/transformer-pipeline:1", "--repository", "https://git.example/pipeline.git"
]  # fmt: skip
SLURM = ["slurm", "--nodes", "2", "--gpus", "8", "--time", "24:00:00", "--partition", "gpu"]


def test_a_slurm_job_is_shown_and_not_submitted_by_a_dry_run(submit: Submit, tmp_path: Path) -> None:
    job = submit(*SLURM, "--dry-run")
    assert {"#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8", "#SBATCH --time=24:00:00", "#SBATCH --partition=gpu"} <= set(job.splitlines())
    subprocess.run(["bash", "-n"], input=job, text=True, check=True)
    assert not (tmp_path / "job.sbatch").exists()
    asked = next(line for line in job.splitlines() if line.startswith("#SBATCH --signal=TERM@"))
    assert int(asked.partition("@")[2]) > grace_seconds()
    assert "gpus-per-node" not in submit("slurm", "--time", "1-12:30", "--dry-run")


def test_a_slurm_job_has_an_account_memory_and_commands_before_the_training(submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "prelude.sh").write_text("""module() { export LOADED="it's $*"; }\nmodule load cuda\nset -- run_in_container "${@:2}"\n""")
    (tmp_path / "bin/run_in_container").write_text(
        '#!/bin/bash\nprintf "%s\\n" "$LOADED" "$TRANSFORMER_NODE_RANK" "$1 $2 $3" > "$HERE/told"\n'
    )
    (tmp_path / "bin/run_in_container").chmod(0o755)
    assert "#SBATCH --mem=0" in submit(*SLURM, "--dry-run").splitlines()  # All of a node, which the job has for itself.
    submit(*SLURM, "--account", "mt", "--qos", "long", "--mem", "200G", "--prelude", str(tmp_path / "prelude.sh"))
    job = (tmp_path / "job.sbatch").read_text().splitlines()
    assert {"#SBATCH --account=mt", "#SBATCH --qos=long", "#SBATCH --mem=200G"} <= set(job)
    assert run_job(tmp_path) == 0
    assert (tmp_path / "told").read_text().splitlines() == ["it's load cuda", "1", "-m flows.cluster.node train"]


def run_job(tmp_path: Path, ends: int | None = None, restarts: int = 0, state: Path | None = None) -> int:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_RESTART_COUNT": str(restarts)}
    environment = {**os.environ, **slurm, "TRANSFORMER_STATE": str(state or tmp_path), "ENDS": "" if ends is None else str(ends)}
    return subprocess.run(["bash", tmp_path / "job.sbatch"], env=environment, capture_output=True, check=False).returncode


def requeued(tmp_path: Path) -> bool:
    return "requeue 7" in (tmp_path / "scontrol.calls").read_text().splitlines()


def test_a_submitted_slurm_job_starts_a_node_with_its_place_in_the_group(submit: Submit, repository: Path, tmp_path: Path) -> None:
    assert "Submitted batch job 7" in submit(*SLURM)
    (tmp_path / "bin/bash").write_text(
        '#!/bin/sh\n[ "$1" = -c ] || exec /bin/bash "$@"\nprintenv TRANSFORMER_NODES TRANSFORMER_RENDEZVOUS SLURM_NODEID '
        'TRANSFORMER_CLONES > "$HERE/told"\n'
        'shift 3\nprintf "%s\\n" "$@" >> "$HERE/told"\n'
    )
    (tmp_path / "bin/bash").chmod(0o755)
    assert run_job(tmp_path) == 0
    head = git("rev-parse", "HEAD")
    told = (tmp_path / "told").read_text().splitlines()
    settings = str(tmp_path / "settings-7.json")
    command = [sys.executable, *f"-m flows.cluster.node train --repository {repository} --commit {head} --settings {settings}".split()]
    assert told == ["2", "10.0.0.1:29400", "1", str(tmp_path / ".cache/transformer-pipeline/slurm-7"), *command]
    assert not requeued(tmp_path)
    clones = str(tmp_path / ".cache/transformer-pipeline/slurm-7")
    assert (tmp_path / "srun.calls").read_text().splitlines()[-1] == f"--kill-on-bad-exit=0 --cpu-bind=none rm -rf {clones}"


# Exit code of the node, restarts before it, and whether the job is queued again. At last, a node is lost four times in a row.
ENDS = [(75, 99, True), (75, 100, False), (65, 0, False), (1, 0, False)]
ENDS += [(69, 0, True), (137, 1, True), (75, 2, True), (69, 3, True), (137, 4, True), (143, 5, True), (143, 6, False)]


def test_a_slurm_job_that_was_stopped_is_queued_again(submit: Submit, tmp_path: Path) -> None:
    submit(*SLURM)
    for ends, restarts, again in ENDS:
        (tmp_path / "scontrol.calls").unlink(missing_ok=True)
        assert run_job(tmp_path, ends, restarts) == ends
        assert requeued(tmp_path) is again, (ends, restarts)
        assert bool(list(tmp_path.glob("settings-7.json*"))) is again
        if again:
            assert json.loads((tmp_path / "settings-7.json").read_text()) == tracked()


def test_a_slurm_job_that_was_cancelled_is_not_queued_again_and_leaves_nothing(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(*SLURM)
    clones = tmp_path / ".cache/transformer-pipeline/slurm-7"
    clones.mkdir(parents=True)
    monkeypatch.setenv("SCANCEL", "yes")
    assert run_job(tmp_path, 75) == 75
    assert not requeued(tmp_path)
    assert not clones.exists()
    assert not list(tmp_path.glob("settings-7.json*"))


@pytest.mark.parametrize("state", [None, "shared/states"])
def test_without_shared_storage_there_is_no_slurm_job(
    state: str | None, submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(*SLURM)
    if state is None:
        monkeypatch.delenv("TRANSFORMER_STATE")
    else:
        monkeypatch.setenv("TRANSFORMER_STATE", state)
    done = subprocess.run(["bash", tmp_path / "job.sbatch"], capture_output=True, text=True, check=False)
    line = "TRANSFORMER_STATE is not set to a full path. Set it to a folder of storage that all nodes share, before sbatch.\n"
    assert (done.returncode, done.stderr) == (78, line)
    (tmp_path / "job.sbatch").unlink()
    assert submit(*SLURM, code=78) == line
    assert not (tmp_path / "job.sbatch").exists()


# Values that a scheduler would refuse, or that would add a line or an option to the job.
MORE_THAN_A_WORD = ["long\n#SBATCH --nodes=99", "long --nodes=99", "long\rrm", ""]
REFUSED: list[tuple[list[str], str, list[str]]] = [
    (SLURM, "--time", ["soon", "1:", "1:2:3:4", "2-"]),
    *((SLURM, option, MORE_THAN_A_WORD) for option in ("--partition", "--account", "--qos", "--mem")),
    (SLURM, "--name", ["my job", "a;b"]),
    (KUBERNETES_JOB, "--name", ["my job", "My_Job", "-x", "x-", "x" * 51]),
]


@pytest.mark.parametrize(("job", "option", "values"), REFUSED)
def test_a_value_that_is_no_word_of_a_job_is_refused(job: list[str], option: str, values: list[str], submit: Submit) -> None:
    for value in values:
        (line,) = submit(*job, f"{option}={value}", "--dry-run", code=78).splitlines()
        assert f"{option}: " in line
    assert {"#SBATCH --job-name=My_Job.2", "#SBATCH --qos=a-b_c@v100"} <= set(
        submit(*SLURM, "--name=My_Job.2", "--qos=a-b_c@v100", "--dry-run").splitlines()
    )


def test_a_slurm_job_makes_the_folder_of_states_or_ends_before_the_training(submit: Submit, tmp_path: Path) -> None:
    submit(*SLURM)
    assert run_job(tmp_path, 75, state=tmp_path / "shared/states") == 75
    assert (tmp_path / "shared/states/settings-7.json").exists()
    (tmp_path / "srun.calls").unlink()
    (tmp_path / "a file").touch()
    assert run_job(tmp_path, state=tmp_path / "a file/states") == 78
    assert not (tmp_path / "srun.calls").exists()


def test_uncommitted_changes_are_not_submitted(submit: Submit, repository: Path) -> None:
    refused = ": not committed; other machines run the committed version. Commit and push it, large files by dvc add, then run again.\n"
    (repository / "corpora/mine.yaml").write_text("name: mine\n")
    assert submit(*SLURM, code=78) == f"corpora/mine.yaml{refused}"
    (repository / "corpora/mine.yaml").unlink()
    (repository / "corpora/README.md").write_text("changed\n")
    assert submit(*SLURM, code=78) == f"corpora/README.md{refused}"
    (repository / "corpora/README.md").write_text("")
    (repository / "attention").mkdir()
    (repository / "attention/weights.npz").touch()
    (repository / "a note.txt").touch()
    (repository / "params.yaml").write_text((repository / "params.yaml").read_text() + "\n")
    assert "Submitted" in submit(*SLURM)


# A folder, a submission from it, and its line.
ELSEWHERE = [
    ("repository/corpora", SLURM, "dvc.yaml: no such file. Run this at the top of the repository.\n"),
    (".", SLURM, "not a git repository (or any of the parent directories): .git. Other "),
    (
        "repository",
        ["kubernetes", "--image", "i"],
        "{}: a folder of this machine, which no pod can read. Give an address ",
    ),
]


@pytest.mark.parametrize(("folder", "job", "line"), ELSEWHERE)
def test_a_repository_that_the_machines_of_a_job_could_not_clone_is_one_line(
    folder: str, job: list[str], line: str, submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / folder)
    said = submit(*job, "--dry-run", code=78)
    assert said.startswith(line.format(tmp_path / "repository"))
    assert said.count("\n") == 1


def test_a_submission_without_a_dvc_remote_says_so(submit: Submit, repository: Path) -> None:
    stages = "  train:\n    cmd: 'true'\n    deps: [one.txt]\n    outs: [train.txt]\n"
    (repository / "dvc.yaml").write_text(f"stages:\n  one:\n    cmd: echo 1 > one.txt\n    outs: [one.txt]\n{stages}")
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q", "one"], check=True)
    commit()
    assert submit(*SLURM, code=78).endswith(
        "no DVC remote is configured, and machines exchange outputs of stages through it. Name one and commit it: "
        "dvc remote add --default store URL (exit code 78)\n"
    )


def test_a_commit_that_other_machines_do_not_find_is_not_submitted(submit: Submit, tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    git("init", "-q", "--bare", remote)
    git("remote", "add", "origin", remote)
    git("push", "-q", "origin", "HEAD:main")
    assert f"--repository {remote}" in submit(*SLURM, "--dry-run")
    commit()
    assert re.fullmatch(rf"{remote}: no branch has commit [0-9a-f]{{12}}\. Push it: git push\n", submit(*SLURM, "--dry-run", code=78))
    git("push", "-q", "origin", "HEAD:main")
    # Somebody else continues the branch.
    git("clone", "-q", "--branch", "main", remote, tmp_path / "other")
    commit(tmp_path / "other")
    git("push", "-q", at=tmp_path / "other")
    assert f"--repository {remote}" in submit(*SLURM, "--dry-run")
    # And begins another, of which nothing is here, while ours is the last of its own.
    git("push", "-q", "origin", "HEAD:mine")
    commit(tmp_path / "other")
    git("push", "-q", "origin", "HEAD:new", at=tmp_path / "other")
    assert f"--repository {remote}" in submit(*SLURM, "--dry-run")
    shutil.rmtree(remote)
    assert submit(*SLURM, "--dry-run", code=69).endswith(
        "does not appear to be a git repository. Let this machine read it: docs/cluster.md, A private repository.\n"
    )


def test_a_token_in_the_address_of_the_remote_is_in_no_job(submit: Submit, repository: Path, tmp_path: Path) -> None:
    git("clone", "-q", "--bare", repository, tmp_path / "served")
    git("update-server-info", at=tmp_path / "served")
    port = free_port("127.0.0.1")
    git("remote", "add", "origin", f"http://planted-token@127.0.0.1:{port}/served")
    files = ["http.server", "--bind", "127.0.0.1", "--directory", str(tmp_path), str(port)]
    with server(*files, log=tmp_path / "server.log", url=f"http://127.0.0.1:{port}/served/HEAD"):
        job = submit(*SLURM, "--dry-run")
    assert f"--repository http://127.0.0.1:{port}/served" in job
    assert "planted-token" not in job


def valid_objects(text: str) -> list[Any]:
    """The objects of a text, which Kubernetes would take."""
    objects = list(YAML(typ="safe").load_all(text))
    for one in objects:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    return objects


def variables_of(pod: Any) -> dict[str, str | None]:
    """The environment of the container of a pod."""
    (container,) = pod["containers"]
    return {one["name"]: one.get("value") for one in container["env"]}


@pytest.mark.parametrize("gpus", [0, 8])
def test_a_kubernetes_job_is_valid_and_its_pods_find_each_other(submit: Submit, gpus: int) -> None:
    service, job = valid_objects(submit(*KUBERNETES_JOB, "--nodes", "2", "--gpus", str(gpus), "--dry-run"))
    assert not {"namespace"} & {*service["metadata"], *job["metadata"]}
    assert (job["spec"]["completions"], job["spec"]["parallelism"], job["spec"]["completionMode"]) == (2, 2, "Indexed")
    template = job["spec"]["template"]
    pod = template["spec"]
    assert pod["terminationGracePeriodSeconds"] > grace_seconds()
    assert variables_of(pod)["TRANSFORMER_RENDEZVOUS"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}:29400"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert pod["containers"][0].get("resources", {}).get("limits") == ({"nvidia.com/gpu": 8} if gpus else None)


def test_a_kubernetes_job_holds_its_settings_so_that_nothing_is_left_when_it_is_removed(submit: Submit) -> None:
    service, job = valid_objects(submit(*KUBERNETES_JOB, "--dry-run"))
    assert job["metadata"]["name"] not in service["metadata"]["name"]
    assert job["spec"]["ttlSecondsAfterFinished"] > 0
    pod = job["spec"]["template"]["spec"]
    (volume,) = (one for one in pod["volumes"] if one["name"] == "settings")
    (item,) = volume["downwardAPI"]["items"]
    (key,) = re.findall(r"^metadata\.annotations\['(.+)'\]$", item["fieldRef"]["fieldPath"])
    assert json.loads(job["spec"]["template"]["metadata"]["annotations"][key]) == tracked()
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "settings")
    assert pod["containers"][0]["args"][-2:] == ["--settings", f"{mount['mountPath']}/{item['path']}"]


def test_a_kubernetes_job_of_other_settings_or_another_commit_has_another_name(submit: Submit, repository: Path) -> None:
    def name(*options: str) -> str:
        return str(valid_objects(submit(*KUBERNETES_JOB, *options, "--dry-run"))[1]["metadata"]["name"])

    first = name()
    assert re.fullmatch(r"transformer-train-[0-9a-f]{8}", first)
    assert name() == first
    assert name("--nodes", "2") != first
    params = repository / "params.yaml"
    text = params.read_text()
    params.write_text(text.replace("warmup: 400", "warmup: 401"))
    assert name() != first
    params.write_text(text)
    commit()
    assert name() != first


def patch_of_the_docs() -> str:
    (patch,) = re.findall(r"^```yaml\n(# patch\.yaml\n.*?)^```", (ROOT / "docs/cluster.md").read_text(encoding="utf-8"), re.M | re.S)
    return str(patch)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl merges the patch")
def test_a_patch_changes_any_field_of_a_kubernetes_job(submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "patch.yaml").write_text(patch_of_the_docs(), encoding="utf-8")
    options = [*KUBERNETES_JOB, "--gpus", "8", "--namespace", "nmt", "--dry-run"]
    _, plain = valid_objects(submit(*options))
    service, job = valid_objects(submit(*options, "--patch", str(tmp_path / "patch.yaml")))
    assert service["metadata"]["namespace"] == job["metadata"]["namespace"] == "nmt"
    assert job["spec"]["ttlSecondsAfterFinished"] == 86400
    before, pod = plain["spec"]["template"]["spec"], job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "trainer"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "rdma/hca": 1, "memory": "200Gi"}
    for key in ("env", "volumeMounts"):
        names = {one["name"] for one in container[key]}
        assert names > {one["name"] for one in before["containers"][0][key]}, key
    assert {one["name"] for one in pod["volumes"]} > {one["name"] for one in before["volumes"]}
    # The pods find node 0 by the name, which is another one with the patch.
    assert job["metadata"]["name"] != plain["metadata"]["name"]
    assert str(variables_of(pod)["TRANSFORMER_RENDEZVOUS"]).startswith(f"{job['metadata']['name']}-0.")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl merges the patch")
@pytest.mark.parametrize(("patch", "reason"), [(None, "no such file"), ("spec: [\n", "line 1"), ("- 1\n", "invalid JSON document")])
def test_an_invalid_patch_is_refused_in_one_line(submit: Submit, tmp_path: Path, patch: str | None, reason: str) -> None:
    path = tmp_path / "patch.yaml"
    if patch is not None:
        path.write_text(patch, encoding="utf-8")
    (line,) = submit(*KUBERNETES_JOB, "--patch", str(path), "--dry-run", code=78).splitlines()
    assert line.startswith(f"{path}: ")
    assert reason in line


def test_a_patch_without_kubectl_is_one_line(submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = shutil.which("git")
    assert git is not None
    (tmp_path / "only-git").mkdir()
    (tmp_path / "only-git/git").symlink_to(git)
    monkeypatch.setenv("PATH", str(tmp_path / "only-git"))
    line = submit(*KUBERNETES_JOB, "--patch", "patch.yaml", "--dry-run", code=69)
    assert line == "kubectl: not found on this machine. --patch needs it, even with --dry-run.\n"


def test_the_claim_of_the_docs_is_valid_and_the_one_that_a_job_mounts(submit: Submit) -> None:
    path = TEMPLATES / "state-claim.yaml"
    assert f"cp {path.relative_to(ROOT)} claim.yaml" in (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    (claim,) = valid_objects(path.read_text(encoding="utf-8"))
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert f"claimName: {claim['metadata']['name']}\n" in submit(*KUBERNETES_JOB, "--dry-run")
    assert json.dumps(claim["metadata"]["name"]) in (TEMPLATES / "kubernetes-pool.json").read_text(encoding="utf-8")


def manifest_of(variables: dict[str, Any]) -> Any:
    """The job that the Kubernetes worker would create for a run of training-node in a pool of our template; it is valid."""
    from prefect.client.schemas.objects import Flow, FlowRun
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    template = json.loads((TEMPLATES / "kubernetes-pool.json").read_text(encoding="utf-8"))
    # The template has no block or variable that a server would be asked for.
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        configuration = asyncio.run(KubernetesWorkerJobConfiguration.from_template_and_values(template, variables))
        flow = Flow(name="node")
        configuration.prepare_for_flow_run(FlowRun(flow_id=flow.id, name="train-0"), flow=flow)
    kubernetes_validate.validate(configuration.job_manifest, KUBERNETES, strict=True)
    return configuration.job_manifest


def test_a_run_in_the_kubernetes_pool_is_a_valid_job_with_gpus_time_to_save_and_the_nodes_and_credentials_that_are_chosen() -> None:
    chosen = {
        "image_pull_secrets": [{"name": "registry"}], "node_selector": {"accelerator": "h100"}, "service_account_name": "trainer",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }  # fmt: skip
    usual = {"image": "registry.example/transformer-pipeline:1", "gpus": 2, "env": {"MLFLOW_TRACKING_URI": "http://m"}}
    names = ("imagePullSecrets", "nodeSelector", "serviceAccountName", "tolerations")
    with_all = manifest_of({**usual, **chosen})["spec"]["template"]["spec"]
    assert [with_all[name] for name in names] == list(chosen.values())
    manifest = manifest_of(usual)
    assert manifest["spec"]["backoffLimit"] == 0
    pod = manifest["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > grace_seconds()
    container = pod["containers"][0]
    assert container["image"] == "registry.example/transformer-pipeline:1"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert variables_of(pod)["MLFLOW_TRACKING_URI"] == "http://m"
    assert variables_of(pod)["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"] == "reschedule"
    assert not {*names} & {*pod}
    # The image must have this command in its path.
    assert container["args"][0] == "prefect"
    assert re.search(r"^ENV PATH=/home/pipeline/project/\.venv/bin:\$PATH$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)


def test_the_kubernetes_pool_asks_for_what_the_worker_knows() -> None:
    from prefect_kubernetes.worker import KubernetesWorker

    ours = json.loads((TEMPLATES / "kubernetes-pool.json").read_text(encoding="utf-8"))
    theirs = KubernetesWorker.get_default_base_job_template()
    assert set(ours["job_configuration"]) == set(theirs["job_configuration"])
    placeholders = set(re.findall(r"{{ (\w+) }}", json.dumps(ours["job_configuration"])))
    assert placeholders == set(ours["variables"]["properties"])
