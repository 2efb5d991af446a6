"""Finds the package (installed, or in a build folder named by DS41_PYTHON_BUILD) and the golden cases, and loads models
from them."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

if "DS41_PYTHON_BUILD" in os.environ:
    sys.path.insert(0, os.environ["DS41_PYTHON_BUILD"])

import ds41  # noqa: E402
from ds41._file import RELEASE_NAMES  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
FIXTURES = pathlib.Path(os.environ.get("DS41_FIXTURES", ROOT / "tests" / "fixtures"))
SMALL = "a_golden_stable"


class Case:
    """A golden case in one file or several parts: configuration, steps, weights, inputs and expected values."""

    def __init__(self, name):
        self.paths = sorted(FIXTURES.glob(f"{name}.*"))
        files = [ds41.File(path) for path in self.paths]
        self.file_of = {tensor: file for file in files for tensor in file}
        self.metadata = files[0].metadata
        self.config = ds41.Config.parse(self.metadata("config"))
        self.steps = json.loads(self.metadata("steps"))
        self.layers = range(self.config.n_compress_ratios)
        form = json.loads(self.metadata("weights") or '{"format": ""}')
        self.q2_k = set(form["tensors"] if form["format"] == "q2_k" else ())
        self.files = files

    def __getitem__(self, name):
        return self.file_of[name][name]

    def weights(self, layer):
        weights = {}
        for file in self.files:
            weights.update(file.layer_weights(layer))
        for member, name in RELEASE_NAMES.items():
            if f"layers.{layer}.attn.{name}" in self.q2_k:
                weights[member] = ds41.Tensor(weights[member], "q2_k")
        return weights

    def model(self, plain_activations=False, borrow=False, **options):
        model = ds41.Model(self.config, **options)
        for layer in self.layers:
            weights = self.weights(layer)
            if plain_activations:
                weights = {name: ds41.Tensor(tensor, plain_activations=True) for name, tensor in weights.items()}
            model.set_layer(layer, weights, borrow=borrow)
        return model

    def x(self, step, layer):
        """A copy of the input, which in the file may lie at any byte."""
        tensor = self[f"step{step}.layer{layer}.x"]
        return ds41.Tensor(memoryview(bytearray(tensor.tobytes())).cast("H", tensor.shape))


@pytest.fixture(scope="session")
def case():
    return Case(SMALL)


@pytest.fixture
def model(case):
    return case.model()


@pytest.fixture
def ctx(model):
    return ds41.Context(model, n_threads=1)


@pytest.fixture
def seq(model):
    return ds41.Sequence(model)


@pytest.fixture
def x(case):
    """Input of the prefill's first layer."""
    return case.x(0, 0)


@pytest.fixture
def make_checkpoint(tmp_path):
    """Writes a golden case as people publish checkpoints, and returns the path."""

    def make(name=SMALL, form="release", *options):
        made = tmp_path / ("made.gguf" if form == "gguf" else "made.safetensors" if form == "flat" else "made")
        maker = ROOT / "tests" / "support" / "make_checkpoints.py"
        paths = sorted(FIXTURES.glob(f"{name}.*"))
        subprocess.run([sys.executable, maker, *paths, "--form", form, "--out", made, *options], check=True)
        if form != "flat":
            return made
        return made if made.is_file() else next(made.glob("*.safetensors"))

    return make
