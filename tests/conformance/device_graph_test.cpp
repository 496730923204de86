// SPDX-License-Identifier: Apache-2.0
// What only a real device shows: calls captured in a graph and replayed with other boundaries,
// calls from many threads and on a second device, tensors of more than 2^31 elements.
#include <array>
#include <functional>
#include <thread>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "packattn/packattn.h"

#include "support/boundaries.h"
#include "support/compare.h"
#include "support/device_memory.h"
#include "support/guarded.h"
#include "support/random.h"

namespace packattn::test {
namespace {

using Integers = std::vector<std::int64_t>;

constexpr std::int64_t tokens = 40, sequences = 4, heads = 2, K = 32, V = 64;
constexpr StateLayout v_first = StateLayout::v_first;

void check(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

Guarded noise(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed, bool gate = false) {
  Guarded x(dtype, std::move(shape));
  Random random(seed);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.set(i, gate ? -random.uniform() : 0.3 * random.normal());
  }
  x.freeze();
  return x;
}

/// One call of each operation on tensors of its own, boundaries on the device only.
struct Calls {
  Guarded q = noise(DType::bf16, {1, tokens, heads, K}, 1);
  Guarded k = noise(DType::bf16, {1, tokens, heads, K}, 2);
  Guarded v = noise(DType::bf16, {1, tokens, heads, V}, 3);
  Guarded g = noise(DType::f32, {1, tokens, heads, K}, 4, true);
  Guarded beta = noise(DType::f32, {1, tokens, heads}, 5, true);
  Guarded pool = noise(DType::f32, {8, heads, V, K}, 6);
  Guarded out = Guarded(DType::bf16, {1, tokens, heads, V});
  Guarded lse = Guarded(DType::f32, {heads, tokens});
  Guarded slots = Guarded(DType::i32, {sequences});
  Guarded cu = Guarded(DType::i32, {sequences + 1});
  KdaArgs kda;
  AttentionArgs softmax;
  std::optional<PackedBatch> batch;

