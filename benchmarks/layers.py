"""Time of an encoder layer over the length of its input (paper, Table 1): ``python benchmarks/layers.py --out FILE``.

A forward and a backward pass of one layer of width 256 on one sentence, on one core; all take turns.
"""

from collections.abc import Callable
from time import process_time
from timeit import Timer
from typing import Any

import torch
from common import command_line, report
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.baselines.bytenet import ResidualBlock
from transformer_core.baselines.convolutional import EncoderLayer as ConvolutionalLayer
from transformer_core.baselines.sizes import ByteNetSize
from transformer_core.models.layers import EncoderLayer
from transformer_core.presets import SMALL

WIDTH = SMALL.d_model
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)


def layers() -> dict[str, Callable[[Tensor], Tensor]]:
    """Return a layer of each architecture: from (1, n, D) to that shape."""
    transformer, lstm = EncoderLayer(SMALL.changed({"dropout": 0.0})), nn.LSTM(WIDTH, WIDTH, batch_first=True)
    convolution, block = ConvolutionalLayer(WIDTH, WIDTH, 3, 0.0), ResidualBlock(ByteNetSize(layers=1, d_model=WIDTH, dropout=0.0), 1)
    return {
        "transformer": lambda x: transformer(x, None),
        "recurrent (LSTM)": lambda x: lstm(x)[0],
        "convolutional (ConvS2S)": lambda x: convolution(x, torch.ones(1, x.shape[1], 1)),
        "dilated (ByteNet)": lambda x: block(x, functional.pad(block.read(x), (0, 0, 1, 1))),
    }


def main() -> None:
    """Measure and print."""
    options = command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    runs: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        for length in LENGTHS:
            x = torch.randn(1, length, WIDTH, requires_grad=True)
            for name, layer in layers().items():
                # CPU time: another process adds nothing to it.
                timer = Timer("layer(x).sum().backward()", timer=process_time, globals={"layer": layer, "x": x})
                repeats = timer.autorange()[0]
                runs.append({"layer": name, "n": length, "milliseconds": 1000 * timer.timeit(repeats) / repeats})
    report(runs, ["layer", "n"], options.out)


if __name__ == "__main__":
    main()
