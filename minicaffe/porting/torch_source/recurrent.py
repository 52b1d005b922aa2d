"""The layers of sequences, as lines of PyTorch. Every forward begins with states of 0, unless the net's inputs give them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Arrays
from minicaffe.layer import Layer
from minicaffe.layers.recurrent.ctc_greedy_decoder import CTCGreedyDecoder
from minicaffe.layers.recurrent.lstm import LSTM, Lstm, LSTMUnit
from minicaffe.layers.recurrent.rnn import RNN, ContinuationIndicator
from minicaffe.parameters import weight_name

from .forms import Shapes, source
from .source import Source


def _arrays(layer: Layer) -> Arrays:
    return {weight_name(layer, i): np.asarray(blob.read_data()) for i, blob in enumerate(layer.blobs)}


@source(LSTM, RNN)
def recurrent(s: Source, layer: LSTM | RNN, bottom: Sequence[str], top: Shapes) -> str:
    kind = type(layer).__name__
    s.part(kind.lower())
    static = f", static={layer.inputs[1]}" if layer.static else ""
    made = s.module(layer, f"{kind}({layer.inputs[0]}, {layer.units}{static})", _arrays(layer))
    given = [*bottom[:2], *([f"static={bottom[2]}"] if layer.static else [])]
    given += [f"{name}={value}" for name, value in zip(layer.states, bottom[layer.exposed])]
    return f"{made}({', '.join(given)})" + ("[0]" if len(top) == 1 else "")


@source(Lstm)
def lstm_of_forks(s: Source, layer: Lstm, bottom: Sequence[str], top: Shapes) -> str:
    if len(bottom) > 1 or np.isfinite(layer.bound):
        raise layer.error("with clip or a clipping_threshold has no form", "bottom[1]" if len(bottom) > 1 else "lstm_param")
    s.part("lstm")
    param = layer.param.lstm_param
    first = "" if param.own_states else ", first_only=True"
    made = s.module(layer, f"LSTM({layer.inputs}, {layer.units}{first})", _arrays(layer))
    if layer.streams_apart:
        return f"{made}({bottom[0]})[0]"
    return f"{made}({bottom[0]}.reshape(-1, {param.batch_size}, {layer.inputs}))[0].flatten(0, 1)"


@source(LSTMUnit)
def lstm_unit(s: Source, layer: LSTMUnit, bottom: Sequence[str], top: Shapes) -> str:
    s.part("lstm_unit")
    return f"lstm_unit({', '.join(bottom)})"


@source(ContinuationIndicator)
def continuation_indicator(s: Source, layer: ContinuationIndicator, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.continuation_indicator_param
    if not bottom:
        return f"F.pad(torch.ones({param.time_step - 1}, {param.batch_size}), (0, 0, 1, 0))"
    return f"F.pad({bottom[0]}.new_ones({param.time_step - 1}, {bottom[0]}.shape[{param.axis}]), (0, 0, 1, 0))"


@source(CTCGreedyDecoder)
def ctc_greedy_decoder(s: Source, layer: CTCGreedyDecoder, bottom: Sequence[str], top: Shapes) -> str:
    if layer.accuracy_top:
        raise layer.error("with true labels has no form", f"top[{layer.accuracy_top}]")
    s.part("ctc_greedy")
    merge = "" if layer.param.ctc_decoder_param.ctc_merge_repeated else ", merge=False"
    made = f"ctc_greedy({bottom[0]}, {bottom[1]}, {layer.blank}{merge})"
    return made if len(top) > 1 else f"{made}[0]"
