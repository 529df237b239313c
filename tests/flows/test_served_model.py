"""The registered model behind `mlflow models serve`, started for real on the loopback, and the other ways to translate with it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import requests
import torch
from mlflow import MlflowException, pyfunc
from mlflow.pyfunc.model import PythonModelContext

from flows import translate
from flows.process.paths import AVERAGED
from flows.record.served_model import Refused, ServedTranslator
from tests.flows import servers
from tests.flows.publishing import LINES, publish_in, set_search
from tests.models.on_disk import SMALL, translations, write_model
from tests.waiting import free_port
from transformer_core import load
from transformer_core.config import PAPER_SEARCH
from transformer_core.corpus.tokens.shortlist import SHORTLIST, Shortlist
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator
from transformer_core.errors import configuration_error
from transformer_core.models.transformer import Transformer

pytestmark = pytest.mark.slow  # About a minute: the server starts in 20 seconds, and answers almost 200 requests.

MODEL = "tatoeba-en-de@champion"
TEXTS = [" ".join(LINES[first : first + words]) for first in range(4) for words in (1, 2, 3)] + ["", "naïve 漢字"]
SEARCHES: list[dict[str, Any]] = [{}, {"beam": 1}, {"beam": 2, "alpha": 1.0}, {"beam": 3, "penalty": "power", "max_extra": 5}]


class Server(NamedTuple):
    """A server of the registered model, and the translator of the same model."""

    url: str
    translator: Translator

    def post(self, body: object, content_type: str = "application/json") -> requests.Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return requests.post(f"{self.url}/invocations", data=data, headers={"Content-Type": content_type}, timeout=300)

    def predictions(self, lines: list[str], **asked: object) -> Any:
        answer = self.post({"inputs": lines, "params": asked})
        assert answer.status_code == 200, answer.text
        return answer.json()["predictions"]

    def wanted(self, lines: list[str], asked: dict[str, Any]) -> list[str]:
        return [ranked[0].text for ranked in translations(self.translator, lines, Search(**asked))]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model_directory: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serving")
    with pytest.MonkeyPatch.context() as patch:
        publish_in(folder, model_directory, patch)
        port = free_port()
        command = ["mlflow", "models", "serve", "-m", f"models:/{MODEL}", "--env-manager", "local", "--port", str(port)]
        with servers.server(*command, log=folder / "serve.log", url=f"http://127.0.0.1:{port}/ping"):
            yield Server(f"http://127.0.0.1:{port}", Translator.load(folder / AVERAGED))


def predictor(directory: Path) -> partial[Any]:
    """The method predict of the model of a directory, without a server."""
    served, context = ServedTranslator(), PythonModelContext({"model": str(directory)}, {})
    served.load_context(context)
    return partial(served.predict, context)


def test_many_requests_from_eight_clients_get_the_translators_own_text(server: Server) -> None:
    expected = [server.wanted(TEXTS, asked) for asked in SEARCHES]
    assert len({*expected[0]}) > len(TEXTS) / 2  # The model, random as it is, says this for one line and that for another.

    def ask(number: int) -> bool:
        """One to three lines, in one way of searching."""
        way, first, count = number % len(SEARCHES), number % len(TEXTS), 1 + number % 3
        answered = server.predictions(TEXTS[first : first + count], engine="torch", **SEARCHES[way])
        return bool(answered == expected[way][first : first + count])

    with ThreadPoolExecutor(8) as clients:
        assert all(clients.map(ask, range(168)))  # Each way of searching, first line and number of lines twice.


def test_nbest_lists_scores_and_an_engine_can_be_requested(server: Server) -> None:
    """With `auto` a request for text alone has CTranslate2; greedy text is the same in both."""
    ranked = translations(server.translator, TEXTS[:3], Search(beam=3))
    (first, *_), *_ = answer = server.predictions(TEXTS[:3], beam=3, nbest=True)
    assert [[one["text"] for one in found] for found in answer] == [[one.text for one in found] for found in ranked]
    assert first["score"] == pytest.approx(ranked[0][0].score, abs=1e-4)
    assert first["log_probability"] == pytest.approx(ranked[0][0].log_probability, abs=1e-4)
    assert server.predictions(TEXTS[:1], beam=3, scores=True) == [pytest.approx(first)]
    theirs = load(AVERAGED, engine="ctranslate2").translate(TEXTS, beam=3)
    answered = server.predictions(TEXTS, engine="ctranslate2", scores=True, beam=3)
    assert [one["text"] for one in answered] == theirs == server.predictions(TEXTS, beam=3, engine="auto")
    greedy = [server.predictions(TEXTS, beam=1, engine=engine) for engine in ("auto", "torch")]
    assert greedy == [server.wanted(TEXTS, {"beam": 1})] * 2


def test_a_request_can_have_a_glossary_to_which_the_models_own_engine_gives_way(server: Server, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(AVERAGED, tmp_path / "model"))
    set_search(directory, engine="ctranslate2", precision="int8")
    wanted = {"glossary": "dogs\tFahrrad\nman\tZwei Hunde"}
    for texts in (server.predictions(LINES[:2], **wanted), predictor(directory)(LINES[:2], wanted)):
        assert ["Zwei Hunde" in texts[0], "Fahrrad" in texts[1]] == [True, True]
        assert server.predictions(LINES[:2], glossary=f"{wanted['glossary']}\n") == texts
    assert server.predictions(LINES[:2], glossary="") == server.predictions(LINES[:2]) != texts


BAD = {
    "malformed JSON": (b'{"inputs": ["a"', "valid JSON"),
    "a table": ({"dataframe_split": {"columns": ["line"], "data": [["a"]]}}, "'inputs' key"),
    "a number": ({"inputs": [1]}, "Expected type str"),
    "no list": ({"inputs": "a"}, "Expected list"),
    "a megabyte": ({"inputs": ["a", "a" * 1_000_000]}, "inputs[1]: 1,000,000 characters, at most 20,000 are translated"),
    "half a character": (b'{"inputs": ["a", "a\\ud83d"]}', "inputs[1]: character 2 is a lone surrogate"),
    "no beam": ({"inputs": ["a"], "params": {"beam": 0}}, "params.beam: "),
    "a beam as wide as the world": ({"inputs": ["a"], "params": {"beam": 10**9}}, "params.beam: "),
    "half a beam": ({"inputs": ["a"], "params": {"beam": 2.5}}, "beam"),
    "alpha below 0": ({"inputs": ["a"], "params": {"alpha": -1.0}}, "params.alpha: "),
    "alpha is no number": (b'{"inputs": ["a"], "params": {"alpha": NaN}}', "params.alpha: "),
    "another engine": ({"inputs": ["a"], "params": {"engine": "onnx"}}, "params.engine: "),
    "a shortlist that the model has not": ({"inputs": ["a"], "params": {"shortlist": True}}, "params.shortlist: this model was published"),
    "a glossary without tabs": ({"inputs": ["a"], "params": {"glossary": "a\tb\nc"}}, "params.glossary:2: not a term, a tab and its"),
    "another penalty": ({"inputs": ["a"], "params": {"penalty": "none"}}, "params.penalty: "),
}


def test_invalid_requests_are_refused_in_one_short_line_and_the_server_continues(server: Server) -> None:
    for name, (body, fault) in BAD.items():
        answer = server.post(body)
        assert answer.status_code == 400, name
        assert fault in answer.json()["message"], name
        assert len(answer.text) < 1000, name  # Not the megabyte again.
    assert server.post(b"A line.", "text/plain").status_code == 415
    assert server.predictions([]) == []
    assert server.predictions(TEXTS[:1], engine="torch") == server.wanted(TEXTS[:1], {})


UNSUPPORTED, GPU = configuration_error("not supported by the engine"), RuntimeError("CUDA error: unspecified launch failure")
FAILURES: list[tuple[Exception, str, int, str]] = [
    (MemoryError(), "torch", 503, "this server: out of memory. Send shorter lines"),  # To be tried again.
    (GPU, "torch", 500, "the GPU failed"),
    (UNSUPPORTED, "torch", 400, "not supported"),
    (UNSUPPORTED, "ctranslate2", 400, "not supported"),
    (UNSUPPORTED, "auto", 500, "not supported"),
    (UNSUPPORTED, "", 500, "not supported"),
]


@pytest.mark.parametrize(("error", "engine", "status", "said"), FAILURES)
def test_a_failure_is_the_servers_or_the_requests_and_says_whether_another_try_is_worth_it(
    error: Exception, engine: str, status: int, said: str, model_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = predictor(model_directory)
    for name in ("ctranslate2_engine.CTranslate2Engine.load", "translator.Translator.translate_tokens"):
        monkeypatch.setattr(f"transformer_core.decoding.{name}", Mock(side_effect=error))
    with pytest.raises(Refused) as caught:
        predict(["A dog."], {"engine": engine} if engine else {})
    assert caught.value.get_http_status_code() == status
    assert said in caught.value.serialize_as_json()
    with pytest.raises(Refused, match=r"inputs\[0\]: character 3 is a lone surrogate"):
        predict(["A \ud83d"])


def test_a_request_is_searched_as_the_model_was_scored_where_it_says_nothing(model_directory: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(model_directory, tmp_path / "model"))
    set_search(directory, precision="float64", beam=2, penalty="power", alpha=1.5, max_extra=3)
    predict = predictor(directory)
    translator = Translator.load(directory, precision="float64")
    wanted, other = (translations(translator, TEXTS, Search(2, alpha, "power", max_extra=3)) for alpha in (1.5, 0.0))
    assert predict(TEXTS) == [ranked[0].text for ranked in wanted]
    assert predict(TEXTS, {"alpha": 0.0}) == [ranked[0].text for ranked in other]
    assert len(predict.func.__self__.model._engines) == 1  # All requests share one, which on a GPU keeps the memory of captured steps.


def test_a_model_of_several_directions_is_asked_for_the_target_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(9)
    tags = ["<2de>", "<2fr>"]
    directory = write_model(Transformer(SMALL, 62), tmp_path / "model", LINES, decode=PAPER_SEARCH, target="targets", user_symbols=tags)
    publish_in(tmp_path, directory, monkeypatch)
    served, translator = pyfunc.load_model(f"models:/{MODEL}"), Translator.load(directory)
    for tag, to in zip(tags, ("de", "fr"), strict=True):
        wanted = translations(translator, [f"{tag} {text}" for text in LINES[:4]], Search())
        assert served.predict(LINES[:4], params={"to": to, "engine": "torch"}) == [ranked[0].text for ranked in wanted]
    with pytest.raises(MlflowException, match=r"params\.to: the model translates to de, fr\. Name one"):
        served.predict(LINES[:4])


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_a_request_can_be_searched_among_the_subwords_on_shortlists(engine: str, server: Server, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(AVERAGED, tmp_path / "model"))
    size = server.translator.subword.vocab_size
    frequent = np.union1d(np.arange(4), np.arange(0, size, 2))
    Shortlist(np.zeros(size + 1, np.int64), np.zeros(0, np.int64), frequent).save(directory / SHORTLIST)
    predict = predictor(directory)
    asked = {"engine": engine, "beam": 1}
    narrow, wide = (  # A request a line: CTranslate2 unites the shortlists of a batch.
        [predict([text], {**asked, "shortlist": shortlist})[0] for text in TEXTS[:4]] for shortlist in (True, False)
    )
    assert narrow != wide == server.predictions(TEXTS[:4], **asked)
    ranked = translations(Translator.load(directory, shortlist=True), TEXTS[:4], Search(1))
    assert narrow == [hypotheses[0].text for hypotheses in ranked]


def test_a_long_text_is_translated_in_parts_and_unknown_characters_logged(model_directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    predict = predictor(model_directory)
    sentence = " ".join(LINES[:3])
    (alone,) = predict([sentence])
    two, long, _ = predict([f"{sentence}\n\n{sentence}", f"{sentence}. " * 200, "\u20ac"])
    assert two == f"{alone}\n\n{alone}"
    assert len(long) > 100 * len(alone)
    told = [record.message.split(": ")[0] for record in caplog.records]
    assert told == ["lines of more than 1,024 tokens, translated sentence by sentence", "lines with unknown characters, which are left out"]


def test_predict_and_a_file_give_the_same_text_from_the_command_line(server: Server) -> None:
    expected = server.predictions(TEXTS)
    Path("in.json").write_text(json.dumps({"inputs": TEXTS}), encoding="utf-8")
    predict = ["-m", "mlflow", "models", "predict", "-m", f"models:/{MODEL}", "--env-manager", "local", "-t", "json", "-i", "in.json"]
    done = subprocess.run([sys.executable, *predict], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["predictions"] == expected

    lines = "".join(f"{line}\n" for line in TEXTS).encode()
    done_file = subprocess.run([sys.executable, "-m", "flows.translate", MODEL], input=lines, capture_output=True, check=False)
    assert done_file.returncode == 0
    assert done_file.stderr.decode().startswith("lines with unknown characters, which are left out: 1 of ")
    assert done_file.stdout.decode().split("\n")[:-1] == expected
    assert translate.load(f"models:/{MODEL}").translate(TEXTS) == expected
