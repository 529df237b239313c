"""An object written to the DVC remote, looked for, read and removed: what `transformer-core doctor` runs.

python -m flows.probe NAME
"""

import sys

if __name__ == "__main__":
    from dvc.repo import Repo  # type: ignore[import-untyped]  # Here, because importing DVC starts a thread.

    with Repo() as repo:
        store = repo.cloud.get_remote_odb()
        file = store.fs.join(store.path, sys.argv[1])
        store.fs.makedirs(store.path, exist_ok=True)
        store.fs.pipe_file(file, b"doctor")
        assert file in store.fs.ls(store.path, detail=False), "an object that was written is not listed"
        assert store.fs.cat_file(file) == b"doctor", "an object that was written reads otherwise"
        store.fs.remove(file)
