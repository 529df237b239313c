#!/bin/sh
# What needs a GPU, within eight minutes, after `make install` on a machine that has one: the tests marked gpu, then training of the base
# and the big model beside Hugging Face's, whose table and raw figures go to benchmarks/results/.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
name=$("$python" -c 'if True:
    import sys, torch
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.sh: no GPU here")
    print(torch.cuda.get_device_name().lower().replace(" ", "-"))')
mkdir -p benchmarks/results
timeout 120 "$python" -m pytest -m gpu
for setting in base big; do
    timeout 170 "$python" benchmarks/training.py --settings "$setting" --rounds 3 --microbatches 1 4 \
        --out "benchmarks/results/training-$setting-$name.md" --json "benchmarks/results/training-$setting-$name.json"
done
