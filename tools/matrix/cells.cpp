#include "matrix/cells.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "attention/device_kind.hpp"
#include "recipes/fields.hpp"

namespace mpfa::matrix {
namespace {

bool has_window(const AttentionProblem& p) {
  return p.window_left >= 0 || p.window_right >= 0;
}

void add_shapes(std::vector<Feature>& all) {
  for (const std::int64_t d : {1, 8, 16, 32, 40, 46, 64, 72, 80, 96, 112, 128, 160, 192, 256, 512, 576, 1024}) {
    all.push_back({"head dim", std::to_string(d),
                   [d](AttentionProblem& p) { p.head_dim = p.head_dim_v = d, p.q_heads = 2, p.kv_heads = 1; },
                   [d](const auto& p, const auto&) { return p.head_dim == d && p.head_dim_v == d; }});
  }
  all.push_back({"head dim", "V narrower than K", [](AttentionProblem& p) { p.head_dim_v = 32; },
                 [](const auto& p, const auto&) { return p.head_dim_v < p.head_dim; }});
  all.push_back({"head dim", "V wider than K", [](AttentionProblem& p) { p.head_dim_v = 96; },
                 [](const auto& p, const auto&) { return p.head_dim_v > p.head_dim; }});
  for (const std::int64_t r : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 48, 64}) {
    all.push_back({"query heads per KV head", std::to_string(r),
                   [r](AttentionProblem& p) { p.batch = 1, p.q_heads = (p.kv_heads = r > 8 ? 1 : 2) * r; },
                   [r](const auto& p, const auto&) { return p.q_heads == p.kv_heads * r; }});
  }
  for (const std::int64_t n : {1, 2, 7, 16, 32, 48, 64, 128, 256}) {
    all.push_back({"tokens per page", std::to_string(n), [n](AttentionProblem& p) { p.page_size = n; },
                   [n](const auto& p, const auto&) { return p.page_size == n; }});
  }
}

void add_masks(std::vector<Feature>& all) {
  const auto add = [&all](const char* name, auto apply, auto seen) { all.push_back({"mask", name, apply, seen}); };
  add(
      "none", [](AttentionProblem& p) { p.causal = false; },
      [](const auto& p, const auto&) { return !p.causal && !has_window(p) && p.mask == MaskTensor::none; });
  add(
      "causal", [](AttentionProblem&) {}, [](const auto& p, const auto&) { return p.causal; });
  add(
      "window left", [](AttentionProblem& p) { p.window_left = 21; },
      [](const auto& p, const auto&) { return p.causal && p.window_left >= 0; });
  add(
      "window left and right", [](AttentionProblem& p) { p.causal = false, p.window_left = 30, p.window_right = 3; },
      [](const auto& p, const auto&) { return !p.causal && p.window_left >= 0 && p.window_right >= 0; });
  add(
      "window right", [](AttentionProblem& p) { p.causal = false, p.window_right = 3; },
      [](const auto& p, const auto&) { return !p.causal && p.window_left < 0 && p.window_right >= 0; });
  add(
      "boolean tensor", [](AttentionProblem& p) { p.mask = MaskTensor::boolean; },
      [](const auto& p, const auto&) { return p.mask == MaskTensor::boolean; });
  add(
      "additive tensor", [](AttentionProblem& p) { p.mask = MaskTensor::additive; },
      [](const auto& p, const auto&) { return p.mask == MaskTensor::additive; });
}

void add_logits(std::vector<Feature>& all) {
  const auto add = [&all](const char* name, auto apply, auto seen) { all.push_back({"logits", name, apply, seen}); };
  add(
      "softcap", [](AttentionProblem& p) { p.softcap = 5.0F; },
      [](const auto& p, const auto&) { return p.softcap > 0.0F; });
  add(
      "sinks", [](AttentionProblem& p) { p.sinks = true; },
      [](const auto& p, const auto& t) { return p.sinks && t.sinks != nullptr; });
  add(
      "ALiBi", [](AttentionProblem& p) { p.alibi = true; },
      [](const auto& p, const auto& t) { return p.alibi && t.alibi_slopes != nullptr; });
  add(
      "own softmax scale", [](AttentionProblem& p) { p.softmax_scale = 0.2F; },
      [](const auto& p, const auto&) { return p.softmax_scale > 0.0F; });
}

void add_call(std::vector<Feature>& all) {
  const auto add = [&all](const char* name, auto apply, auto seen) { all.push_back({"call", name, apply, seen}); };
  add(
      "ragged rows", [](AttentionProblem& p) { p.total_q = p.batch * p.max_q; },
      [](const auto&, const auto& t) { return t.cu_seqlens_q != nullptr; });
  for (const DType t : {DType::bf16, DType::f16}) {
    add(
        t == DType::bf16 ? "q in bf16" : "q in fp16", [t](AttentionProblem& p) { p.q_dtype = t; },
        [t](const auto& p, const auto&) { return p.q_dtype == t; });
    add(
        t == DType::bf16 ? "out in bf16" : "out in fp16", [t](AttentionProblem& p) { p.out_dtype = t; },
        [t](const auto& p, const auto&) { return p.out_dtype == t; });
  }
  all.push_back({"call", "V stored as the first channels of K (latent attention)",
                 [](AttentionProblem& p) { p.head_dim = 96, p.kv_heads = 1; },
                 [](const auto&, const auto& t) { return t.cache.shared_kv; }, true});
}

/// Fields of a recipe, as its text has them.
void add_recipe_fields(std::vector<Feature>& all) {
  using Fields = std::vector<std::pair<std::string, std::string>>;
  const auto add = [&all](const char* group, const Fields& fields) {
    std::string name;
    for (const auto& [field, value] : fields) {
      if (!name.empty()) name += ',';
      name.append(field).append("=").append(value);
    }
    const auto apply = [fields](AttentionProblem& p) {
      for (const auto& [field, value] : fields) find_recipe_field(field)->set(p.recipe, value);
    };
    const auto seen = [fields](const AttentionProblem& p, const AttentionTensors&) {
      return std::all_of(fields.begin(), fields.end(),
                         [&p](const auto& f) { return find_recipe_field(f.first)->get(p.recipe) == f.second; });
    };
    all.push_back({group, name, apply, seen});
  };
  for (const char* p : {"bf16", "e4m3x256", "e4m3x448", "e4m3_loglin", "mxfp4", "mxfp4_direct_fast",
                        "mxfp4_direct_accurate", "nvfp4", "nvfp4_two_level", "nvfp4_underflow"}) {
    add("probabilities", {{"p", p}});
  }
  add("probabilities", {{"p", "e4m3x256"}, {"order", "reverse"}});
  for (const char* q : {"bf16", "fp16", "fp8_e4m3", "int8", "nvfp4", "mxfp4"}) add("query", {{"q", q}});
  add("query", {{"q", "nvfp4"}, {"q_terms", "2"}});
  add("centring", {{"centre", "mean"}});
  add("centring", {{"centre", "static"}});
  add("centring", {{"q_centre", "mean"}, {"rank_one", "bf16"}});
  add("centring", {{"q_centre", "static"}, {"rank_one", "split"}});
  add("centring", {{"q_centre", "block"}});
  add("values", {{"v_mean", "mean"}});
  add("values", {{"v_mean", "static"}});
  add("values", {{"v_mean", "page"}});
  add("values", {{"v_residual", "on"}});
  add("rotation", {{"rotate", "qk"}});
  add("rotation", {{"rotate", "qkv"}});
  add("16-bit tokens", {{"sink", "4"}});
  add("16-bit tokens", {{"recent", "5"}});
  add("16-bit tokens", {{"recent", "page"}});
  add("16-bit tokens", {{"phase_switch", "on"}});
  add("logits", {{"logit_cap", "3"}});
}

}  // namespace

