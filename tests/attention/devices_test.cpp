// supports() answers for a build, available() and plan() for the machine; both say why not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/device_kind.hpp"
#include "mpfa/build_info.hpp"
#include "mpfa/device_cache.hpp"

namespace mpfa {
namespace {

using testing::HasSubstr;

AttentionProblem decode_problem() {
  AttentionProblem p;
  p.recipe = parse_recipe("nvfp4").value();
  p.max_kv = 4096;
  p.q_heads = 8, p.kv_heads = 2;
  p.head_dim = p.head_dim_v = 128;
  p.q_dtype = p.out_dtype = DType::bf16;
  return p;
}

bool built_for(Device device) {
  const auto& devices = build_info().devices;
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

TEST(Devices, TheKernelsOfTheLibraryAreTheSameInEveryBuild) {
  EXPECT_EQ(supports_when_built(decode_problem(), Device::sm90).kernel, "sm90_decode");
  AttentionProblem p = decode_problem();
  p.max_q = 100;
  p.head_dim = 96;
  p.q_dtype = DType::f32;
  EXPECT_GE(supports_when_built(p, Device::sm90).reasons.size(), 3U);
}

TEST(Devices, SupportIsOfTheBuildAndAPlanOfTheMachine) {
  const Support support = supports(decode_problem(), Device::sm90);
  EXPECT_EQ(support.supported(), built_for(Device::sm90));
  if (!support.supported()) {
    EXPECT_THAT(support.reasons.front(), HasSubstr("unsupported: built without CUDA kernels"));
  }
  const Status here = available(Device::sm90);
  const Result<Plan> made = plan(decode_problem(), Device::sm90);
  EXPECT_EQ(made.ok(), here.ok());
  if (here.ok()) return;
  EXPECT_EQ(made.status().code(), StatusCode::unsupported);
  EXPECT_THAT(made.status().message(), HasSubstr(built_for(Device::sm90) ? here.message() : build_info().without_cuda));
  EXPECT_EQ(cuda_device().ok() && cuda_device().value() == Device::sm90, false);
}

TEST(Devices, TheCpuIsAlwaysThereAndOthersAreNamed) {
  EXPECT_TRUE(available(Device::cpu).ok());
  EXPECT_THAT(available(Device::sm100).message(), HasSubstr("sm100"));
  EXPECT_THAT(build_text(), HasSubstr("kernels for cpu"));
  EXPECT_EQ(build_info().cuda.empty(), !built_for(Device::sm90));
  EXPECT_NE(build_info().cuda.empty(), build_info().without_cuda.empty());
}

TEST(Devices, WritesOnTheHostHaveACallOfTheirOwn) {
  EXPECT_THAT(write_slots(SlotWrite(), Device::cpu).message(), HasSubstr("PagedCache::write_slots"));
  EXPECT_THAT(convert_pages(PageConversion(), Device::cpu).status().message(), HasSubstr("on the host use"));
  EXPECT_THAT(write_slots(SlotWrite(), Device::sm120).message(), HasSubstr("sm120"));
}

}  // namespace
}  // namespace mpfa
