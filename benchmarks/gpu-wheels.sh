#!/bin/sh
# Collects, into benchmarks/wheels/, the few small wheels that benchmarks/gpu.sh needs beside torch: sh benchmarks/gpu-wheels.sh [PYTHON_VERSION]
# For a GPU machine that reaches no package index and has no .venv; PYTHON_VERSION is that machine's, by default 3.12.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || python=${PYTHON:-python3}
pins=$(grep -E '^(annotated-types|pydantic|pydantic_core|ruamel\.yaml|typing-inspection)==' constraints.txt)
# shellcheck disable=SC2086 # A word for each pin.
"$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version "${1:-3.12}" --implementation cp \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --dest benchmarks/wheels $pins
ls -l benchmarks/wheels
