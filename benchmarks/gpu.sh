#!/bin/sh
# What needs a GPU, on a machine that has one: `sh benchmarks/gpu.sh [tests] [base] [big]`, by default all three.
# tests: the tests marked gpu. base, big: training of that model beside Hugging Face's, whose table and raw figures go to benchmarks/results/.
# A part that fails or takes too long does not end the others, and leaves the raw figures of its rounds. Without .venv the interpreter is $PYTHON.
set -u
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python=.venv/bin/python
[ -x "$python" ] || python=${PYTHON:-python3}
name=$("$python" -c 'if True:
    import sys, torch
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.sh: no GPU here")
    print(torch.cuda.get_device_name().lower().replace(" ", "-"))') || exit 1
mkdir -p benchmarks/results
[ $# -gt 0 ] || set -- tests base big
failed=""
for part; do
    case $part in
        tests) timeout 300 "$python" -m pytest -m gpu tests/training tests/decoding ;;
        *)
            timeout 400 "$python" benchmarks/training.py --settings "$part" --rounds 2 --microbatches 1 4 \
                --out "benchmarks/results/training-$part-$name.md" --json "benchmarks/results/training-$part-$name.json"
            ;;
    esac || failed="$failed $part"
done
[ -z "$failed" ] || { echo "benchmarks/gpu.sh: failed or out of time:$failed" >&2; exit 1; }