const std::vector<Phase>& phases() {
  static const std::vector<Phase> all{{"decode", 1, 1, 1}, {"verify", 5, 2, 8}, {"prefill", kMaxQ, 9, 1 << 30}};
  return all;
}

const std::vector<Feature>& features() {
  static const std::vector<Feature> all = [] {
    std::vector<Feature> list;
    add_shapes(list);
    add_masks(list);
    add_logits(list);
    add_call(list);
    add_recipe_fields(list);
    return list;
  }();
  return all;
}

Support supports_feature(const AttentionProblem& problem, const Feature& feature, Device device) {
  if (feature.shared_kv) {
    const Status s = check_shared_kv(problem.recipe, problem.head_dim, problem.head_dim_v);
    if (!s.ok()) return {"", {s.message()}};
  }
  return supports_when_built(problem, device);
}

AttentionProblem plain_problem(const std::string& k_format, const std::string& v_format, const Phase& phase,
                               Device device) {
  AttentionProblem p;
  find_recipe_field("q")->set(p.recipe, device == Device::cpu ? "f32" : "bf16");
  if (device != Device::cpu) {
    find_recipe_field("p")->set(p.recipe, "bf16");
    p.q_dtype = p.out_dtype = DType::bf16;
  }
  find_recipe_field("k")->set(p.recipe, k_format);
  find_recipe_field("v")->set(p.recipe, v_format);
  p.recipe.name = "custom";
  p.batch = 2;
  p.max_q = phase.rows;
  p.max_kv = kMaxKv;
  p.q_heads = 4;
  p.kv_heads = 2;
  p.head_dim = p.head_dim_v = kHeadDim;
  p.causal = true;
  return p;
}

