// Results over parts of the keys: merge_states on the card against the host's, and against one call over all keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "mpfa/device_cache.hpp"
#include "mpfa/device_merge.hpp"
#include "tests/cuda/support/device_call.hpp"

namespace mpfa::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kBatch = 2, kRows = 3, kHeads = 5, kD = 72, kAll = kBatch * kRows * kHeads;

std::vector<std::byte> as_type(const std::vector<float>& x, DType t) {
  std::vector<std::byte> bytes(x.size() * dtype_bytes(t));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const BlockFormat f = parse_format(t == DType::f32 ? "f32" : t == DType::bf16 ? "bf16" : "fp16").value();
    PageBytes row;
    row.data = bytes.data() + i * dtype_bytes(t);
    quantise_tokens(f, 1, 0, 1, &x[i], 1, 1.0F, row, nullptr);
  }
  return bytes;
}

/// LSE [batch, heads, rows] in the order of rows [batch, rows, heads].
std::vector<float> by_rows(const std::vector<float>& lse) {
  std::vector<float> y(lse.size());
  for (std::int64_t i = 0; i < kAll; ++i) {
    y[i] = lse[(i / kHeads / kRows * kHeads + i % kHeads) * kRows + i / kHeads % kRows];
  }
  return y;
}

class Merges : public testing::TestWithParam<std::tuple<DType, DType, DType>> {};

