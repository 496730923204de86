# SPDX-License-Identifier: Apache-2.0
"""The example programs run, fail when they should, and their data is what it claims to be."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Imports a module of examples/ as its own scripts do."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def run(script):
    pytest.importorskip("packattn")
    command = [sys.executable, str(EXAMPLES / script)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_demo_passes():
    status, text = run("demo.py")
    assert status == 0, text
    assert "NOT SO" not in text


def test_demo_fails_if_an_expectation_does_not_hold(example, monkeypatch, capsys):
    pytest.importorskip("packattn")
    console, demo = example("console"), example("demo")
    monkeypatch.setattr(console, "failures", failures := [])
    monkeypatch.setattr(demo, "failures", failures)
    for section in ("real_batch", "kda_stepping", "three_mistakes", "empty_prompt", "command_line"):
        monkeypatch.setattr(demo, section, lambda: None)
    wrong = "packattn.PackedBatch.from_cu_seqlens([1, 2])"
    assert not console.accepted(wrong, vars(demo).copy())
    console.refused("1 + 1", {}, codes=["PA2009"])
    assert len(failures) == 2
    assert demo.main() == 1
    assert capsys.readouterr().out.count("NOT SO") == 2


def test_quickstart_passes():
    status, text = run("python/quickstart.py")
    assert status == 0, text


def test_captured_batch_fits_its_description(example):
    data = example("minilm.load").load()
    sentences = json.loads((EXAMPLES / "minilm" / "sentences.json").read_text())["sentences"]
    lengths = np.diff(data.cu_seqlens).tolist()
    assert lengths == json.loads(data.metadata["lengths"])
    assert len(lengths) == len(sentences) >= 24
    assert data.cu_seqlens.dtype == np.int32
    for tensor in (data.q, data.k, data.v, data.out_torch):
        assert tensor.dtype == np.float32
        assert tensor.shape == (sum(lengths), 12, 32)
        assert np.isfinite(tensor).all()


def test_captured_result_is_pytorchs(example):
    torch = pytest.importorskip("torch")
    data = example("minilm.load").load()
    for a, b in zip(data.cu_seqlens[:-1], data.cu_seqlens[1:], strict=True):
        q, k, v = (torch.tensor(x[a:b]).transpose(0, 1)[None] for x in (data.q, data.k, data.v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
        # Another processor's PyTorch may sum in another order.
        np.testing.assert_allclose(out.numpy(), data.out_torch[a:b], rtol=0, atol=1e-5)


def test_guidance_pair_shapes(example):
    pair = example("joint.guidance_pair")
    joint, cross = pair.joint_pair(seed=3), pair.cross_pair(seed=3)
    assert joint.q.shape == joint.k.shape == joint.v.shape == (77 + 2 * 256, 24, 128)
    assert np.diff(joint.cu_seqlens_q).tolist() == [77 + 256, 256]
    assert np.array_equal(joint.q[77:333], joint.q[333:])
    assert cross.q.shape == (2 * 256, 24, 128)
    assert np.diff(cross.cu_seqlens_k).tolist() == [77, 0]
    assert np.array_equal(pair.cross_pair(seed=3).k, cross.k)
