// Latent attention: V is the first channels of K in the same bytes. Kernel and reference against a cache whose V holds
// the numbers that those bytes stand for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

struct Shape {
  std::int64_t sq, sk, heads, d, dv;
};

CacheConfig latent_config(const std::string& text, const Shape& s) {
  CacheConfig c;
  c.recipe = recipe(text);
  c.num_pages = s.sk / 64 + 2;
  c.q_heads = s.heads;
  c.head_dim = s.d;
  c.head_dim_v = s.dv;
  c.shared_kv = true;
  if (c.recipe.k.rule == ScaleRule::fixed) c.k_global = {0.01F};
  return c;
}

AttentionProblem problem_of(const CacheConfig& c, const Shape& s) {
  AttentionProblem p;
  p.recipe = c.recipe;
  p.max_q = s.sq;
  p.max_kv = s.sk;
  p.q_heads = s.heads;
  p.head_dim = s.d;
  p.head_dim_v = s.dv;
  p.causal = true;
  return p;
}

TensorView first_tokens(const Tensor& x, std::int64_t from, std::int64_t count) {
  TensorView t = x.view();
  t.data = x.data.data() + from * t.stride[1];
  t.shape[1] = count;
  return t;
}

/// The tokens before the queries in one call, those that come with them in the next.
PagedCache latent_cache(const CacheConfig& c, const Shape& s, const Tensor& q, const Tensor& k) {
  PagedCache cache = PagedCache::create(c).value();
  std::fill_n(cache.storage(), cache.storage_bytes(), std::byte{0xFF});
  const std::int64_t past = s.sk - s.sq;
  for (const auto& [from, n] : {std::pair{std::int64_t{0}, past}, std::pair{past, s.sq}}) {
    Tensor queries({1, n, s.heads, s.d});
    for (std::size_t i = 0; i < queries.data.size(); ++i) queries.data[i] = q.data[i % q.data.size()];
    const TensorView qv = queries.view();
    const Status status = cache.append(first_tokens(k, from, n), &qv, nullptr, nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return cache;
}

struct Results {
  std::vector<double> out, lse;
};

Results run(const AttendFn& attend, const AttentionProblem& p, const Tensor& q, const CacheView& view) {
  AttentionTensors t;
  t.q = q.view();
  t.cache = view;
  Results r;
  const Status s = attend(p, t, r.out, r.lse);
  EXPECT_TRUE(s.ok()) << s.message();
  return r;
}

/// V' as the shared bytes say it, as f32 pages of another cache: [tokens, dv] of the packed tokens.
class Unshared {
 public:
  Unshared(const CacheConfig& c, const CacheView& v, const Shape& s) : view(v), values_(s.sk * s.dv) {
    const SequenceView& sequence = v.sequences[0];
    std::vector<float> row(s.d);
    for (std::int64_t t = 0; t < sequence.packed_end; ++t) {
      dequantise_tokens(v.k_format, s.d, t % 64, 1, v.k.page(v.page_table[t / 64], 0), v.k.global_scale(0), row.data(),
                        s.d, 1);
      std::copy_n(row.begin(), s.dv, values_.begin() + (v.page_table[t / 64] * 64 + t % 64) * s.dv);
    }
    const auto narrow = [&](const std::uint16_t* x, std::int64_t n, std::vector<std::uint16_t>& out) {
      for (std::int64_t i = 0; i < n; ++i) out.insert(out.end(), x + i * s.d, x + i * s.d + s.dv);
    };
    sequence_ = sequence;
    narrow(sequence.sink_k, sequence.sink, sink_);
    narrow(sequence.wide_k, v.lengths[0] - sequence.wide_begin, wide_);
    sequence_.sink_v = sink_.data();
    sequence_.wide_v = wide_.data();
    view.sequences = &sequence_;
    view.shared_kv = false;
    view.v_format = parse_format("f32").value();
    view.v = {};
    view.v.data = reinterpret_cast<const std::byte*>(values_.data());
    view.v.data_row_stride = view.v.data_head_stride = s.dv * 4;
    view.v.data_page_stride = 64 * s.dv * 4;
    recipe = c.recipe;
    recipe.v = view.v_format;
  }
  CacheView view;
  Recipe recipe;

 private:
  std::vector<float> values_;
  std::vector<std::uint16_t> sink_, wide_;
  SequenceView sequence_;
};

void expect_latent(const std::string& text, const Shape& s) {
  SCOPED_TRACE(testing::Message() << text << " d " << s.d << "/" << s.dv << " heads " << s.heads << " sq " << s.sq);
  const Tensor q = gaussian({1, s.sq, s.heads, s.d}, 1);
  const Tensor k = with_bias(gaussian({1, s.sk, 1, s.d}, 2), s.dv / 2, 2.0F);
  const CacheConfig c = latent_config(text, s);
  const PagedCache cache = latent_cache(c, s, q, k);
  AttentionProblem p = problem_of(c, s);
  const Results want = run(reference_fn(reference::Precision::f64), p, q, cache.view());
  const Results got = run(attend_cpu, p, q, cache.view());
  const double bound = keeps_wide_tokens(c.recipe) ? 2e-3 : 1e-5;  // P of the bf16 tokens is bf16
  EXPECT_LT(relative_l2(got.out, want.out), bound);
  EXPECT_LT(max_difference(got.lse, want.lse), 1e-4);
  if (c.recipe.rotate != Rotate::none) return;  // a V apart is rotated over its own channels
  Unshared apart(c, cache.view(), s);
  p.recipe = apart.recipe;
  EXPECT_LT(relative_l2(run(reference_fn(reference::Precision::f64), p, q, apart.view).out, want.out), 1e-12);
}

std::string with_format(const std::string& format) {
  return "q=f32,kv=" + format + ",p=f32";
}

TEST(Latent, EveryFormatServesBothOperands) {
  for (const std::string& format : format_names()) {
    const BlockFormat f = parse_format(format).value();
    if (f.rule == ScaleRule::norm) continue;
    expect_latent(with_format(format), {1, 130, 4, 576, 512});
    expect_latent(with_format(format), {2, 70, 20, 48, 24});  // V ends inside a block of 16 or 32
  }
}

TEST(Latent, AnyNumberOfQueryHeadsOverOneKvHead) {
  for (const std::int64_t heads : {1, 2, 7, 12, 16, 40, 128}) {
    for (const std::int64_t sq : {1, 3}) expect_latent(with_format("mxfp4"), {sq, 100, heads, 576, 512});
  }
  for (const std::int64_t dv : {1, 64, 575, 576}) expect_latent(with_format("nvfp4"), {1, 80, 16, 576, dv});
}

TEST(Latent, LargestHeadDims) {
  for (const std::int64_t heads : {1, 12, 40}) {
    for (const char* format : {"f32", "nvfp4@keys", "int8"}) {
      expect_latent(with_format(format), {1, 70, heads, 1024, 1024});
      expect_latent(with_format(format) + ",q_centre=mean,centre=mean", {1, 70, heads, 1000, 7});
    }
  }
}

TEST(Latent, CentringRotationAndWideTokens) {
  for (const char* extra :
       {",centre=mean", ",centre=mean,q_centre=mean", ",rotate=qkv", ",centre=mean,rotate=qkv", ",sink=5,recent=9",
        ",centre=mean,rotate=qkv,sink=5,recent=page", ",phase_switch=on", ",order=reverse,q=nvfp4"}) {
    for (const std::int64_t sq : {1, 4}) {
      expect_latent(with_format("nvfp4").substr(6) + extra, {sq, 150, 16, 576, 512});
    }
  }
}

TEST(Latent, OutputIsThatOfTheTokensThemselves) {
  // Without rounding, any transformation of K must have come back in V.
  const Shape s{3, 90, 4, 96, 64};
  const Tensor q = gaussian({1, s.sq, s.heads, s.d}, 3);
  const Tensor k = with_bias(gaussian({1, s.sk, 1, s.d}, 4), 5, 30.0F);
  Tensor v({1, s.sk, 1, s.dv});
  for (std::int64_t t = 0; t < s.sk; ++t) std::copy_n(&k.data[t * s.d], s.dv, &v.data[t * s.dv]);
  for (const char* extra : {"", ",centre=mean", ",centre=mean,rotate=qkv", ",q_centre=mean,centre=mean"}) {
    const CacheConfig c = latent_config(std::string(kExactRecipe) + extra, s);
    const PagedCache cache = latent_cache(c, s, q, k);
    const AttentionProblem p = problem_of(c, s);
    AttentionTensors t;
    t.q = q.view();
    std::vector<double> want, lse;
    ASSERT_TRUE(reference::exact(p, t.q, k.view(), v.view(), t, want, lse).ok());
    for (const Implementation& i : implementations()) {
      EXPECT_LT(relative_l2(run(i.attend, p, q, cache.view()).out, want), 1e-5) << extra << " " << i.name;
    }
  }
}

TEST(Latent, AViewThatDoesNotSayWhatItIsIsRefused) {
  const Shape s{1, 40, 4, 576, 512};
  const Tensor q = gaussian({1, 1, 4, 576}, 1), k = gaussian({1, 40, 1, 576}, 2);
  const auto refusal = [&](const char* text, auto&& change) {
    const CacheConfig c = latent_config(text, s);
    const PagedCache cache = latent_cache(c, s, q, k);
    AttentionTensors t;
    t.q = q.view();
    t.cache = cache.view();
    SequenceView sequence = t.cache.sequences[0];
    t.cache.sequences = &sequence;
    change(t.cache, sequence);
    std::vector<double> out, lse;
    return attend_cpu(problem_of(c, s), t, out, lse).message();
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal("kv=mxfp4,rotate=qkv", [](CacheView& v, SequenceView&) { v.shared_kv = false; }),
              HasSubstr("the same memory and K is rotated; set cache.shared_kv"));
  EXPECT_THAT(refusal("kv=mxfp4", [](CacheView& v, SequenceView&) { v.v.data += 64; }),
              HasSubstr("cache.v names other memory than cache.k"));
  EXPECT_THAT(refusal("kv=mxfp4", [](CacheView& v, SequenceView&) { v.v.scale_row_stride += 1; }),
              HasSubstr("cache.v names other memory than cache.k"));
  EXPECT_THAT(refusal("kv=mxfp4,centre=mean", [](CacheView&, SequenceView& x) { x.v_mean = nullptr; }),
              HasSubstr("pass the first 512 channels of k_mean as v_mean"));
}

}  // namespace
}  // namespace mpfa::test
