"""Stage average: the last checkpoints to one complete model directory."""

from flows.paths import AVERAGED, CHECKPOINTS, SUBWORD_MODEL
from flows.runner import run_stage
from transformer_core.config import Params
from transformer_core.models.directory import CONFIG, read_config, save_model
from transformer_core.training.averaging import average_last


def run(params: Params) -> str:
    """Average the weights of the last `average.last` checkpoints and put config and subword model beside them."""
    config = read_config(CHECKPOINTS / CONFIG).model_copy(update={"averaged": params.average.last})
    save_model(AVERAGED, average_last(CHECKPOINTS, params.average.last), config, SUBWORD_MODEL)
    return f"{AVERAGED}: mean of the last {params.average.last} checkpoints"


if __name__ == "__main__":
    raise SystemExit(run_stage("average", run))
