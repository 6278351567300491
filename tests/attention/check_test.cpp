// What is refused, and that the message says what was given, what is allowed and what to do.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "mpfa/attention.hpp"

namespace mpfa {
namespace {

void expect_error(const Status& s, StatusCode code, const std::vector<std::string>& words) {
  EXPECT_EQ(s.code(), code) << s.message();
  for (const std::string& w : words) EXPECT_NE(s.message().find(w), std::string::npos) << w << " in: " << s.message();
}

AttentionProblem good_problem() {
  AttentionProblem p;
  p.recipe = parse_recipe("q=f32,k=f32,v=f32,p=f32").value();
  p.batch = 2;
  p.max_q = 3;
  p.max_kv = 40;
  p.q_heads = 4;
  p.kv_heads = 2;
  p.head_dim = p.head_dim_v = 8;
  p.page_size = 16;
  return p;
}

TEST(CheckProblem, AcceptsAGoodOne) {
  EXPECT_TRUE(check_problem(good_problem()).ok());
}

TEST(CheckProblem, RefusesWithAReason) {
  struct Bad {
    std::function<void(AttentionProblem&)> change;
    std::vector<std::string> words;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Bad> all{
      {[](auto& p) { p.batch = -1; }, {"batch is -1", "[0, "}},
      {[](auto& p) { p.max_q = -1; }, {"max_q is -1"}},
      {[](auto& p) { p.max_kv = std::int64_t{1} << 50; }, {"max_kv is 1125899906842624"}},
      {[](auto& p) {
         p.batch = std::int64_t{1} << 31;
         p.max_kv = std::int64_t{1} << 40;
       },
       {"batch 2147483648 x kv_heads 2 x max_kv 1099511627776", "split the call"}},
      {[](auto& p) { p.head_dim = 0; }, {"head_dim is 0", "[1, 1024]"}},
      {[](auto& p) { p.head_dim_v = 1025; }, {"head_dim_v is 1025", "[1, 1024]"}},
      {[](auto& p) { p.q_heads = 3; }, {"q_heads 3", "kv_heads 2", "multiple"}},
      {[](auto& p) { p.kv_heads = 0; }, {"kv_heads is 0"}},
      {[](auto& p) { p.page_size = 0; }, {"page_size is 0"}},
      {[](auto& p) { p.threads = -2; }, {"threads is -2"}},
      {[](auto& p) { p.q_dtype = DType::i32; }, {"q_dtype is i32", "f32, bf16 or f16"}},
      {[](auto& p) { p.out_dtype = DType::f64; }, {"out_dtype is f64"}},
      {[=](auto& p) { p.softmax_scale = nan; }, {"softmax_scale is nan", "finite"}},
      {[](auto& p) { p.softcap = -1.0F; }, {"softcap is -1", ">= 0"}},
      {[](auto& p) { p.window_left = -2; }, {"window_left is -2", "-1 for no limit"}},
      {[](auto& p) { p.window_right = -7; }, {"window_right is -7"}},
      {[](auto& p) {
         p.batch = std::int64_t{1} << 31;
         p.max_q = std::int64_t{1} << 40;
       },
       {"overflows", "split the call"}},
      {[](auto& p) {
         p.recipe.rotate = Rotate::qk;
         p.head_dim = 9;
       },
       {"head_dim is 9", "pad to 10", "rotate=none"}},
      {[](auto& p) { p.recipe.q_terms = 7; }, {"q_terms"}},
  };
  for (const Bad& bad : all) {
    AttentionProblem p = good_problem();
    bad.change(p);
    expect_error(check_problem(p), StatusCode::invalid_argument, bad.words);
  }
}

TEST(CheckProblem, NamesTheOperandWhoseFormatDoesNotFit) {
  AttentionProblem p = good_problem();
  p.recipe = parse_recipe("sage3").value();
  p.page_size = 24;
  const Status s = check_problem(p);
  EXPECT_FALSE(s.ok());
  for (const char* word : {"V cannot be held", "24", "16"}) {
    EXPECT_NE(s.message().find(word), std::string::npos) << s.message();
  }
}

TEST(CheckProblem, RefusesMaskTensorsWhereKeysShareABlock) {
  AttentionProblem p = good_problem();
  p.recipe = parse_recipe("sage3").value();
  p.head_dim = p.head_dim_v = 64;
  p.page_size = 64;
  EXPECT_TRUE(check_problem(p).ok()) << check_problem(p).message();
  p.mask = MaskTensor::boolean;
  expect_error(check_problem(p), StatusCode::unsupported, {"sage3", "16 keys together", "use causal/window"});
}

/// Two sequences of 20 and 0 keys over a plain float32 cache of three pages.
struct Call {
  AttentionProblem problem = good_problem();
  std::vector<float> q = std::vector<float>(2 * 3 * 4 * 8), out = q;
  std::vector<float> pages = std::vector<float>(3 * 2 * 16 * 8);
  std::vector<std::int32_t> table{2, 0, -5, -5};
  std::vector<std::int64_t> lengths{20, 0};
  std::vector<std::int64_t> cu{0, 3, 6};
  std::vector<SequenceView> sequences = std::vector<SequenceView>(2);
  AttentionTensors t;

  Call() {
    t.q = contiguous(static_cast<const void*>(q.data()), DType::f32, {2, 3, 4, 8});
    t.out = contiguous(static_cast<void*>(out.data()), DType::f32, {2, 3, 4, 8});
    CacheView& c = t.cache;
    c.k_format = problem.recipe.k;
    c.v_format = problem.recipe.v;
    c.num_pages = 3;
    c.page_size = 16;
    c.kv_heads = 2;
    c.head_dim = c.head_dim_v = 8;
    c.k.data = reinterpret_cast<const std::byte*>(pages.data());
    c.k.data_page_stride = 1024;
    c.k.data_head_stride = 512;
    c.k.data_row_stride = 32;
    c.v = c.k;
    c.page_table = table.data();
    c.page_table_stride = 2;
    c.lengths = lengths.data();
  }
};

TEST(CheckTensors, AcceptsAGoodCallAndIgnoresUnusedPageIds) {
  const Call c;
  const Status s = check_tensors(c.problem, c.t);
  EXPECT_TRUE(s.ok()) << s.message();
}

TEST(CheckTensors, RefusesWithAReason) {
  constexpr auto kInvalid = StatusCode::invalid_argument;
  constexpr auto kRange = StatusCode::out_of_range;
  static const float one = 1.0F;
  struct Bad {
    std::function<void(Call&)> change;
    StatusCode code;
    std::vector<std::string> words;
  };
  const std::vector<Bad> all{
      {[](Call& c) { c.t.q.data = nullptr; }, kInvalid, {"q.data is null"}},
      {[](Call& c) { c.t.q.dtype = DType::bf16; }, kInvalid, {"q is bf16", "plan was made for f32"}},
      {[](Call& c) { c.t.q.shape[2] = 5; }, kInvalid, {"[2, 3, 5, 8]", "[2, 3, 4, 8] is needed"}},
      {[](Call& c) { c.t.q.shape[1] = 4; }, kRange, {"4 rows per sequence", "max_q is 3"}},
      {[](Call& c) { c.t.q.shape[1] = std::numeric_limits<std::int64_t>::max(); }, kRange, {"rows per sequence"}},
      {[](Call& c) { c.t.q.stride[0] = std::numeric_limits<std::int64_t>::max(); }, kInvalid, {"q has strides [922"}},
      {[](Call& c) { c.t.q.stride[1] = std::numeric_limits<std::int64_t>::min(); }, kInvalid, {"q has strides"}},
      {[](Call& c) { c.t.out.stride[0] = std::int64_t{1} << 62; }, kInvalid, {"out has strides", "no memory"}},
      {[](Call& c) { c.t.q.stride[3] = 2; }, kInvalid, {"q has stride 2", "contiguous"}},
      {[](Call& c) { c.t.out.data = nullptr; }, kInvalid, {"out.data is null"}},
      {[](Call& c) { c.t.out.stride[0] = 0; }, kInvalid, {"out has strides", "overlap"}},
      {[](Call& c) { c.lengths[0] = 41; }, kRange, {"lengths[0] is 41", "[0, 40]"}},
      {[](Call& c) { c.lengths[1] = -1; }, kRange, {"lengths[1] is -1"}},
      {[](Call& c) { c.lengths[0] = 33; }, kRange, {"takes 3 entries", "2 columns"}},
      {[](Call& c) { c.table[1] = 3; }, kRange, {"page_table[0, 1] is 3", "[0, 3)"}},
      {[](Call& c) { c.table[0] = -1; }, kRange, {"page_table[0, 0] is -1"}},
      {[](Call& c) { c.t.cache.page_table = nullptr; }, kInvalid, {"page_table is null"}},
      {[](Call& c) { c.t.cache.lengths = nullptr; }, kInvalid, {"lengths is null"}},
      {[](Call& c) { c.t.cache.page_size = 32; }, kInvalid, {"cache.page_size is 32", "plan again"}},
      {[](Call& c) { c.t.cache.k_format = parse_format("int8").value(); },
       kInvalid,
       {"holds k as int8", "recipe says f32"}},
      {[](Call& c) { c.t.cache.v.data = nullptr; }, kInvalid, {"cache.v.data is null"}},
      {[](Call& c) { c.t.cache.k.data_row_stride = 31; }, kInvalid, {"cache.k has row strides of 31", "32"}},
      {[](Call& c) { c.t.sinks = &one; }, kInvalid, {"sinks was given", "not set"}},
      {[](Call& c) { c.problem.sinks = true; }, kInvalid, {"sinks is null"}},
      {[](Call& c) { c.problem.alibi = true; }, kInvalid, {"alibi_slopes is null"}},
      {[](Call& c) { c.problem.mask = MaskTensor::boolean; }, kInvalid, {"mask.data is null"}},
      {[](Call& c) {
         c.problem.mask = MaskTensor::boolean;
         c.t.mask = contiguous(static_cast<const void*>(&one), DType::f32, {1, 1, 3, 20});
       },
       kInvalid,
       {"mask is f32", "boolean mask is u8"}},
      {[](Call& c) {
         c.problem.mask = MaskTensor::additive;
         c.t.mask = contiguous(static_cast<const void*>(&one), DType::f32, {1, 1, 3, 19});
       },
       kInvalid,
       {"[1, 1, 3, 19]", ">= 20 keys"}},
      {[](Call& c) {
         c.t.cache.sequences = c.sequences.data();
         c.sequences[0].packed_end = 21;
       },
       kRange,
       {"packed_end 21", "length 20"}},
      {[](Call& c) {
         c.t.cache.sequences = c.sequences.data();
         c.sequences[0].packed_end = 16;
         c.sequences[0].wide_begin = 18;
       },
       kRange,
       {"reads key 16 as bf16", "begin at 18"}},
      {[](Call& c) {
         c.t.cache.sequences = c.sequences.data();
         c.sequences[0].packed_end = 16;
       },
       kInvalid,
       {"wide_k or wide_v is null"}},
  };
  for (const Bad& bad : all) {
    Call c;
    bad.change(c);
    expect_error(check_tensors(c.problem, c.t), bad.code, bad.words);
  }
}

TEST(CheckTensors, RaggedRowsMustFollowCuSeqlens) {
  const auto status = [](std::vector<std::int64_t> cu) {
    Call c;
    c.cu = std::move(cu);
    c.t.cu_seqlens_q = c.cu.data();
    c.t.q.shape = c.t.out.shape = {1, 6, 4, 8};
    return check_tensors(c.problem, c.t);
  };
  EXPECT_TRUE(status({0, 3, 6}).ok()) << status({0, 3, 6}).message();
  expect_error(status({1, 3, 6}), StatusCode::invalid_argument, {"cu_seqlens_q[0] is 1"});
  expect_error(status({0, 7, 6}), StatusCode::out_of_range, {"7 query rows", "max_q is 3"});
  expect_error(status({0, 3, 2}), StatusCode::invalid_argument, {"falls from 3 to 2"});
  expect_error(status({0, 3, 5}), StatusCode::invalid_argument, {"ends at 5", "6 rows"});
}

TEST(Dispatch, OtherDevicesSayWhyNot) {
  for (const auto& [device, name] :
       {std::pair{Device::sm90, "sm90"}, {Device::sm100, "sm100"}, {Device::sm120, "sm120"}}) {
    const Support s = supports(good_problem(), device);
    EXPECT_FALSE(s.supported());
    ASSERT_GE(s.reasons.size(), 1U);
    for (const std::string& reason : s.reasons) EXPECT_NE(reason.find(name), std::string::npos) << reason;
    expect_error(plan(good_problem(), device).status(), StatusCode::unsupported, {name, "Device::cpu"});
  }
  EXPECT_EQ(supports(good_problem(), Device::cpu).kernel, "cpu_tiled");
}

TEST(Dispatch, ABadProblemIsItsOwnReason) {
  AttentionProblem p = good_problem();
  p.q_heads = 3;
  EXPECT_NE(supports(p, Device::cpu).reasons.at(0).find("q_heads 3"), std::string::npos);
  EXPECT_EQ(plan(p, Device::cpu).status().code(), StatusCode::invalid_argument);
}

TEST(Dispatch, WorkspaceMustBeThereLargeEnoughAndAligned) {
  Call c;
  const Plan p = plan(c.problem, Device::cpu).value();
  ASSERT_GT(p.workspace_bytes, 0U);
  std::vector<std::byte> memory(p.workspace_bytes + 128);
  std::byte* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
  EXPECT_TRUE(attend(p, c.t, {aligned, p.workspace_bytes}).ok());
  expect_error(attend(p, c.t, {nullptr, p.workspace_bytes}), StatusCode::invalid_argument, {"has 0 bytes"});
  expect_error(attend(p, c.t, {aligned, p.workspace_bytes - 1}), StatusCode::invalid_argument, {"the plan needs"});
  expect_error(attend(p, c.t, {aligned + 8, p.workspace_bytes}), StatusCode::invalid_argument, {"8 bytes past"});
  expect_error(attend(Plan{}, c.t, {aligned, p.workspace_bytes}), StatusCode::invalid_argument, {"plan() returned"});
}

}  // namespace
}  // namespace mpfa
