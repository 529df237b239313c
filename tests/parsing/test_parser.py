"""A parser's encoder has a position for each word, and its decoder reads the next one."""

from pathlib import Path

import pytest
import torch

from tests.corpus.encoded import learnt_subword
from tests.models.on_disk import TEXT
from tests.models.test_embeddings import encoded
from transformer_core.models.transformer import Transformer
from transformer_core.parsing.parser import Parser
from transformer_core.parsing.sizes import ParserSize
from transformer_core.parsing.trees import CLOSING, OPENING, OTHER, WORD
from transformer_core.training.start import new_model

SIZE = ParserSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=6, d_v=5, dropout=0.0)
# By token id: 6 and 17 go on with a word, five are symbols of trees.
SYMBOLS = {5: "XX-NN", 7: "(S", 8: ")S", 10: "(NP", 11: ")NP"}
PIECES = [SYMBOLS.get(token, "a") for token in range(23)]
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
    shared = model.state_dict().keys()
    model.load_state_dict({name: weight for name, weight in parser.state_dict().items() if name in shared})
    return model


@torch.no_grad()
def test_a_word_is_one_position_with_the_sum_of_its_tokens_whatever_the_padding(parser: Parser) -> None:
    for weight in parser.of_states.parameters():
        weight.zero_()
    model = plain(parser)
    found, mask = parser.encode(SOURCE, SOURCE > 0)
    assert mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert torch.allclose(found[1:, :3], encoded(model, torch.tensor([[4, 9, 3]])), rtol=0, atol=1e-13)
    model.embedding.weight[9] += model.embedding.weight[[6, 17]].sum(dim=0)
    assert torch.allclose(found[:1], encoded(model, torch.tensor([[4, 9, 8, 21, 3]])), rtol=0, atol=1e-13)


@torch.no_grad()
def test_a_map_of_the_states_of_both_directions_is_added_to_each_word_whatever_the_padding(parser: Parser) -> None:
    words = parser.embedding(torch.tensor([[4, 9, 3]]))
    found = parser.encode_embedded(words + parser.of_states(parser.recurrent(words)[0]), torch.ones(1, 3, dtype=torch.bool))[0]
    assert torch.allclose(parser.encode(SOURCE, SOURCE > 0)[0][1:, :3], found, rtol=0, atol=1e-13)


# Targets in both orders, and by hand what the decoder reads at each: the next word, the first word of the innermost constituent, that of
# the last part, the last word, and the innermost open bracket.
TARGETS = torch.tensor([[2, 7, 5, 10, 5, 11, 8], [2, 5, 7, 5, 10, 11, 8]])
NEXT, INNER = [[0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 2, 2, 2, 2]], [[0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0, 0]]
PART, LAST = [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 0]], [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]]
BRACKET = torch.tensor([[0, 7, 7, 10, 10, 7, 0], [0, 0, 7, 7, 10, 7, 0]])


@torch.no_grad()
def test_the_decoder_reads_where_in_the_tree_it_is(parser: Parser) -> None:
    source = SOURCE[1:, :3].expand(2, -1)
    memory, model = encoded(parser, source), plain(parser)
    read, *others = (memory[torch.arange(2)[:, None], torch.tensor(words)] for words in (NEXT, INNER, PART, LAST))
    opened = model.embedding(BRACKET) * (BRACKET > 0)[..., None]
    x = model.embedding(TARGETS) + read + torch.cat([opened, *others], dim=-1) @ parser.of_stack.weight.T
    wanted = model.decode_whole(model.with_positions(x, model.target_positions, 0), memory, source > 0)
    assert torch.allclose(parser(source, source > 0, TARGETS), wanted, rtol=0, atol=1e-13)


def test_a_new_parser_knows_which_subwords_begin_a_word_and_the_kinds_of_symbols(tmp_path: Path) -> None:
    symbols = ["\u2581(S", "\u2581XX-NN", "\u2581)S"]
    subword = learnt_subword(TEXT, tmp_path / "spm.model", user_symbols=symbols)
    weights = new_model(SIZE, subword, 1).state_dict()
    assert weights["begins"].tolist() == subword.begins_word
    kinds = dict(zip(subword.pieces, weights["kinds"].tolist(), strict=True))
    assert [kinds.pop(symbol) for symbol in symbols] == [OPENING, WORD, CLOSING]
    assert {*kinds.values()} == {OTHER}
