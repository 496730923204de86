# SPDX-License-Identifier: Apache-2.0
"""Wrong calls: every fault at once, as exceptions that say what, where and what to do."""

import pickle

import numpy as np
import packattn
import pytest

BATCH = [0, 2, 5]


def codes(error):
    return sorted({fault.code for fault in error.value.faults})


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def test_an_error_is_a_value_error_with_its_faults():
    with pytest.raises(ValueError) as caught:
        packattn.attention(ones(5, 2, 8), ones(5, 2, 8), ones(5, 2, 8), [0, 3, 2])
    error = caught.value
    assert isinstance(error, packattn.Error) and not isinstance(error, NotImplementedError)
    assert error.code == "PA2007" == error.faults[0].code
    assert "error[PA2007]: cu_seqlens_q decreases at index 2: 3 then 2" in str(error)
    assert error.faults[0].position == "index 2" and error.faults[0].help
    assert error.record["record"]["errorCode"] == "PA2007"
    copy = pickle.loads(pickle.dumps(error))
    assert copy.faults == error.faults and str(copy) == str(error)


def test_all_faults_at_once():
    q, k, v = ones(5, 2, 8), ones(5, 3, 4, dtype=np.float16), ones(6, 1, 8)
    with pytest.raises(packattn.Error) as caught:
        packattn.attention(q, k, v, [1, 7], softmax_scale=float("nan"), window=(-2, None))
    assert {"PA1004", "PA1006", "PA1007", "PA1008", "PA1009", "PA1101", "PA1103", "PA2005"} <= set(
        codes(caught)
    )
    assert f"{len(caught.value.faults)} faults in this call" in str(caught.value)
    found = packattn.check_attention(q, k, v, [1, 7], softmax_scale=float("nan"), window=(-2, None))
    assert found == list(caught.value.faults)


def test_unsupported_calls_are_not_implemented_errors():
    q = ones(5, 2, 8)
    with pytest.raises(NotImplementedError) as caught:
        packattn.attention(q, q, q, BATCH, implementation="nothing/attention")
    assert isinstance(caught.value, packattn.Error) and caught.value.code == "PA3001"
    assert pickle.loads(pickle.dumps(caught.value)).code == "PA3001"


@pytest.mark.parametrize(
    ("argument", "value", "code"),
    [
        ("q", None, "PA1001"),
        ("q", [1.0, 2.0], "PA1104"),
        ("q", "q", "PA1104"),
        ("q", np.ones((5, 2, 8), np.complex64), "PA1005"),
        ("q", np.ones((5, 2, 8), object), "PA1005"),
        ("q", np.ones((5, 2, 8), ">f4"), "PA1104"),
        ("q", np.float32(1), "PA1104"),
        ("out", [0.0], "PA1104"),
        ("out", np.ones((5, 2, 9), np.float32), "PA1010"),
        ("batch", None, "PA2001"),
        ("batch", "0,2,5", "PA1104"),
        ("batch", [], "PA2004"),
        ("batch", [[0, 5]], "PA2002"),
        ("batch", [0.0, 5.0], "PA2003"),
        ("batch", [0, 2**70], "PA2003"),
        ("batch", [0, [5]], "PA1104"),
        ("causal", 1, "PA1104"),
        ("causal", None, "PA1104"),
        ("align", "middle", "PA1104"),
        ("align", 0, "PA1104"),
        ("align", ["top_left"], "PA1104"),
        ("window", 3, "PA1104"),
        ("window", (1, 2, 3), "PA1104"),
        ("window", ("a", None), "PA1104"),
        ("softmax_scale", "big", "PA1104"),
        ("softmax_scale", float("inf"), "PA1101"),
        ("softcap", -1.0, "PA1102"),
        ("softcap", None, "PA1104"),
        ("threads", -1, "PA5004"),
        ("threads", 1.5, "PA1104"),
        ("check_level", "some", "PA1104"),
        ("implementation", 3, "PA1104"),
        ("progress", 3, "PA1104"),
        ("workspace", "no", "PA1104"),
    ],
)
def test_each_argument_is_refused_by_code(argument, value, code):
    call = {"q": ones(5, 2, 8), "k": ones(5, 2, 8), "v": ones(5, 2, 8), "batch": BATCH}
    with pytest.raises(packattn.Error) as caught:
        packattn.attention(**{**call, argument: value})
    assert code in codes(caught) and set(codes(caught)) <= {code, "PA1004"}


