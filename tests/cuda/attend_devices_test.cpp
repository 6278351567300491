// Two cards: a call works on the current one, and whatever belongs to the other is refused with its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "mpfa/device_cache.hpp"
#include "tests/cuda/support/device_call.hpp"

namespace mpfa::test {
namespace {

using testing::HasSubstr;

class TwoDevices : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    require(cudaGetDeviceCount(&devices));
    if (devices < 2) GTEST_SKIP() << "one device";
  }
  void TearDown() override { require(cudaSetDevice(0)); }

  static Case make(const char* recipe = "mxfp4") {
    return {gaussian({3, 2, 8, 128}, 1),
            gaussian({3, 700, 2, 128}, 2),
            gaussian({3, 700, 2, 128}, 3),
            {recipe, 64, {700, 0, 77}}};
  }
};

TEST_F(TwoDevices, TheCurrentOneDoesTheWork) {
  for (const char* recipe : {"mxfp4", "nvfp4", "mxfp4,sink=4,recent=9", "kv=int8_g64,p=bf16"}) {
    Case c = make(recipe);
    c.problem.causal = true;
    require(cudaSetDevice(0));
    DeviceCall first(c);
    ASSERT_TRUE(first.run().ok());
    require(cudaSetDevice(1));
    expect_matches(c);
    DeviceCall second(c);
    const Status s = second.run();
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_EQ(result_bits(second), result_bits(first)) << recipe;
  }
}

TEST_F(TwoDevices, MemoryOfTheOtherIsRefused) {
  Case c = make();
  require(cudaSetDevice(1));
  DeviceCall call(c);
  ASSERT_TRUE(call.run().ok());
  const std::vector<std::uint64_t> before = result_bits(call);
  require(cudaSetDevice(0));
  const AttentionTensors& t = call.tensors();
  const Plan plan = mpfa::plan(call.problem(), Device::sm90).value();
  Memory here;
  void* const workspace = here.copy<std::byte>(nullptr, plan.workspace_bytes);
  const Status s = attend(plan, t, {workspace, plan.workspace_bytes});
  EXPECT_EQ(s.code(), StatusCode::invalid_argument);
  EXPECT_THAT(s.message(), HasSubstr("q is not memory of the current device, 0, but of device 1; copy it there or make "
                                     "its device current"));
  EXPECT_EQ(result_bits(call), before);
}

/// Also where the driver would let a kernel read it.
TEST_F(TwoDevices, MemoryOfAPeerIsRefused) {
  int can = 0;
  require(cudaDeviceCanAccessPeer(&can, 0, 1));
  if (can == 0) GTEST_SKIP() << "no peer access";
  require(cudaSetDevice(0));
  require(cudaDeviceEnablePeerAccess(1, 0));
  Case c = make();
  DeviceCall call(c);
  ASSERT_TRUE(call.run().ok());
  const std::int64_t* const lengths = call.tensors().cache.lengths;
  require(cudaSetDevice(1));
  Memory there;
  call.tensors().cache.lengths = there.copy(c.tensors.cache.lengths, 3);
  require(cudaSetDevice(0));
  EXPECT_THAT(call.enqueue(nullptr).message(), HasSubstr("cache.lengths is not memory of the current device, 0, but"));
  call.tensors().cache.lengths = lengths;
  EXPECT_TRUE(call.enqueue(nullptr).ok());
  require(cudaDeviceSynchronize());
  require(cudaDeviceDisablePeerAccess(1));
}

TEST_F(TwoDevices, AStreamOfTheOtherIsRefused) {
  Case c = make();
  DeviceCall call(c);
  ASSERT_TRUE(call.run().ok());
  const std::vector<std::uint64_t> before = result_bits(call);
  require(cudaSetDevice(1));
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  require(cudaSetDevice(0));
  const Plan plan = mpfa::plan(call.problem(), Device::sm90).value();
  void* const workspace = call.memory().copy<std::byte>(nullptr, plan.workspace_bytes);
  call.tensors().stream = stream;
  const Status s = attend(plan, call.tensors(), {workspace, plan.workspace_bytes});
  EXPECT_EQ(s.code(), StatusCode::invalid_argument);
  EXPECT_THAT(s.message(), HasSubstr("attend: stream is not one of the current device, 0"));
  require(cudaGetLastError());  // nothing is left for the caller's next call
  require(cudaSetDevice(1));
  require(cudaStreamDestroy(stream));
  require(cudaSetDevice(0));
  ASSERT_TRUE(call.enqueue(nullptr).ok());
  require(cudaDeviceSynchronize());
  EXPECT_EQ(result_bits(call), before);
}

TEST_F(TwoDevices, PagesOfTheOtherAreNotConverted) {
  const PagesKind kind{parse_format("bf16").value(), PagesLayout::linear, 2, 16, 1, 64};
  const std::vector<std::uint16_t> host(2 * 16 * 64, 0x3F80);
  const std::vector<std::int32_t> ids{1, 0};
  require(cudaSetDevice(1));
  Memory there;
  PageConversion c;
  c.pages = make_pages(kind,
                       MutablePagePart{reinterpret_cast<std::byte*>(there.copy(host)), 2 * 16 * 64 * 2, 0,
                                       dense_strides(PageOrder::nhd, 16, 1, 128)},
                       MutablePagePart{})
                .value();
  c.format = parse_format("mxfp4").value(), c.ids = there.copy(ids), c.n = 2;
  require(cudaSetDevice(0));
  EXPECT_THAT(convert_pages(c, Device::sm90).status().message(),
              HasSubstr("convert_pages: pages is not memory of the current device, 0, but of device 1"));
  require(cudaSetDevice(1));
  EXPECT_TRUE(there.intact());
  EXPECT_TRUE(convert_pages(c, Device::sm90).ok());
  require(cudaDeviceSynchronize());
}

}  // namespace
}  // namespace mpfa::test
