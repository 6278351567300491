// Streams and CUDA graphs: what a captured call reads when it is replayed, calls at the same time.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "tests/cuda/support/device_call.hpp"

namespace mpfa::test {
namespace {

class Stream {
 public:
  Stream() { require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  [[nodiscard]] cudaStream_t get() const { return stream_; }
  void wait() const { require(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Graph {
 public:
  Graph(DeviceCall& call, const Stream& stream) {
    cudaGraph_t graph = nullptr;
    require(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
    const Status s = call.enqueue(stream.get());
    require(cudaStreamEndCapture(stream.get(), &graph));
    EXPECT_TRUE(s.ok()) << s.message();
    require(cudaGraphInstantiate(&exec_, graph, 0));
    cudaGraphDestroy(graph);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { cudaGraphExecDestroy(exec_); }
  void replay(const Stream& stream) const {
    require(cudaGraphLaunch(exec_, stream.get()));
    stream.wait();
  }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

class Replays : public testing::TestWithParam<const char*> {};

/// Captured with one key; lengths, page table and queries change between replays. With a window and no means, too.
TEST_P(Replays, ReadWhatIsThereThen) {
  constexpr std::int64_t kKeys = 6000;
  for (const auto& [sq, window] : {std::pair<std::int64_t, std::int64_t>{1, -1}, {4, -1}, {1, 127}, {2, 2000}}) {
    const Tensor k = gaussian({2, kKeys, 2, 128}, 1);
    Case c(gaussian({2, sq, 8, 128}, 2), k, gaussian(k.shape, 3), {GetParam(), 64, {}});
    c.problem.causal = true;
    c.problem.window_left = window;
    DeviceCall call(c);
    if (window >= 0) call.tensors().cache.sequences = nullptr;
    ASSERT_TRUE(call.prepare().ok());
    call.memory().set(call.lengths(), std::vector<std::int64_t>{1, 1});
    const Stream stream;
    const Graph graph(call, stream);
    std::vector<std::int32_t> table(c.tensors.cache.page_table,
                                    c.tensors.cache.page_table + 2 * c.tensors.cache.page_table_stride);
    for (const std::int64_t n : {1, 31, 100, 4097, 6000}) {
      call.memory().set(call.lengths(), std::vector<std::int64_t>{n, kKeys - n});
      std::swap(table[0], table[1]);
      call.memory().set(call.page_table(), table);
      std::vector<float> q = gaussian(c.q.shape, static_cast<unsigned>(n)).data;
      for (float& x : q) x *= static_cast<float>(n % 7 + 1);
      call.memory().set(static_cast<const std::uint16_t*>(call.tensors().q.data), to_bf16(q));
      graph.replay(stream);
      const std::vector<std::uint64_t> replayed = result_bits(call);
      ASSERT_TRUE(call.enqueue(stream.get()).ok());
      stream.wait();
      EXPECT_EQ(result_bits(call), replayed) << "length " << n;
      EXPECT_TRUE(call.memory().intact());
    }
  }
}

/// The same with more outputs than multiprocessors, which repeated calls give the same bits.
TEST_P(Replays, OfManySequencesReadWhatIsThereThen) {
  constexpr std::int64_t kBatch = 80, kKeys = 400;
  const Tensor k = gaussian({kBatch, kKeys, 2, 128}, 1);
  Case c(gaussian({kBatch, 1, 8, 128}, 2), k, gaussian(k.shape, 3), {GetParam(), 64, {}});
  DeviceCall call(c);
  ASSERT_TRUE(call.prepare().ok());
  call.memory().set(call.lengths(), std::vector<std::int64_t>(kBatch, 1));
  const Stream stream;
  const Graph graph(call, stream);
  for (const std::int64_t n : {1, 100, 399, 400}) {
    std::vector<std::int64_t> lengths(kBatch, n);
    for (const bool ragged : {false, true}) {
      for (std::int64_t b = 0; ragged && b < kBatch; ++b) lengths[b] = b * n % kKeys;
      call.memory().set(call.lengths(), lengths);
      graph.replay(stream);
      const std::vector<std::uint64_t> replayed = result_bits(call);
      ASSERT_TRUE(call.enqueue(stream.get()).ok());
      stream.wait();
      EXPECT_EQ(result_bits(call), replayed) << "length " << n;
      EXPECT_TRUE(call.memory().intact());
    }
  }
}

/// A larger call between capture and replay takes nothing from the captured one.
TEST_P(Replays, OutliveLargerCalls) {
  const Tensor k = gaussian({1, 500, 2, 128}, 4);
  Case small(gaussian({1, 1, 8, 128}, 5), k, gaussian(k.shape, 6), {GetParam(), 64, {}});
  DeviceCall call(small);
  ASSERT_TRUE(call.run().ok());
  const std::vector<std::uint64_t> expected = result_bits(call);
  const Stream stream;
  const Graph graph(call, stream);
  const Tensor many = gaussian({64, 100, 2, 128}, 7);
  Case large(gaussian({64, 4, 8, 128}, 8), many, many, {GetParam(), 64, {}});
  DeviceCall other(large);
  ASSERT_TRUE(other.run().ok());
  graph.replay(stream);
  EXPECT_EQ(result_bits(call), expected);
}

TEST_P(Replays, StreamsDoNotMeet) {
  const Tensor k = gaussian({4, 2000, 2, 128}, 9);
  Case a(gaussian({4, 1, 8, 128}, 10), k, gaussian(k.shape, 11), {GetParam(), 64, {}});
  Case b(gaussian({4, 3, 8, 128}, 12), k, gaussian(k.shape, 13), {GetParam(), 16, {2000, 100, 7, 900}});
  DeviceCall first(a), second(b);
  ASSERT_TRUE(first.run().ok());
  ASSERT_TRUE(second.run().ok());
  const std::vector<std::uint64_t> expected_first = result_bits(first), expected_second = result_bits(second);
  const Stream one, two;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(first.enqueue(one.get()).ok());
    ASSERT_TRUE(second.enqueue(two.get()).ok());
  }
  one.wait(), two.wait();
  EXPECT_EQ(result_bits(first), expected_first);
  EXPECT_EQ(result_bits(second), expected_second);
}

/// A call on another stream does not break a capture of the strictest kind.
TEST_P(Replays, CapturesOutliveCallsElsewhere) {
  const Tensor k = gaussian({1, 300, 2, 128}, 17);
  Case c(gaussian({1, 1, 8, 128}, 18), k, gaussian(k.shape, 19), {GetParam(), 64, {}});
  DeviceCall call(c), other(c);
  ASSERT_TRUE(call.run().ok());
  ASSERT_TRUE(other.prepare().ok());
  const Stream captured, elsewhere;
  cudaGraph_t graph = nullptr;
  require(cudaStreamBeginCapture(captured.get(), cudaStreamCaptureModeGlobal));
  const Status first = other.enqueue(elsewhere.get()), second = call.enqueue(captured.get());
  require(cudaStreamEndCapture(captured.get(), &graph));
  require(cudaGraphDestroy(graph));
  EXPECT_TRUE(first.ok()) << first.message();
  EXPECT_TRUE(second.ok()) << second.message();
  elsewhere.wait();
  EXPECT_EQ(result_bits(other), result_bits(call));
}

/// The stream is busy when the inputs are still to come: a call elsewhere would read NaN.
TEST_P(Replays, CallsKeepTheOrderOfTheirStream) {
  const Tensor k = gaussian({1, 300, 2, 128}, 14);
  Case c(gaussian({1, 1, 8, 128}, 15), k, gaussian(k.shape, 16), {GetParam(), 64, {}});
  DeviceCall call(c);
  ASSERT_TRUE(call.run().ok());
  const std::vector<std::uint64_t> expected = result_bits(call);
  const std::vector<std::uint16_t> q = to_bf16(c.q.data), nan(q.size(), 0xFFFF);
  const auto* at = static_cast<const std::uint16_t*>(call.tensors().q.data);
  call.memory().set(at, nan);
  const Stream stream;
  require(cudaLaunchHostFunc(
      stream.get(), [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr));
  require(
      cudaMemcpyAsync(const_cast<std::uint16_t*>(at), q.data(), q.size() * 2, cudaMemcpyHostToDevice, stream.get()));
  ASSERT_TRUE(call.enqueue(stream.get()).ok());
  stream.wait();
  EXPECT_EQ(result_bits(call), expected);
}

INSTANTIATE_TEST_SUITE_P(, Replays, testing::Values("mxfp4", "nvfp4"),
                         [](const auto& p) { return std::string(p.param); });

}  // namespace
}  // namespace mpfa::test
