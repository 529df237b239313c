#!/bin/sh
# What needs a GPU, on a machine that has one: sh benchmarks/gpu.sh [check] [train] [decode], by default all three.
# check: the tests marked gpu or kernel. The others are benchmarks/training.py and decoding.py. Tables are printed, and go to benchmarks/results/.
# Without .venv the interpreter is $PYTHON, which needs torch 2.11 or later, sentencepiece, safetensors and tqdm; for check pytest,
# pytest-timeout and hypothesis, for the others pandas and transformers. Wheels that benchmarks/gpu-wheels.sh has collected are installed
# beside it, into a temporary folder.
# A part that fails or takes more than 8 minutes does not end the others.
set -u
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH="$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}"
python=.venv/bin/python
if [ ! -x "$python" ]; then
    python=${PYTHON:-python3}
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    ! ls benchmarks/wheels/*.whl > /dev/null 2>&1 ||
        "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" benchmarks/wheels/*.whl || exit 1
    export PYTHONPATH="$PYTHONPATH:$site"
fi
name=$("$python" -c 'if True:
    import sys, torch
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.sh: no GPU here")
    print(torch.cuda.get_device_name().lower().replace(" ", "-"))') || exit 1
mkdir -p benchmarks/results
[ $# -gt 0 ] || set -- check train decode
failed=""
for part; do
    case $part in
        check) timeout 480 "$python" -m pytest -q -p no:cacheprovider -m 'gpu or kernel' tests/models tests/training tests/decoding/test_graphs.py ;;
        train) timeout 480 "$python" benchmarks/training.py --out "benchmarks/results/training-$name.csv" ;;
        decode) timeout 480 "$python" benchmarks/decoding.py --lines 2000 --out "benchmarks/results/decoding-$name.csv" ;;
        *) echo "benchmarks/gpu.sh: no part $part" >&2; false ;;
    esac || failed="$failed $part"
done
[ -z "$failed" ] || { echo "benchmarks/gpu.sh: failed or out of time:$failed" >&2; exit 1; }
