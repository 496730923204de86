# SPDX-License-Identifier: Apache-2.0
"""How the module behaves in a process: threads, forks, memory, what it imports, what it exports."""

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import api_listing
import numpy as np
import packattn
import pytest


def heavy(rng):
    q = rng.standard_normal((3000, 4, 64), np.float32)
    return q, packattn.PackedBatch.from_lengths([3000])


def test_the_interpreter_is_free_during_a_call(rng):
    q, batch = heavy(rng)
    worker = threading.Thread(target=packattn.attention, args=(q, q, q, batch))
    worker.start()
    turns = 0
    while worker.is_alive():
        turns += 1
    assert turns > 1000


class AlarmError(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this system")
@pytest.mark.parametrize("progress", [None, lambda done, total: None])
def test_a_signal_ends_a_call(rng, progress):
    def ring(*_):
        raise AlarmError

    # Minutes of work, of which nothing more is done once the handler has raised.
    q = rng.standard_normal((50_000, 16, 64), np.float32)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(AlarmError):
            packattn.attention(q, q, q, [0, 50_000], progress=progress)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    few = q[:9]
    assert np.isfinite(packattn.attention(few, few, few, [0, 9])).all()


def test_calls_from_many_threads_share_a_batch(rng):
    q = rng.standard_normal((200, 2, 16), np.float32)
    batch = packattn.PackedBatch.from_lengths([50, 0, 150])
    want = packattn.attention(q, q, q, batch)
    wrong = []

    def work():
        for _ in range(20):
            if not np.array_equal(packattn.attention(q, q, q, batch, threads=2), want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_computes_the_same(rng):
    q = rng.standard_normal((300, 2, 16), np.float32)
    want = packattn.attention(q, q, q, [0, 100, 300], threads=2)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a hanging child ends as a failure
        same = np.array_equal(packattn.attention(q, q, q, [0, 100, 300], threads=2), want)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(packattn.attention(q, q, q, [0, 100, 300], threads=2), want)


def test_calls_and_refusals_leave_no_memory(rng):
    q = rng.standard_normal((8, 2, 8), np.float32)
    read_only = q.copy()
    read_only.flags.writeable = False

    def once():
        packattn.attention(q, read_only, q, packattn.PackedBatch.from_lengths([3, 5]))
        with pytest.raises(packattn.Error):
            packattn.attention(q, q, read_only, [0, 9])

    for _ in range(300):
        once()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    references = [sys.getrefcount(t) for t in (q, read_only)]
    for _ in range(3000):
        once()
    assert [sys.getrefcount(t) for t in (q, read_only)] == references
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # KiB


def test_numpy_is_enough():
    # A name that is None in sys.modules cannot be imported.
    code = """
import sys
sys.modules["torch"] = None
import numpy as np, packattn
q = np.ones((5, 2, 8), np.float32)
assert packattn.attention(q, q, q, [0, 2, 5]).shape == (5, 2, 8)
assert packattn.info()["torch"] is None
import packattn.compat.sglang
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_what_the_module_knows_of_itself():
    known = packattn.info()
    assert known["packattn"] == packattn.__version__
    assert known["implementations"]["attention"][-1] == "ref/attention"
    assert known["error_records"] == len(packattn.records())
    assert (Path(packattn.__file__).parent / "py.typed").exists()


def test_public_names_and_signatures():
    """A change of the interface is a change of api.txt; api_listing.py writes it."""
    golden = Path(__file__).with_name("api.txt").read_text(encoding="utf-8").splitlines()
    assert list(api_listing.listing()) == golden


@pytest.mark.torch
def test_other_producers_of_dlpack():
    torch = pytest.importorskip("torch")

    class Foreign:
        def __init__(self, tensor):
            self.tensor, self.shape = tensor, tuple(tensor.shape)

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    q = torch.randn(5, 2, 8)
    got = packattn.attention(Foreign(q), Foreign(q), Foreign(q), [0, 2, 5])
    assert isinstance(got, np.ndarray)
    assert np.array_equal(got, packattn.attention(q, q, q, [0, 2, 5]))


def test_no_device_has_reported_anything():
    assert packattn.last_status() is None
    assert packattn.last_status(63) is None


@pytest.mark.torch
def test_threads_follow_torch():
    torch = pytest.importorskip("torch")
    q = torch.randn(3000, 4, 64)
    usual = torch.get_num_threads()

    def workers(**options):
        seen = set()
        packattn.attention(
            q, q, q, [0, 3000], progress=lambda *_: seen.add(threading.get_ident()), **options
        )
        return seen

    try:
        torch.set_num_threads(1)
        assert workers() == {threading.get_ident()}
        if (os.cpu_count() or 1) > 1:
            # A number that the caller gives is taken; a busy machine may start the second late.
            assert any(len(workers(threads=2)) == 2 for _ in range(50))
            torch.set_num_threads(2)
            assert any(len(workers()) == 2 for _ in range(50))
    finally:
        torch.set_num_threads(usual)