def test_numbers_of_numpy_are_numbers():
    q = ones(5, 2, 8)
    options = {"softmax_scale": np.float32(0.5), "causal": np.bool_(True), "threads": np.int64(1)}
    got = packattn.attention(q, q, q, BATCH, window=(np.int32(2), None), **options)
    want = packattn.attention(q, q, q, BATCH, window=(2, None), softmax_scale=0.5, causal=True)
    assert np.array_equal(got, want)


def test_read_only_outputs_are_refused():
    q, out = ones(5, 2, 8), ones(5, 2, 8)
    out.flags.writeable = False
    with pytest.raises(packattn.Error) as caught:
        packattn.attention(q, q, q, BATCH, out=out)
    assert codes(caught) == ["PA1014"]


def test_a_last_stride_is_refused_not_copied():
    q = ones(5, 2, 16)
    with pytest.raises(packattn.Error) as caught:
        packattn.attention(q[..., ::2], ones(5, 2, 8), ones(5, 2, 8), BATCH)
    assert codes(caught) == ["PA1011"]


@pytest.mark.torch
def test_gradients_are_refused():
    torch = pytest.importorskip("torch")
    q = torch.ones(5, 2, 8, requires_grad=True)
    k = torch.ones(5, 2, 8)
    with pytest.raises(NotImplementedError) as caught:
        packattn.attention(q, k, k, BATCH)
    assert codes(caught) == ["PA3008"]
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            packattn.attention(q, k, k, BATCH)
    packattn.attention(q.detach(), k, k, BATCH)
    with pytest.raises(packattn.Error) as caught:
        packattn.attention(q, k, k, [0, 3], softcap=-1.0)
    assert codes(caught) == ["PA1102", "PA2008", "PA3008"]


def test_calls_for_a_gpu_are_checked_without_one():
    fake = packattn.testing.fake_tensor
    q, k = fake((5, 2, 8), "bfloat16"), fake((5, 2, 8), "float16", "cuda:1")
    assert packattn.check_attention(q, q, q, BATCH) == []
    found = packattn.check_attention(q, k, q, BATCH)
    assert {fault.code for fault in found} == {"PA1003", "PA1004"}
    with pytest.raises(packattn.Error) as caught, packattn.testing.inject_faults(hide_cuda=True):
        packattn.attention(q, q, q, BATCH)
    # Which of the codes depends on whether this build has CUDA.
    assert {"PA4001", "PA4002"} & set(codes(caught))
    with pytest.raises(packattn.Error) as caught:
        packattn.attention(fake((5, 2, 8), "float32", "cpu"), *[ones(5, 2, 8)] * 2, BATCH)
    assert codes(caught) == ["PA1013"]


def test_faults_of_the_machine_on_demand():
    q = ones(64, 2, 8)
    with (
        pytest.raises(packattn.Error) as caught,
        packattn.testing.inject_faults(fail_allocations=True),
    ):
        packattn.attention(q, q, q, [0, 64])
    assert codes(caught) == ["PA5001"]
    packattn.attention(q, q, q, [0, 64])
    name = next(n for n in packattn.implementations("attention") if n.startswith("cpu/"))
    with packattn.testing.inject_faults(hide_simd=True):
        verdicts = {v.implementation: v for v in packattn.why(q, q, q, [0, 64])}
        assert not verdicts[name] and verdicts[name].declined.code == "PA3006"
        assert verdicts["ref/attention"]
    assert packattn.why(q, q, q, [0, 64])[-1].implementation == "ref/attention"


def test_the_error_reference():
    found = packattn.explain("error[PA2007]: cu_seqlens_q decreases at index 3: 12 then 5")
    assert found.record.code == "PA2007" and found.score == 1
    assert found.captures["argument"] == "cu_seqlens_q"
    assert str(found).startswith("# PA2007")
    same = packattn.explain("NPU packed attention requires q, k, and v with the same dtype")
    assert same.record.id == "5a32e337b8b4429a" and same.record.repo == "sgl-project/sglang"
    assert {r.code for r in packattn.records()} >= {"PA1001", "PA6001", "PA9001"}
    with pytest.raises(packattn.Error) as caught:
        packattn.explain("qwertyuiop")
    assert codes(caught) == ["PA7006"]
    with pytest.raises(packattn.Error):
        packattn.implementations("convolution")
