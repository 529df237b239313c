"""A parser's encoder has a position for each word, and its decoder reads the next one."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.corpus.encoded import learnt_subword
from tests.models.on_disk import TEXT
from transformer_core.models.transformer import Transformer
from transformer_core.parsing.parser import Parser
from transformer_core.parsing.sizes import ParserSize
from transformer_core.training.start import new_model

SIZE = ParserSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=6, d_v=5, dropout=0.0)
# By token id: 6 and 17 go on with a word, 5 is the symbol of one in a tree, with its tag.
PIECES = ["XX-NN" if token == 5 else "a" for token in range(23)]
PIECES = [piece if token in (6, 17) else "\u2581" + piece for token, piece in enumerate(PIECES)]
SOURCE = torch.tensor([[4, 9, 6, 17, 8, 21, 3], [4, 9, 3, 0, 0, 0, 0]])  # Words 4, 9-6-17, 8, 21, the end; and 4, 9, the end.


@pytest.fixture
def parser() -> Parser:
    torch.manual_seed(0)
    model = Parser(SIZE, len(PIECES))
    model.read_vocabulary(PIECES)
    return model.double().eval()


def plain(parser: Parser) -> Transformer:
    model = Transformer(SIZE, len(PIECES)).double().eval()
    model.load_state_dict({name: weight for name, weight in parser.state_dict().items() if name not in ("begins", "writes")})
    return model


def encoded(model: Transformer, source: Tensor) -> Tensor:
    return model.encode(source, torch.ones_like(source, dtype=torch.bool))[0]


@torch.no_grad()
def test_a_word_is_one_position_with_the_sum_of_its_tokens_whatever_the_padding(parser: Parser) -> None:
    model = plain(parser)
    found, mask = parser.encode(SOURCE, SOURCE > 0)
    assert mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert torch.allclose(found[1:, :3], encoded(model, torch.tensor([[4, 9, 3]])), rtol=0, atol=1e-13)
    model.embedding.weight[9] += model.embedding.weight[[6, 17]].sum(dim=0)
    assert torch.allclose(found[:1], encoded(model, torch.tensor([[4, 9, 8, 21, 3]])), rtol=0, atol=1e-13)


@torch.no_grad()
def test_the_decoder_also_reads_the_first_word_that_is_not_written_and_at_last_the_end_token(parser: Parser) -> None:
    target = torch.tensor([[2, 7, 5, 5, 8, 5, 5, 5]])  # The whole source has two words: after them it stays at the end token.
    source = SOURCE[1:, :3]
    memory = encoded(parser, source)
    read = memory[:, [0, 0, 1, 2, 2, 2, 2, 2]]
    model = plain(parser)
    x = model.with_positions(model.embedding(target) + read, model.target_positions, 0)
    wanted = model.decode_whole(x, memory, source > 0)
    assert torch.allclose(parser(SOURCE, SOURCE > 0, target.expand(2, -1))[1:], wanted, rtol=0, atol=1e-13)


def test_a_new_parser_knows_which_subwords_begin_a_word_and_which_stands_for_one(tmp_path: Path) -> None:
    subword = learnt_subword(TEXT, tmp_path / "spm.model", user_symbols=["\u2581(S", "\u2581XX", "\u2581)S"])
    weights = new_model(SIZE, subword, 1).state_dict()
    assert weights["begins"].tolist() == subword.begins_word
    assert weights["writes"].nonzero().tolist() == [[subword.pieces.index("\u2581XX")]]
