# SPDX-License-Identifier: Apache-2.0
"""packattn.torch_ops: fake kernels, opcheck, torch.compile without breaks or recompilation."""

import numpy as np
import packattn
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("packattn.torch_ops")

pytestmark = pytest.mark.torch
CHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_static",
    "test_aot_dispatch_dynamic",
)


def ends(*lengths):
    return torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32))


def attention_inputs(*lengths):
    torch.manual_seed(0)
    total = sum(lengths)
    q, k = torch.randn(total, 4, 16), torch.randn(total, 2, 16)
    return q, k, torch.randn(total, 2, 8), ends(*lengths)


def kda_inputs(*lengths):
    torch.manual_seed(0)
    total = sum(lengths)
    f = lambda *s: torch.randn(1, total, *s)  # noqa: E731
    return f(2, 8), f(2, 8), f(4, 16), -f(4, 8).abs(), f(4).sigmoid(), ends(*lengths)


def test_opcheck():
    q, k, v, cu = attention_inputs(3, 0, 5)
    torch.library.opcheck(torch.ops.packattn.attention, (q, k, v, cu), test_utils=CHECKS)
    options = {"causal": True, "left": 2, "softcap": 3.0, "alibi_slopes": torch.ones(4)}
    torch.library.opcheck(
        torch.ops.packattn.attention, (q, k, v, cu, cu), options, test_utils=CHECKS
    )
    for form in ("kda_chunk", "kda_recurrent"):
        *args, cu = kda_inputs(3, 0, 5)
        torch.library.opcheck(
            torch.ops.packattn.kda,
            (form, *args, cu),
            {"state_layout": "v_first"},
            test_utils=CHECKS,
        )
        torch.library.opcheck(torch.ops.packattn.kda, (form, *args), test_utils=CHECKS)
        state = torch.randn(5, 4, 8, 16)
        slots = torch.tensor([3, 1, 0])
        torch.library.opcheck(
            torch.ops.packattn.kda_update, (form, *args, state, cu, slots), test_utils=CHECKS
        )


def compiled(function):
    """The compiled function; a graph break would be an error."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_compiled_attention_of_changing_lengths():
    def layer(q, k, v, cu):
        out, lse = packattn.attention(q * 2, k, v, cu, causal=True, return_lse=True)
        return out + 1, lse

    traced = compiled(layer)
    with torch.no_grad():
        for lengths in ((3, 0, 5, 9, 20), (9, 4, 1, 10, 1, 1), (1, 2, 3, 30, 0, 7, 9, 5)):
            inputs = attention_inputs(*lengths)
            for got, want in zip(traced(*inputs), layer(*inputs), strict=True):
                assert torch.equal(got, want)
    assert graphs() == 1


def test_compiled_attention_with_a_batch():
    def layer(q, k, v, batch):
        return packattn.attention(q, k, v, batch, window=(3, 0)) * 2

    with torch.no_grad():
        for lengths in ((3, 0, 5, 9, 20), (9, 4, 2, 1, 1, 3)):
            q, k, v, cu = attention_inputs(*lengths)
            spec = packattn.BatchSpec(cu_seqlens_q=cu, cu_seqlens_k=cu)
            for batch in (spec, packattn.PackedBatch(spec)):
                traced = compiled(layer)
                assert torch.equal(traced(q, k, v, batch), layer(q, k, v, batch))
                assert graphs() == 1


@pytest.mark.parametrize("form", [packattn.kda_chunk, packattn.kda_recurrent])
def test_compiled_kda(form):
    def layer(q, k, v, g, beta, cu):
        return form(q, k, v, g, beta, cu, l2norm=True, state_layout="k_first",
                    output_final_state=True)  # fmt: skip

    def decode(q, k, v, g, beta, cu, state):
        return (
            form(q, k, v, g, beta, cu, l2norm=True, state_layout="k_first", state=state)
            + state.sum()
        )

    with torch.no_grad():
        traced = compiled(layer)
        for lengths in ((3, 0, 5, 9, 20), (9, 4, 1, 10, 1, 1), (17, 2, 5, 5, 1)):
            inputs = kda_inputs(*lengths)
            for got, want in zip(traced(*inputs), layer(*inputs), strict=True):
                assert torch.equal(got, want)
        assert graphs() == 1
        traced = compiled(decode)
        inputs = kda_inputs(3, 5)
        states = [torch.ones(2, 4, 8, 16) for _ in range(2)]
        got, want = traced(*inputs, states[0]), decode(*inputs, states[1])
        assert torch.allclose(got, want) and torch.equal(*states)


def test_compiled_neighbours_of_kda():
    torch.manual_seed(0)
    weight, scale, rates = torch.randn(16, 4), torch.randn(16), torch.randn(2)

    def layer(x, residual, cu):
        y = packattn.short_convolution(x, weight, cu, silu=True)
        y, kept = packattn.gated_rms_norm(
            y, x, weight=scale, residual=residual, return_residual=True
        )
        g = packattn.kda_gate(y.view(1, -1, 2, 8), A_log=rates)
        return packattn.l2norm(y, eps=1e-5) + g.view(-1, 16), kept

    def step(x, cu, pool, slots):
        out, state = packattn.short_convolution(
            x, weight, cu, state=pool, slots=slots, output_final_state=True
        )
        return out + state.sum()

    with torch.no_grad():
        traced = compiled(layer)
        for lengths in ((3, 0, 5, 1), (9, 4, 1, 10, 2, 2), (17, 2)):
            cu = torch.tensor([0, *lengths]).cumsum(0)
            x, residual = torch.randn(sum(lengths), 16), torch.randn(sum(lengths), 16)
            for got, want in zip(traced(x, residual, cu), layer(x, residual, cu), strict=True):
                assert torch.allclose(got, want, atol=1e-6)
        assert graphs() == 1
        traced = compiled(step)
        pools = [torch.ones(3, 16, 3) for _ in range(2)]
        cu, slots, x = torch.tensor([0, 2, 5]), torch.tensor([2, 0]), torch.randn(5, 16)
        got, want = traced(x, cu, pools[0], slots), step(x, cu, pools[1], slots)
        assert torch.allclose(got, want, atol=1e-5) and torch.equal(*pools)


def test_refusals_come_out_of_a_compiled_function():
    q, k, v, cu = attention_inputs(3, 5)
    traced = compiled(lambda *args: packattn.attention(*args))
    with torch.no_grad(), pytest.raises(packattn.Error) as caught:
        traced(q[:7].contiguous(), k, v, cu)
    assert "PA2006" in [fault.code for fault in caught.value.faults]


def test_operators_refuse_gradients():
    q, k, v, cu = attention_inputs(3, 5)
    with pytest.raises(packattn.Error) as caught:
        torch.ops.packattn.attention(q.requires_grad_(), k, v, cu)
    assert caught.value.code == "PA3008"
