"""Paths, operations and exponents of the benchmark of Table 1; no time is judged."""

import pandas as pd
import pytest
import torch
from torch import nn

from benchmarks.layer_types import COUNTED, LAYERS, Layer, Sizes, convolutions, recurrence
from benchmarks.layers import PATH_WIDTH, counted_flops, dependences, depths, exponents, paths, row

# Operations this small are slower on two, much slower where the other core has work.
pytestmark = pytest.mark.usefixtures("one_thread")
LENGTHS = (2, 9, 10)  # Two layers of dilated kernels of 3 reach 9 positions.


@pytest.mark.parametrize("name", LAYERS)
def test_the_longest_path_is_the_exact_one(name: str) -> None:
    measured = pd.DataFrame(paths(LENGTHS, [name]))
    assert measured["value"].tolist() == measured["theory"].tolist()


def test_a_recurrent_layer_depends_on_all_earlier_positions_and_no_later_one() -> None:
    connected = dependences([recurrence(PATH_WIDTH).double()], 9)
    assert torch.equal(connected, torch.ones(9, 9, dtype=torch.bool).tril())


def centred(d: int, k: int, number: int) -> Layer:
    return convolutions(nn.Conv1d(d, d, k, dilation=k**number, padding=k**number * (k // 2)))


def test_centred_dilated_kernels_leave_pairs_at_the_ends_apart_at_any_depth() -> None:
    # 2 = 3 - 1: the way from position 0 to 2 takes its step of 1 first, to position -1, which is not there.
    connected = dependences([centred(PATH_WIDTH, 3, number).double() for number in range(6)], 9)
    assert not connected[2, 0]
    assert connected[6, 4]


def test_the_chain_of_operations_grows_with_n_in_the_recurrent_layer_alone() -> None:
    table = pd.DataFrame(depths((8, 16, 32)))
    chains = {name: own["value"].tolist() for name, own in table.groupby("layer")}
    short, middle, long = chains.pop("recurrent")
    # Twice as many positions add twice as much.
    assert long - middle == 2 * (middle - short) > 0
    assert all(len(set(chain)) == 1 for chain in chains.values())


@pytest.mark.parametrize("name", COUNTED)
def test_exponents_of_flops_are_those_of_table_1(name: str) -> None:
    counted = COUNTED[name]
    # Smaller than those timed: counts have no noise.
    size = 9 if counted.middle.size else 0
    small = counted._replace(middle=Sizes(64, 64, size), n=(64, 128), d=(64, 128), size=(9, 17) if counted.size else ())
    rows = [
        row("FLOPs", name, variable, sizes, counted_flops(counted, sizes), counted.formula(sizes)) for variable, sizes in small.points()
    ]
    fits = exponents(pd.DataFrame(rows))
    assert fits["FLOPs"].tolist() == pytest.approx(fits["theory"].tolist(), rel=0.15)
