"""A net that is changed on its page: every change leaves what a new net computes; the server answers its own page alone."""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from forked import forked
from numpy.typing import NDArray
from PIL import Image

from minicaffe import Error, Net, limits
from minicaffe.cli import main
from minicaffe.cli.live import Options, in_browser, live_command
from minicaffe.cli.live import session as session_of
from minicaffe.data.image_bytes import read_image
from minicaffe.formats.prototxt import NetFile, parse_net
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.mode import TEST
from minicaffe.rng import set_random_seed
from minicaffe.tracing import live as live_session
from minicaffe.tracing.explanations import explain
from minicaffe.tracing.live import Live
from minicaffe.tracing.live_server import LiveServer
from minicaffe.tracing.tour_numbers import written
from minicaffe.tracing.tours import load_tour
from minicaffe.tracing.tracer import Tracer
from minicaffe.tracing.units import unit

TEXT = """name: "one roi layer"
input: "data" input_shape { dim: 1 dim: 3 dim: 9 dim: 7 }
input: "rois" input_shape { dim: 2 dim: 5 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "ROIPooling" bottom: "conv" bottom: "rois" top: "pool"
  roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
ROIS = np.array([[0, 1, 2, 9, 12], [0, 4, 0, 13, 17]], np.float32)


NESTED: list[Any] = []
"""A list in a list in a list, deeper than Python shows."""
for _ in range(5000):
    NESTED = [NESTED]
MOVE = {"layer": "pool", "roi": 1, "box": [2, 3, 8, 7]}


def photo(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 7, 3), np.uint8)).save(file, "png")
    return file.getvalue()


def make(net: NetFile, tracer: Tracer) -> Net:
    set_random_seed(3)
    return Net(net, TEST, watch=tracer.watch)


def fill(net: Net, given: bytes | None) -> NDArray[np.uint8]:
    image = read_image(given or photo(0))
    net.blobs["data"].data[...] = image.transpose(2, 0, 1)
    net.blobs["rois"].data[...] = ROIS
    return image


class Watched(Live):
    """With what ran at the last change."""

    ran: list[str]

    @property
    def net(self) -> Net:
        return self._net

    def answer(self, request: object) -> dict[str, Any]:
        self.ran = []
        hook = self.net.before_forward(lambda i: self.ran.append(self.net.layers[i].name))
        answer = super().answer(request)
        self.net.remove_hook(hook)
        json.dumps(answer, allow_nan=False)
        return answer

    def check(self, text: str = TEXT, shown: bytes | None = None, rois: NDArray[np.float32] = ROIS) -> None:
        """All blobs, and the outputs in the trace, are those of a new net."""
        new = make(parse_net(text), Tracer())
        fill(new, shown)
        new.blobs["rois"].data[...] = rois
        new.forward()
        for name, blob in new.blobs.items():
            np.testing.assert_array_equal(self.net.blobs[name].data, blob.data, err_msg=name)
        steps = [step for step in self._now.trace.steps if step.kind == "forward"]
        assert [self.net.layers[step.layer].name for step in steps] == [layer.name for layer in new.layers]
        assert steps[-1].blobs[0].shot.values is not None
        np.testing.assert_array_equal(steps[-1].blobs[0].shot.values, new.blobs["prob"].data)


@pytest.fixture
def live() -> Watched:
    return Watched(TEXT, "net.prototxt", make, fill)


def test_the_first_pass(live: Watched) -> None:
    live.check()
    assert '"live":{"prototxt":"name: \\"one roi layer' in live.page()


def test_a_roi_runs_what_reads_it(live: Watched) -> None:
    answer = live.answer({"layer": "pool", "roi": 1, "box": [2, 3, 8, 7.5]})
    assert live.ran == ["pool", "fc", "prob"]
    assert answer["ran"].startswith("from pool on, in ")
    rois = ROIS.copy()
    rois[1, 1:] = 2, 3, 8, 7.5
    live.check(rois=rois)


@pytest.mark.parametrize(("layer", "at", "ran"), [("pool", [1, 2, 1, 0], ["pool"]), ("conv", [0, 1, 2, 3], ["conv"])])
def test_the_arithmetic_of_a_number_changes_nothing(live: Watched, layer: str, at: list[int], ran: list[str]) -> None:
    """Also that of a blob which a later layer changes in place, and with a roi that was dragged."""
    rois = ROIS.copy()
    rois[1, 1:] = 2, 3, 8, 7.5
    live.answer({"layer": "pool", "roi": 1, "box": [2, 3, 8, 7.5]})
    answer = live.answer({"explain": layer, "top": 0, "at": at})
    assert live.ran[: len(ran)] == ran
    live.check(rois=rois)
    new = make(parse_net(TEXT), Tracer())
    fill(new, None)
    new.blobs["rois"].data[...] = rois
    said = explain(new, layer, at)
    assert answer["at"] == at and answer["lines"] == said.text().splitlines()
    assert (answer["sum"] is None) == (layer == "pool")
    if layer == "conv":
        places = np.frombuffer(base64.b64decode(answer["arrays"])[answer["sum"]["places"]["at"] :], "<i4", 4 * len(said.terms))
        np.testing.assert_array_equal(places.reshape(-1, 4), said.terms.places)


def test_the_pictures_of_a_unit_change_nothing(live: Watched) -> None:
    answer = live.answer({"unit": "conv", "at": [1, 2, 3]})
    live.check()
    new = make(parse_net(TEXT), Tracer())
    fill(new, None)
    new.forward()
    wanted = unit(new, "conv", [1, 2, 3])
    assert (answer["words"], answer["rows"], answer["columns"]) == (wanted.words, [1, 3], [2, 4])
    shown, rgb = wanted.pictures[3].rgb, answer["pictures"][3]["rgb"]
    stored = np.frombuffer(base64.b64decode(answer["arrays"])[rgb["at"] :], "u1", shown.size)
    np.testing.assert_array_equal(stored.reshape(shown.shape), shown)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"unit": "conv", "at": [9, 0, 0]}, "there is no unit 9,0,0"),
        ({"unit": "con", "at": [0]}, 'no layer "con"; did you mean "conv"'),
        *(({"unit": "conv", "at": at}, "a unit is") for at in (None, [], [-1, 0, 0], [True], ["1"], [1.5], NESTED)),
        ({"unit": 3, "at": [0]}, "a unit is"),
        ({"explain": "pool", "top": 0, "at": [9, 0, 0, 0]}, "out of range"),
        ({"explain": "pool", "top": 0, "at": [0, -1, 0, 10**400]}, "out of range"),
        ({"explain": "pol", "top": 0, "at": [0]}, 'no layer "pol"; did you mean "pool"'),
        ({"explain": "conv", "top": 1, "at": [0, 0, 0, 0]}, "top 1 is out of range"),  # before the layer runs
        ({"explain": "pool", "at": [0]}, "a question is"),
        ({"explain": "pool", "top": False, "at": [0, 0, 0, 0]}, "a question is"),
        *(({"explain": "pool", "top": 0, "at": [0, value, 0, 0]}, "a question is") for value in (None, "1", 1.5, True, NESTED)),
    ],
)
def test_questions_without_an_answer(question: Any, message: str) -> None:
    """Also of a blob that a later layer changes in place: by another factor when it runs twice."""
    text = TEXT.replace('top: "conv" }\nlayer', 'top: "conv" relu_param { negative_slope: 0.5 } }\nlayer', 1)
    live = Watched(text, "net.prototxt", make, fill)
    assert message in live.answer(question)["error"]
    live.check(text)


@pytest.mark.parametrize("failing", ["forward", "trace", "document"])
@pytest.mark.parametrize("kind", ["prototxt", "photo", "roi"])
def test_any_exception_leaves_everything_as_it_was(
    live: Watched, kind: str, failing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object, **named: object) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError("a layer's fault")

    shown, before = photo(1), live.page()
    edited = TEXT.replace("num_output: 5", "num_output: 6")
    changes: dict[str, dict[str, Any]] = {
        "prototxt": {"prototxt": edited},
        "photo": {"photo": base64.b64encode(shown).decode()},
        "roi": MOVE,
    }
    target = {"forward": (InnerProduct, "forward_cpu"), "trace": (Tracer, "trace_from"), "document": (live_session, "document")}
    monkeypatch.setattr(*target[failing], fail)
    answer = live.answer(changes[kind])
    assert answer == {
        "error": "a fault of minicaffe or of a layer: ZeroDivisionError: a layer's fault; its traceback is on stderr"
    }
    assert "in fail" in caplog.text
    live.check()
    assert live.page() == before
    assert live.answer(changes[kind])["number"] == 1
    rois = ROIS.copy()
    rois[1, 1:] = MOVE["box"] if kind == "roi" else rois[1, 1:]
    live.check(edited if kind == "prototxt" else TEXT, shown=shown if kind == "photo" else None, rois=rois)


def test_a_net_without_layers(tmp_path: Path) -> None:
    """As an edit it changes nothing, and the command writes no page of it."""
    (tmp_path / "net.prototxt").write_text(TEXT)
    (tmp_path / "empty.prototxt").write_text('name: "empty"')
    with live_command.make_context("live", [str(tmp_path / "net.prototxt")]) as context:
        live = session_of(Options(**context.params), tmp_path)
    before = live.page()
    assert "the net has no layers: there is nothing to trace" in live.answer({"prototxt": 'name: "empty"'})["error"]
    assert live.page() == before
    result = CliRunner().invoke(main, ["trace", str(tmp_path / "empty.prototxt"), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 1
    assert "empty.prototxt: the net has no layers: there is nothing to trace" in result.output
    assert "written" not in result.output


def test_an_answer_leaves_out_what_the_page_shows(live: Watched) -> None:
    """The layers and steps before the change, the graph and the image; nothing for a page that shows an older trace."""
    change = {"layer": "pool", "roi": 1, "box": [2, 3, 8, 7.5]}
    part, whole = live.answer({**change, "shown": 0}), live.answer({**change, "shown": 0})
    layers, steps = part["kept"]["layers"], part["kept"]["steps"]
    assert layers == live.net.index_of("pool")
    assert steps == len(whole["trace"]["steps"]) - 2 * len(live.ran)
    assert whole["kept"] == {"layers": 0, "steps": 0}
    assert part["trace"].keys() ^ whole["trace"].keys() == {"graph", "image"}
    assert [layer["name"] for layer in part["trace"]["layers"]] == ["pool", "fc", "prob"]
    assert [layer["name"] for layer in whole["trace"]["layers"]] == [layer.name for layer in live.net.layers]
    kinds = [[(step["kind"], step["layer"]) for step in answer["trace"]["steps"]] for answer in (part, whole)]
    assert kinds[0] == kinds[1][steps:]
    assert whole["number"] == 2
    assert live.answer({"prototxt": TEXT.replace("num_output: 5", "num_output: 6"), "shown": 2})["kept"]["layers"] == 0


TOUR = {"title": "A tour", "stops": [{"title": "A roi", "text": "It is {prob[1,2]}.", "layer": "pool", "roi": 1}]}


def test_a_tour_keeps_the_first_pass_until_the_restart(tmp_path: Path) -> None:
    """Its texts argue from these numbers, and it stays when the net lacks what it speaks of."""
    (tmp_path / "tour.json").write_text(json.dumps(TOUR))
    live = Watched(TEXT, "net.prototxt", make, fill, tours=[load_tour(tmp_path / "tour.json")])

    def texts() -> list[str]:
        found = re.search(r'<script type="application/json" id="trace">(.*?)</script>', live.page())
        assert found is not None
        return [stop["text"] for tour in json.loads(found[1])["tours"] for stop in tour["stops"]]

    first = texts()
    assert first == [f"It is {written(float(live.net.blobs['prob'].data[1, 2]))}."]
    edited = TEXT.replace("num_output: 5", "num_output: 2")
    changes = [MOVE, {"photo": base64.b64encode(photo(1)).decode()}, {"prototxt": edited}]
    answers = [live.answer(change) for change in changes]
    assert [(one["is_first"], one["trace"]["tours"], "prototxt" in one) for one in answers] == [(False, [], False)] * 3
    assert texts() == first and '"is_first":false' in live.page()
    answer = live.answer({"restart": True})
    assert answer["is_first"] and answer["prototxt"] == TEXT
    live.check()
    assert texts() == first and '"is_first":true' in live.page()


def test_a_photo_runs_everything(live: Watched) -> None:
    assert "error" not in live.answer({"photo": base64.b64encode(photo(1)).decode()})
    assert len(live.ran) == len(live.net.layers)
    live.check(shown=photo(1))


@pytest.mark.parametrize(
    ("old", "new", "first"),
    [
        ("num_output: 5", "num_output: 6", "fc"),
        ("spatial_scale: 0.5", "spatial_scale: 0.25", "pool"),
        ('top: "conv" }\nlayer', 'top: "conv" relu_param { negative_slope: 0.5 } }\nlayer', "conv"),  # in place: from its blob
        ("{ pooled_h", "{  pooled_h", "the end"),
    ],
    ids=["fc", "pool", "in place", "nothing"],
)
def test_an_edit_runs_from_the_first_layer_that_changed(live: Watched, old: str, new: str, first: str) -> None:
    text = TEXT.replace(old, new, 1)
    assert text != TEXT
    live.answer({"photo": base64.b64encode(photo(2)).decode()})
    assert live.answer({"prototxt": text})["ran"].startswith(f"from {first} on")
    live.check(text, shown=photo(2))


def test_an_edit_of_an_input_fills_it_again(live: Watched) -> None:
    text = TEXT.replace('name: "one', 'name: "another').replace("dim: 2 dim: 5", "dim: 1 dim: 5")
    live = Watched(TEXT, "net.prototxt", make, lambda net, given: None)
    assert "from input on" in live.answer({"prototxt": text})["ran"]
    assert live.net.blobs["pool"].shape == (1, 4, 2, 3)


IMPOSSIBLE: list[tuple[Any, str]] = [
    (
        {"prototxt": TEXT.replace("pooled_h", "pooled_x")},
        "has no field pooled_x; the nearest is pooled_w (net.prototxt:8)",
    ),
    (
        {"prototxt": TEXT.replace('bottom: "pool"', 'bottom: "pond"')},
        'bottom "pond" is not produced by any layer before it (net.prototxt:9)',
    ),
    ({"prototxt": "layer {"}, "net.prototxt:1"),
    ({"photo": base64.b64encode(b"no photo").decode()}, "the photo: cannot read the image: not an image"),
    ({"photo": "§"}, "the photo: not base64"),
    ({"layer": "pool", "roi": 2, "box": [1, 1, 2, 2]}, 'layer "pool" has 2 rois; there is no roi 2'),
    ({"layer": "pool", "roi": 0, "box": [1, 1, float("nan"), 2]}, "a box is four finite numbers"),
    ({"layer": "conv", "roi": 0, "box": [1, 1, 2, 2]}, '"conv" is not a layer with rois'),
    ({"layer": ["pool"], "roi": 0, "box": [1, 1, 2, 2]}, "a layer is named by a text"),
    ({"layer": NESTED, "roi": 0, "box": [1, 1, 2, 2]}, "a layer is named by a text"),
    ({"layer": "pool", "roi": True, "box": [1, 1, 2, 2]}, "a roi is a whole number"),
    ({"layer": "pool", "roi": NESTED, "box": [1, 1, 2, 2]}, "a roi is a whole number"),
    ({"layer": "pool", "roi": -1, "box": [1, 1, 2, 2]}, "there is no roi -1"),
    ({"layer": "pool", "roi": 0, "box": [1, 1, 10**400, 2]}, "a box is four finite numbers"),
    ({"layer": "pool", "roi": 0, "box": [1, 1, 1e300, 2]}, "a box is four finite numbers"),  # infinite as float32
    ({"layer": "pool", "roi": 0, "box": [1, 1, True, 2]}, "a box is four finite numbers"),
    ({"layer": "pool", "roi": 0, "box": [1, 1, [2], 2]}, "a box is four finite numbers"),
    ({"prototxt": NESTED}, "a prototxt is a text"),
    ({"photo": NESTED}, "the photo: not base64"),
    ({"layer": "pool"}, "a change is a prototxt, a photo, a restart, or a layer, a roi and its box"),
    ([], "a request is an object"),
]


def test_what_is_impossible_changes_nothing(live: Watched) -> None:
    live.answer({"photo": base64.b64encode(photo(1)).decode()})
    for request, message in IMPOSSIBLE:
        assert message in live.answer(request)["error"]
        live.check(shown=photo(1))
    assert "error" not in live.answer({"layer": "pool", "roi": 0, "box": [1, 2, 9, 12]})


def test_a_roi_outside_is_what_the_layer_makes_of_it(live: Watched) -> None:
    assert "error" not in live.answer({"layer": "pool", "roi": 0, "box": [900, 900, 950, 990]})
    assert not live.net.blobs["pool"].data[0].any()  # empty bins
    assert "error" not in live.answer({"layer": "pool", "roi": 0, "box": [1, 2, 9, 12]})
    live.check()


# The server.


@pytest.fixture
def server(live: Watched) -> Iterator[LiveServer]:
    with LiveServer(live) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(server: LiveServer) -> Ask:
    def asked(method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        host = f"127.0.0.1:{server.server_port}"
        sent = {"Host": host, "Origin": f"http://{host}", "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body), sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    return asked


def test_the_page_and_a_change(server: LiveServer, ask: Ask) -> None:
    status, page = ask("GET", server.path)
    assert status == 200
    assert page.startswith("<!DOCTYPE html>")
    status, answer = ask("POST", server.path + "change", MOVE)
    assert status == 200
    assert json.loads(answer)["ran"].startswith("from pool on")


@pytest.mark.parametrize(("error", "shown"), [(BrokenPipeError, False), (ConnectionResetError, False), (ValueError, True)])
def test_a_browser_that_goes_away_is_no_error(
    live: Watched, error: type[Exception], shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with LiveServer(live) as server:
        try:
            raise error
        except error:
            server.handle_error(None, ("127.0.0.1", 1))
    assert bool(capsys.readouterr().err) is shown


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 404),
        ("GET", "/" + "a" * 32 + "/", {}, 404),
        ("GET", "{path}", {"Host": "attacker.example"}, 404),  # a name that was made to resolve to 127.0.0.1
        ("POST", "/change", {}, 404),
        ("POST", "{path}change", {"Host": "attacker.example"}, 404),
        ("POST", "{path}change", {"Origin": "http://attacker.example"}, 403),
        ("POST", "{path}change", {"Origin": "null"}, 403),
        ("POST", "{path}change", {"Content_Type": "text/plain"}, 403),  # what a form can send without asking first
        ("POST", "{path}change", {"Content_Length": "99999999999"}, 413),
        ("POST", "{path}change", {"Content_Length": "9" * 30}, 413),
        ("POST", "{path}change", {"Content_Length": "-1"}, 411),
        ("PUT", "{path}change", {}, 501),
    ],
)
def test_others_are_refused(server: LiveServer, ask: Ask, method: str, path: str, headers: dict[str, str], status: int) -> None:
    before = server.live.page()
    assert ask(method, path.format(path=server.path), MOVE, **headers)[0] == status
    assert server.live.page() == before


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json(server: LiveServer, ask: Ask, body: bytes) -> None:
    assert ask("POST", server.path + "change", body)[0] == 400


def test_two_browsers_at_once(live: Watched, server: LiveServer, ask: Ask) -> None:
    changes = [{"layer": "pool", "roi": i % 2, "box": [i % 3, 2, 9 + i % 2, 12]} for i in range(12)]
    answers: list[tuple[int, str]] = []

    def browse(part: list[dict[str, Any]]) -> None:
        answers.extend(ask("POST", server.path + "change", one) for one in part)

    threads = [threading.Thread(target=browse, args=(part,)) for part in (changes[::2], changes[1::2])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _ in answers] == [200] * 12
    rois = ROIS.copy()
    rois[0, 1:], rois[1, 1:] = changes[10]["box"], changes[11]["box"]
    live.check(rois=rois)


def test_it_listens_on_this_computer_alone(server: LiveServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_port_that_is_taken(server: LiveServer, live: Watched) -> None:
    with pytest.raises(Error, match=rf"port {server.server_port} of 127\.0\.0\.1 cannot be used: .*; --port 0 takes"):
        LiveServer(live, server.server_port)


def test_a_photo_above_the_limit(server: LiveServer, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "bytes", 1000)
    assert ask("POST", server.path + "change", {"photo": "A" * 3000})[0] == 413


# The site.


def _of_the_site() -> tuple[str, str]:
    """The options that its page holds, and a change, in JSON."""
    found = re.search(r'<script type="application/json" id="trace">(.*?)</script>', Path("site/index.html").read_text(), re.S)
    assert found is not None
    python = json.loads(found[1])["live"]["python"]
    assert python["pyodide"] == "there/"
    return json.dumps(python["options"]), json.dumps({"prototxt": TEXT.replace("num_output: 5", "num_output: 6")})


@pytest.mark.slow
def test_the_site_holds_what_the_browser_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files answer changes as a session does, and the packages have every module that is loaded then."""
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(TEXT)
    Path("photo.png").write_bytes(photo(4))
    result = CliRunner().invoke(
        main, ["live", "net.prototxt", "--image", "photo.png", "--static", "site", "--pyodide", "there/"]
    )
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in Path("site").iterdir()) == ["files.zip", "index.html", "packages.zip", "worker.js"]
    with zipfile.ZipFile("site/files.zip") as named:
        named.extractall("files")
    options, change = _of_the_site()
    done = forked(lambda: print(in_browser(options)(change)), Path("files"))
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout)["ran"].startswith("from fc on")
    with zipfile.ZipFile("site/packages.zip") as packages:
        names = packages.namelist()
        for module in [module for name, module in sys.modules.items() if re.match(r"(minicaffe|click|yaml)(\.|$)", name)]:
            if (file := module.__file__) is not None and file.endswith(".py"):
                at = module.__name__.replace(".", "/") + ("/__init__.py" if hasattr(module, "__path__") else ".py")
                assert packages.read(at) == Path(file).read_bytes()
    assert {"google/protobuf/message.py", "minicaffe/proto/caffe.proto"} <= set(names)
    assert not [name for name in names if name.startswith("pygments") or name.endswith((".cu", ".pyc"))]