const char* covering_test(Device device) {
  return device == Device::cpu ? "mpfa_test_matrix" : device == Device::sm90 ? "cuda.matrix" : "";
}

std::string cell_text(const Cell& cell) {
  return fmt::format("k={},v={} / {} / {}", cell.k_format, cell.v_format, cell.phase, cell.feature);
}

std::vector<Cell> advertised_cells(const std::string& k_format, Device device) {
  std::vector<Cell> cells;
  for (const Phase& phase : phases()) {
    for (const Feature& feature : features()) {
      AttentionProblem p = plain_problem(k_format, k_format, phase, device);
      feature.apply(p);
      if (supports_feature(p, feature, device).supported()) {
        cells.push_back({k_format, k_format, phase.name, feature.group + ": " + feature.name});
      }
    }
    for (const std::string& v_format : format_names()) {
      if (supports_when_built(plain_problem(k_format, v_format, phase, device), device).supported()) {
        cells.push_back({k_format, v_format, phase.name, kPair});
      }
    }
  }
  return cells;
}

std::vector<Cell> cells_of_call(const AttentionProblem& p, const AttentionTensors& t) {
  std::int64_t rows = t.q.shape[1];
  if (t.cu_seqlens_q != nullptr) {
    rows = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) rows = std::max(rows, t.cu_seqlens_q[b + 1] - t.cu_seqlens_q[b]);
  }
  const Cell base{format_name(p.recipe.k), format_name(p.recipe.v), "", kPair};
  std::vector<Cell> cells;
  for (const Phase& phase : phases()) {
    if (rows < phase.low || rows > phase.high) continue;
    cells.push_back(base);
    for (const Feature& feature : features()) {
      if (base.k_format != base.v_format || !feature.seen(p, t)) continue;
      cells.push_back(base);
      cells.back().feature = feature.group + ": " + feature.name;
    }
    for (Cell& cell : cells) cell.phase = phase.name;
  }
  return cells;
}

std::vector<Cell> missing_cells(const std::vector<Cell>& advertised, std::vector<Cell> ran) {
  std::sort(ran.begin(), ran.end());
  std::vector<Cell> missing;
  std::copy_if(advertised.begin(), advertised.end(), std::back_inserter(missing),
               [&ran](const Cell& cell) { return !std::binary_search(ran.begin(), ran.end(), cell); });
  return missing;
}

}  // namespace mpfa::matrix