  Calls() {
    out.freeze();
    lse.freeze();
    put({0, 10, 20, 30, 40}, {0, 1, 2, 3});
    kda = {.q = q.send(),
           .k = k.send(),
           .v = v.send(),
           .g = g.send(),
           .beta = beta.send(),
           .out = out.send(),
           .state = pool.send(),
           .slots = slots.send()};
    const auto packed = [](const TensorView& x) {
      const std::int64_t shape[] = {x.size(1), x.size(2), x.size(3)};
      return TensorView(x.data(), x.dtype(), x.device(), shape);
    };
    softmax = {.q = packed(kda.q),
               .k = packed(kda.k),
               .v = packed(kda.v),
               .out = packed(kda.out),
               .lse = lse.send()};
    batch.emplace(BatchSpec{.cu_seqlens_q = cu.send(), .capacity = true});
  }
  void put(const Integers& ends, const Integers& rows) {
    for (std::size_t i = 0; i < ends.size(); ++i) {
      cu.set_integer(static_cast<std::int64_t>(i), ends[i]);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      slots.set_integer(static_cast<std::int64_t>(i), rows[i]);
    }
    cu.send();
    slots.send();
  }
  /// Outputs and states as they were before any call.
  void reset() {
    for (Guarded* x : {&out, &lse, &pool}) {
      x->restore();
      x->send();
    }
  }
  std::vector<float> results() {
    std::vector<float> all;
    for (Guarded* x : {&out, &lse, &pool}) {
      x->fetch();
      EXPECT_EQ(x->damaged(), 0);
      const auto values = x->values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

using Run = std::function<void(Calls&, const Context&)>;
const std::array<std::pair<const char*, Run>, 3> operations{{
    {"attention",
     [](Calls& c, const Context& context) {
       attention(c.softmax, *c.batch, {.causal = true}, context);
     }},
    {"kda_recurrent",
     [](Calls& c, const Context& context) {
       kda_recurrent(c.kda, *c.batch, {.l2norm = true, .state_layout = v_first}, context);
     }},
    {"kda_chunk",
     [](Calls& c, const Context& context) {
       kda_chunk(c.kda, *c.batch, {.l2norm = true, .state_layout = v_first}, context);
     }},
}};

class DeviceGraph : public testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "no CUDA device here";
  }
};

void expect_same(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  EXPECT_TRUE(same_bits(a, b, {static_cast<std::int64_t>(b.size())})) << what;
}

struct Graph {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  explicit Graph(const std::function<void(cudaStream_t)>& record) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    record(stream);
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
  }
  ~Graph() {
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay() {
    check(cudaGraphLaunch(exec, stream));
    check(cudaStreamSynchronize(stream));
  }
};

TEST_F(DeviceGraph, ReplaysFollowTheBoundariesOfTheMoment) {
  const std::array<std::pair<Integers, Integers>, 4> moments{
      {{{0, 10, 20, 30, 40}, {0, 1, 2, 3}},
       {{0, 1, 1, 3, 40}, {7, 5, 1, 0}},
       {{0, 0, 0, 0, 0}, {-1, -1, -1, -1}},
       {{0, 33, 34, 35, 36}, {2, -1, 4, 6}}}};
  for (const auto& [name, run] : operations) {
    Calls calls;
    Graph graph([&](cudaStream_t stream) { run(calls, {.stream = stream}); });
    for (const auto& [ends, rows] : moments) {
      calls.put(ends, rows);
      calls.reset();
      run(calls, {});
      const auto eager = calls.results();
      calls.reset();
      graph.replay();
      expect_same(calls.results(), eager, name);
    }
  }
}

TEST_F(DeviceGraph, EachReplayReportsAnew) {
  const Device gpu{DeviceType::cuda, 0};
  for (const auto& [name, run] : operations) {
    Calls calls;
    Graph graph([&](cudaStream_t stream) { run(calls, {.stream = stream}); });
    for (int round = 0; round < 2; ++round) {
      calls.put({0, 10, 5, 30, 40}, {0, 1, 2, 3});
      graph.replay();
      const auto fault = last_status(gpu, graph.stream);
      ASSERT_TRUE(fault) << name;
      EXPECT_EQ(fault->code, Code::boundaries_decrease) << name;
      calls.put({0, 10, 20, 30, 40}, {0, 1, 2, 3});
      graph.replay();
      EXPECT_FALSE(last_status(gpu, graph.stream)) << name;
    }
    // Nobody asked: the next call on the stream says it, and has not run.
    calls.put({0, 10, 5, 30, 40}, {0, 1, 2, 3});
    graph.replay();
    EXPECT_THROW(run(calls, {.stream = graph.stream}), Error) << name;
    calls.put({0, 10, 20, 30, 40}, {0, 1, 2, 3});
    EXPECT_NO_THROW(run(calls, {.stream = graph.stream})) << name;
    check(cudaStreamSynchronize(graph.stream));
    check(cudaGetLastError());
  }
}

TEST_F(DeviceGraph, ManyThreadsAndStreams) {
  for (const auto& [name, run] : operations) {
    Calls alone;
    run(alone, {});
    const auto expected = alone.results();
    std::array<std::vector<float>, 6> results;
    std::vector<std::thread> threads;
    for (auto& result : results) {
      threads.emplace_back([&result, &run] {
        Calls own;
        cudaStream_t stream = nullptr;
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (int round = 0; round < 10; ++round) {
          own.reset();
          check(cudaDeviceSynchronize());
          run(own, {.stream = stream});
          check(cudaStreamSynchronize(stream));
        }
        result = own.results();
        cudaStreamDestroy(stream);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& result : results) expect_same(result, expected, name);
  }
}

TEST_F(DeviceGraph, ASecondDevice) {
  if (device_count() < 2) GTEST_SKIP() << "one CUDA device here";
  for (const auto& [name, run] : operations) {
    Calls first;
    run(first, {});
    const auto expected = first.results();
    check(cudaSetDevice(1));
    Calls second;
    const auto move = [](TensorView& x) {
      if (!x.present()) return;
      std::vector<std::int64_t> shape;
      for (int dim = 0; dim < x.rank(); ++dim) shape.push_back(x.size(dim));
      x = TensorView(x.data(), x.dtype(), {DeviceType::cuda, 1}, shape);
    };
    for (TensorView* x :
         {&second.kda.q, &second.kda.k, &second.kda.v, &second.kda.g, &second.kda.beta,
          &second.kda.out, &second.kda.state, &second.kda.slots, &second.softmax.q,
          &second.softmax.k, &second.softmax.v, &second.softmax.out, &second.softmax.lse}) {
      move(*x);
    }
    TensorView cu = second.cu.send();
    move(cu);
    second.batch.emplace(BatchSpec{.cu_seqlens_q = cu, .capacity = true});
    check(cudaSetDevice(0));
    run(second, {});
    int current = -1;
    check(cudaGetDevice(&current));
    EXPECT_EQ(current, 0) << "the current device is the caller's";
    check(cudaSetDevice(1));
    check(cudaDeviceSynchronize());
    expect_same(second.results(), expected, name);
    check(cudaSetDevice(0));
  }
}

/// 17 rows 2^27 elements apart.
class FarRows {
 public:
  static constexpr std::int64_t rows = 17, stride = std::int64_t{1} << 27;
  FarRows() : memory_(static_cast<std::size_t>((rows - 1) * stride + (1 << 21)) * sizeof(float)) {}
  TensorView view(std::int64_t first, std::vector<std::int64_t> sizes, bool batched) const {
    std::vector<std::int64_t> shape{rows}, strides{stride};
    shape.insert(shape.end(), sizes.begin(), sizes.end());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::int64_t step = 1;
      for (std::size_t j = i + 1; j < sizes.size(); ++j) step *= sizes[j];
      strides.push_back(step);
    }
    if (batched) {
      shape.insert(shape.begin(), 1);
      strides.insert(strides.begin(), rows * stride);
    }
    return {at(first), DType::f32, {DeviceType::cuda, 0}, shape, strides};
  }
  void put(std::int64_t first, const Guarded& from) const {
    const auto values = from.values();
    const std::size_t width = values.size() / rows * sizeof(float);
    check(cudaMemcpy2D(at(first), stride * sizeof(float), values.data(), width, width, rows,
                       cudaMemcpyHostToDevice));
  }
  std::vector<float> get(std::int64_t first, std::int64_t width) const {
    std::vector<float> values(static_cast<std::size_t>(rows * width));
    check(cudaMemcpy2D(values.data(), static_cast<std::size_t>(width) * sizeof(float), at(first),
                       stride * sizeof(float), static_cast<std::size_t>(width) * sizeof(float),
                       rows, cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  float* at(std::int64_t first) const { return reinterpret_cast<float*>(memory_.data()) + first; }
  DeviceMemory memory_;
};

TEST_F(DeviceGraph, MoreThan2To31Elements) {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total));
  if (free < (std::size_t{12} << 30)) GTEST_SKIP() << "needs 12 GB of device memory";
  const FarRows far;
  const std::int64_t T = FarRows::rows, D = 16;
  Guarded q = noise(DType::f32, {1, T, heads, D}, 1), k = noise(DType::f32, {1, T, heads, D}, 2);
  Guarded v = noise(DType::f32, {1, T, heads, D}, 3),
          g = noise(DType::f32, {1, T, heads, D}, 4, true);
  Guarded beta = noise(DType::f32, {1, T, heads}, 5, true);
  Guarded out(DType::f32, {1, T, heads, D});
  std::int64_t at = 0;
  for (const Guarded* x : {&q, &k, &v, &g, &beta}) far.put(at++ << 17, *x);
  const auto batch = PackedBatch::from_lengths(Integers{9, 8});
  const auto wide = [&](int n, std::vector<std::int64_t> sizes, bool batched) {
    return far.view(std::int64_t{n} << 17, std::move(sizes), batched);
  };
  const Integers head_dims{heads, D};
  const KdaArgs apart{.q = wide(0, head_dims, true),
                      .k = wide(1, head_dims, true),
                      .v = wide(2, head_dims, true),
                      .g = wide(3, head_dims, true),
                      .beta = wide(4, {heads}, true),
                      .out = wide(5, head_dims, true)};
  const KdaArgs near{.q = q.send(),
                     .k = k.send(),
                     .v = v.send(),
                     .g = g.send(),
                     .beta = beta.send(),
                     .out = out.send()};
  for (const Op op : {Op::kda_recurrent, Op::kda_chunk}) {
    for (const KdaArgs* args : {&apart, &near}) {
      op == Op::kda_chunk ? kda_chunk(*args, batch) : kda_recurrent(*args, batch);
    }
    out.fetch();
    expect_same(far.get(std::int64_t{5} << 17, heads * D), out.values(), "kda");
  }
  const auto packed = [](const TensorView& x) {
    const std::int64_t shape[] = {x.size(1), x.size(2), x.size(3)};
    return TensorView(x.data(), x.dtype(), x.device(), shape);
  };
  attention({.q = wide(0, head_dims, false),
             .k = wide(1, head_dims, false),
             .v = wide(2, head_dims, false),
             .out = wide(5, head_dims, false)},
            batch);
  attention(
      {.q = packed(near.q), .k = packed(near.k), .v = packed(near.v), .out = packed(near.out)},
      batch);
  out.fetch();
  expect_same(far.get(std::int64_t{5} << 17, heads * D), out.values(), "attention");
}

}  // namespace
}  // namespace packattn::test