@pytest.mark.slow
def test_the_site_works_as_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What worker.js does, here: the packages and files are unpacked, and a new process compiles and imports them."""
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(TEXT)
    Path("photo.png").write_bytes(photo(4))
    words = ["live", "net.prototxt", "--image", "photo.png", "--static", "site", "--pyodide", "there/"]
    assert CliRunner().invoke(main, words).exit_code == 0
    for name in ("packages", "files"):
        with zipfile.ZipFile(f"site/{name}.zip") as packed:
            packed.extractall(name)
    options, change = _of_the_site()
    program = "import sys; from minicaffe.cli.live import in_browser; print(in_browser(sys.argv[1])(sys.argv[2]))"
    # a browser has no Numba, which would compile for another folder anew
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "packages"), "MINICAFFE_LOOPS": "numpy"}
    command = [sys.executable, "-c", program, options, change]
    done = subprocess.run(command, cwd="files", env=environment, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["ran"].startswith("from fc on")
    assert [step["shapes"] for step in answer["trace"]["steps"]][-1] == [[2, 6]]


@pytest.mark.parametrize("option", [("--allow-module", "json"), ("--skip-unknown",)])
def test_what_the_site_cannot_take_along(tmp_path: Path, option: tuple[str, ...]) -> None:
    (tmp_path / "net.prototxt").write_text(TEXT)
    result = CliRunner().invoke(main, ["live", str(tmp_path / "net.prototxt"), "--static", str(tmp_path / "site"), *option])
    assert result.exit_code == 1
    assert "--static cannot be used with --allow-module or --skip-unknown" in result.output
    assert not (tmp_path / "site").exists()
