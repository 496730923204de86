# SPDX-License-Identifier: Apache-2.0
"""Arguments that never reach the library as they are: each is refused by name, none crashes."""

import copy
import pickle

import numpy as np
import packattn
import pytest

CU = [0, 2, 6]


def array(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def refused(*args, **options):
    with pytest.raises(packattn.Error) as caught:
        packattn.attention(*args, **options)
    return caught.value.faults


class TwoPartError(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


@pytest.mark.parametrize("raised", [KeyboardInterrupt("stop"), TwoPartError(1, 2), SystemExit(3)])
def test_what_a_callback_raises_arrives_as_it_was(raised):
    def progress(done, total):
        raise raised

    q = array(6, 2, 16)
    with pytest.raises(type(raised)) as caught:
        packattn.attention(q, q, q, CU, progress=progress)
    assert caught.value is raised
    x = array(1, 6, 2, 16)
    with pytest.raises(type(raised)) as caught:
        packattn.kda_chunk(x, x, x, -abs(x), abs(x[..., 0]), CU, progress=progress)
    assert caught.value is raised


def test_a_callback_may_call_packattn():
    q = array(6, 2, 16)
    with pytest.raises(packattn.Error, match="PA1001"):
        packattn.attention(q, q, q, CU, progress=lambda *_: packattn.attention(None, q, q, CU))


def test_text_that_is_not_unicode_and_numbers_that_are_too_large():
    q = array(6, 2, 16)
    assert refused(q, q, q, CU, implementation="\udc80")[0].code == "PA3001"
    with pytest.raises(packattn.Error, match="PA7006"):
        packattn.explain("\udc80")
    for name in ("threads", "softmax_scale"):
        fault = refused(q, q, q, CU, **{name: 10**400})[0]
        assert (fault.code, fault.argument) == ("PA1104", name)
        assert "1329 bits" in fault.message
    assert len(str(refused(q, q, q, CU, implementation="x" * 10**6)[0])) < 3000


def test_masked_arrays_are_refused():
    q, cu = array(6, 2, 16), np.array(CU)
    good = {"q": q, "k": q, "v": q, "batch": cu, "out": q.copy(), "sinks": q[0, :, 0]}
    for name, value in good.items():
        with pytest.raises(packattn.Error, match="filled") as caught:
            packattn.attention(**{**good, name: np.ma.masked_array(value)})
        named = {"batch": "cu_seqlens_q"}.get(name, name)
        assert ("PA1104", named) == (caught.value.code, caught.value.faults[0].argument)
    with pytest.raises(packattn.Error, match="filled"):
        packattn.pack(np.ma.masked_array(q.reshape(2, 3, 2, 16)), [0, 3, 6])


def test_check_kda_knows_its_operations():
    x = array(1, 6, 2, 16)
    for op in ("attention", "nope", None):
        faults = packattn.check_kda(x, x, x, x, x[..., 0].copy(), op=op)
        assert [fault.argument for fault in faults] == ["op"], faults
        assert "kda_chunk" in faults[0].limit


def test_a_batch_is_made_of_a_spec_and_copied_by_reference():
    with pytest.raises(packattn.Error, match="BatchSpec"):
        packattn.PackedBatch([0, 2])
    with pytest.raises(TypeError, match="not both"):
        packattn.PackedBatch(packattn.BatchSpec(cu_seqlens_q=[0, 2]), cu_seqlens_q=[0, 3])
    batch = packattn.PackedBatch.from_cu_seqlens(CU)
    assert copy.copy(batch) is batch and copy.deepcopy(batch) is batch
    with pytest.raises(TypeError, match="BatchSpec"):
        pickle.dumps(batch)


@pytest.mark.torch
class TestTorch:
    def made(self):
        torch = pytest.importorskip("torch")
        q = torch.randn(6, 2, 16)
        return torch, q

    @pytest.mark.parametrize(
        "change", ["meta", "sparse", "csr", "quantised", "nested", "jagged", "mkldnn", "bits"]
    )
    def test_tensors_without_plain_memory_are_refused_by_name(self, change):
        torch, q = self.made()
        odd = {
            "meta": lambda: q.to("meta"),
            "sparse": lambda: q.to_sparse(),
            "csr": lambda: q[:, 0].to_sparse_csr(),
            "quantised": lambda: torch.quantize_per_tensor(q, 0.1, 0, torch.qint8),
            "nested": lambda: torch.nested.nested_tensor([q[:2], q[2:]]),
            "jagged": lambda: torch.nested.nested_tensor([q[:2], q[2:]], layout=torch.jagged),
            "mkldnn": lambda: q.to_mkldnn(),
            "bits": lambda: torch.empty(6, 2, 16, dtype=torch.bits8),
        }[change]()
        for name, call in {
            "q": (odd, q, q, CU),
            "k": (q, odd, q, CU),
            "v": (q, q, odd, CU),
            "cu_seqlens_q": (q, q, q, odd),
        }.items():
            faults = refused(*call)
            assert name in [fault.argument for fault in faults]
            assert "DLPack" in faults[0].message
        # Beside it every other fault is listed.
        assert "PA1102" in [fault.code for fault in refused(odd, q, q, CU, softcap=-1.0)]

    def test_a_pending_negation_is_not_dropped(self):
        torch, q = self.made()
        for argument in ("q", "k", "v", "out"):
            tensors = {"q": q, "k": q, "v": q, "out": torch.empty_like(q)}
            tensors[argument] = torch._neg_view(tensors[argument])
            with pytest.raises(packattn.Error, match="resolve_neg") as caught:
                packattn.attention(batch=CU, **tensors)
            assert caught.value.faults[0].argument == argument
        plain = torch._neg_view(q).resolve_neg()
        assert torch.isfinite(packattn.attention(plain, q, q, CU)).all()

    def test_forward_mode_gradients_are_refused_too(self):
        torch, q = self.made()
        forward_ad = torch.autograd.forward_ad
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(q, q)
            assert refused(dual, q, q, CU)[0].code == "PA3008"
            packattn.attention(q, q, q, CU)

    def test_transforms_are_refused(self):
        torch, q = self.made()
        with pytest.raises(packattn.Error):
            torch.func.vmap(lambda x: packattn.attention(x, q, q, CU))(torch.stack([q, q]))
        with pytest.raises(packattn.Error):
            torch.func.grad(lambda x: packattn.attention(x, q, q, CU).sum())(q)