TEST_P(Merges, AreThoseOfTheHost) {
  const auto [ta, tb, to] = GetParam();
  std::vector<float> a = gaussian({kBatch, kRows, kHeads, kD}, 1).data,
                     b = gaussian({kBatch, kRows, kHeads, kD}, 2).data;
  std::vector<float> la = gaussian({1, 1, 1, kAll}, 3).data, lb = gaussian({1, 1, 1, kAll}, 4).data;
  la[4] = lb[5] = la[6] = lb[6] = -INFINITY;
  la[7] = 300.0F, lb[8] = 1e30F;
  Memory memory;
  StateMerge m;
  const std::vector<std::byte> in_a = as_type(a, ta), in_b = as_type(b, tb);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = value_at(in_a.data(), ta, i), b[i] = value_at(in_b.data(), tb, i);
  const std::array<std::int64_t, 4> shape{kBatch, kRows, kHeads, kD};
  m.a = contiguous(static_cast<const void*>(memory.copy(in_a)), ta, shape);
  m.b = contiguous(static_cast<const void*>(memory.copy(in_b)), tb, shape);
  m.lse_a = memory.copy(la), m.lse_b = memory.copy(lb);
  auto* const out = memory.copy<std::byte>(nullptr, a.size() * dtype_bytes(to));
  m.out = contiguous(static_cast<void*>(out), to, shape);
  m.lse = memory.copy<float>(nullptr, kAll);
  const Status s = merge_states(m, Device::sm90);
  ASSERT_TRUE(s.ok()) << s.message();
  require(cudaDeviceSynchronize());
  EXPECT_TRUE(memory.intact());
  std::vector<float> want(a.size()), want_lse(kAll);
  merge_states(kAll, kD, a.data(), by_rows(la).data(), b.data(), by_rows(lb).data(), want.data(), want_lse.data());
  const std::vector<std::byte> got = to_host(out, a.size() * dtype_bytes(to));
  const double step = to == DType::f32 ? 2e-6 : to == DType::f16 ? 1e-3 : 8e-3;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(value_at(got.data(), to, i), want[i], step * (1.0 + std::abs(want[i]))) << i / kD << " " << i % kD;
  }
  const std::vector<float> got_lse = by_rows(to_host(m.lse, kAll));
  for (std::int64_t i = 0; i < kAll; ++i) {
    if (std::isinf(want_lse[i]) || want_lse[i] > 100.0F) {
      EXPECT_EQ(got_lse[i], want_lse[i]);
    } else {
      EXPECT_NEAR(got_lse[i], want_lse[i], 2e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Merges,
                         testing::Values(std::tuple{DType::f32, DType::f32, DType::f32},
                                         std::tuple{DType::bf16, DType::bf16, DType::bf16},
                                         std::tuple{DType::f16, DType::bf16, DType::f32},
                                         std::tuple{DType::f32, DType::f16, DType::f16}));

/// A prefix and the rest of the keys, the result in place: as one call over all of them.
TEST(Merge, PartsOfTheKeysGiveTheWhole) {
  constexpr std::int64_t kKeys = 300, kPrefix = 192;
  const Tensor q = gaussian({1, 3, 8, 128}, 5), k = with_bias(gaussian({1, kKeys, 2, 128}, 6), 3, 9.0F),
               v = gaussian({1, kKeys, 2, 128}, 7);
  Case all(q, k, v, {"nvfp4,centre=none", 64, {}});
  all.problem.causal = true;
  DeviceCall whole(all), first(all), rest(all);
  first.problem().causal = false;
  const std::int64_t length = kPrefix, left = kKeys - kPrefix;
  first.tensors().cache.lengths = first.memory().copy(&length, 1);
  rest.tensors().cache.lengths = rest.memory().copy(&left, 1);
  rest.tensors().cache.page_table += kPrefix / 64;
  rest.problem().max_kv = 128;
  for (DeviceCall* call : {&whole, &first, &rest}) {
    const Status s = call->run();
    ASSERT_TRUE(s.ok()) << s.message();
  }
  const auto read = [](const MutableTensorView& x) { return TensorView{x.data, x.dtype, x.shape, x.stride}; };
  const AttentionTensors &a = first.tensors(), &b = rest.tensors();
  const StateMerge m{read(a.out), read(b.out), a.lse, b.lse, a.out, a.lse, nullptr};
  ASSERT_TRUE(merge_states(m, Device::sm90).ok());
  require(cudaDeviceSynchronize());
  EXPECT_LE(relative_l2(first.out(), whole.out()), 4e-3);
  EXPECT_LE(max_difference(first.lse(), whole.lse()), 1e-4);
}

/// The pages of a prefill: old ones converted in place, the others as they were. Two calls read them.
TEST(Merge, ConvertedPagesBesideSixteenBits) {
  constexpr std::int64_t kPages = 7, kPage = 32, kKv = 2, kDim = 64, kOld = 4, kLength = 6 * kPage + 5;
  const std::vector<std::int32_t> table{3, 0, 6, 2, 5, 1, 4};
  const std::size_t size = kPages * kPage * kKv * kDim;
  Memory memory;
  const PagesKind kind{parse_format("bf16").value(), PagesLayout::linear, kPages, kPage, kKv, kDim};
  std::vector<std::uint16_t> host[2];
  AttentionTensors wide, packed;
  const std::vector<float> offset = gaussian({1, 1, kKv, kDim}, 12).data;
  const float* const mean = memory.copy(offset);
  for (int i = 0; i < 2; ++i) {
    std::vector<float> x = gaussian({1, 1, 1, static_cast<std::int64_t>(size)}, 8 + i).data;
    for (std::size_t at = 0; at < size; ++at) x[at] += offset[at % offset.size()];
    host[i] = to_bf16(x);
    PageConversion c;
    c.pages = make_pages(kind,
                         MutablePagePart{reinterpret_cast<std::byte*>(memory.copy<std::uint16_t>(nullptr, size)),
                                         static_cast<std::int64_t>(size * 2), 0,
                                         dense_strides(PageOrder::nhd, kPage, kKv, kDim * 2)},
                         MutablePagePart{})
                  .value();
    require(cudaMemcpy(c.pages.data, host[i].data(), size * 2, cudaMemcpyHostToDevice));
    (i == 0 ? wide.cache.k : wide.cache.v) = c.pages.view().bytes;
    c.format = parse_format("mxfp4").value(), c.ids = memory.copy(table), c.n = kOld, c.mean = mean;
    const Result<MutablePages> made = convert_pages(c, Device::sm90);
    ASSERT_TRUE(made.ok()) << made.status().message();
    (i == 0 ? packed.cache.k : packed.cache.v) = made.value().view().bytes;
  }
  // Float64 attention over the numbers before.
  const std::vector<std::uint16_t> q = to_bf16(gaussian({1, 2, 4, kDim}, 10).data);
  const std::vector<float> qf = from_bf16(q), kf = from_bf16(host[0]), vf = from_bf16(host[1]);
  std::vector<double> want(2 * 4 * kDim);
  for (std::int64_t row = 0; row < 8; ++row) {
    const std::int64_t head = row % 4 / 2, end = kLength - 1 + row / 4;
    double sum = 0.0;
    for (std::int64_t j = 0; j < end; ++j) {
      const std::int64_t at = ((table[j / kPage] * kPage + j % kPage) * kKv + head) * kDim;
      double logit = 0.0;
      for (std::int64_t c = 0; c < kDim; ++c) logit += qf[row * kDim + c] * kf[at + c];
      const double weight = std::exp(logit / 8.0);
      sum += weight;
      for (std::int64_t c = 0; c < kDim; ++c) want[row * kDim + c] += weight * vf[at + c];
    }
    for (std::int64_t c = 0; c < kDim; ++c) want[row * kDim + c] /= sum;
  }
  SequenceView means;
  means.k_mean = means.v_mean = mean;
  for (AttentionTensors* t : {&packed, &wide}) {
    const bool is_wide = t == &wide;
    AttentionProblem p;
    p.recipe = recipe(is_wide ? "bf16" : "kv=mxfp4,p=bf16,centre=static,v_mean=static");
    p.batch = 1, p.max_q = 2, p.max_kv = (is_wide ? kPages - kOld : kOld) * kPage, p.q_heads = 4, p.kv_heads = kKv;
    p.head_dim = p.head_dim_v = kDim, p.page_size = kPage, p.causal = is_wide;
    p.q_dtype = DType::bf16, p.out_dtype = DType::f32;
    t->q = contiguous(static_cast<const void*>(memory.copy(q)), DType::bf16, {1, 2, 4, kDim});
    t->out = contiguous(static_cast<void*>(memory.copy<float>(nullptr, want.size())), DType::f32, {1, 2, 4, kDim});
    t->lse = memory.copy<float>(nullptr, 8);
    CacheView& v = t->cache;
    v.k_format = p.recipe.k, v.v_format = p.recipe.v;
    v.num_pages = kPages, v.page_size = kPage, v.kv_heads = kKv, v.head_dim = v.head_dim_v = kDim;
    v.page_table = memory.copy(table) + (is_wide ? kOld : 0), v.page_table_stride = is_wide ? kPages - kOld : kOld;
    const std::int64_t length = is_wide ? kLength - kOld * kPage : kOld * kPage;
    v.lengths = memory.copy(&length, 1);
    if (!is_wide) v.sequences = memory.copy(&means, 1);
    const Result<Plan> made = plan(p, Device::sm90);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const std::size_t bytes = made.value().workspace_bytes;
    const Status s = attend(made.value(), *t, {memory.copy<std::byte>(nullptr, bytes), bytes});
    ASSERT_TRUE(s.ok()) << s.message();
  }
  const MutableTensorView &a = packed.out, &b = wide.out;
  const StateMerge m{{a.data, a.dtype, a.shape, a.stride},
                     {b.data, b.dtype, b.shape, b.stride},
                     packed.lse,
                     wide.lse,
                     b,
                     wide.lse,
                     nullptr};
  ASSERT_TRUE(merge_states(m, Device::sm90).ok());
  require(cudaDeviceSynchronize());
  const std::vector<float> got = to_host(static_cast<const float*>(wide.out.data), want.size());
  const double loss = relative_l2(std::vector<double>(got.begin(), got.end()), want);
  EXPECT_GT(loss, 0.002);  // of four bits in two thirds of the keys
  EXPECT_LT(loss, 0.06);
}

TEST(Merge, BadOnesAreNamed) {
  Memory memory;
  const auto* const x = memory.copy<float>(nullptr, 64);
  auto* const out = memory.copy<float>(nullptr, 64);
  StateMerge m;
  m.a = m.b = contiguous(static_cast<const void*>(x), DType::f32, {1, 2, 2, 16});
  m.out = contiguous(static_cast<void*>(out), DType::f32, {1, 2, 2, 16});
  m.lse_a = m.lse_b = x;
  const auto refusal = [&] { return merge_states(m, Device::sm90).message(); };
  EXPECT_EQ(refusal(), "");
  m.b.shape[1] = 3;
  EXPECT_THAT(refusal(), HasSubstr("b is [1, 3, 2, 16] and a [1, 2, 2, 16]; they must be equal"));
  m.b = m.a;
  m.b.dtype = DType::i32;
  EXPECT_THAT(refusal(), HasSubstr("b is i32; it must be f32, bf16 or f16"));
  m.b = m.a;
  m.out.stride[3] = 2;
  EXPECT_THAT(refusal(), HasSubstr("out has stride 2 along the head dim"));
  m.out.stride[3] = 1;
  m.out.data = const_cast<float*>(x), m.out.dtype = DType::bf16;
  EXPECT_THAT(refusal(), HasSubstr("out begins where a does and has another dtype"));
  m.out = contiguous(static_cast<void*>(out), DType::f32, {1, 2, 2, 16});
  const float host[4] = {};
  m.lse_b = host;
  EXPECT_THAT(refusal(), HasSubstr("lse_b is not memory of the current device"));
  m.lse_b = nullptr;
  EXPECT_THAT(refusal(), HasSubstr("lse_b is null"));
  EXPECT_THAT(merge_states(m, Device::cpu).message(), HasSubstr("on the host use"));
}

}  // namespace
}  // namespace mpfa::test
