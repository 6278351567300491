#include "recipes/fields.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

namespace mpfa {
namespace {

template <class E>
struct Named {
  std::string_view name;
  E value;
};
template <class E>
Named(std::string_view, E) -> Named<E>;  // clang before 17 does not deduce aggregates

constexpr std::array kProducts{Named{"wide", QkProduct::wide}, Named{"fp8", QkProduct::fp8},
                               Named{"fp4", QkProduct::fp4}, Named{"int8", QkProduct::int8}};
constexpr std::array kDenominators{Named{"exact", Denominator::exact}, Named{"same_codes", Denominator::same_codes}};
constexpr std::array kOrders{Named{"forward", KeyOrder::forward}, Named{"reverse", KeyOrder::reverse}};
constexpr std::array kCentres{Named{"none", Centre::none}, Named{"mean", Centre::mean}, Named{"static", Centre::fixed}};
constexpr std::array kVMeans{Named{"none", VMean::none}, Named{"mean", VMean::mean}, Named{"static", VMean::fixed},
                             Named{"page", VMean::page}};
constexpr std::array kQCentres{Named{"none", QCentre::none}, Named{"mean", QCentre::mean},
                               Named{"static", QCentre::fixed}, Named{"block", QCentre::block}};
constexpr std::array kRankOnes{Named{"off", RankOne::off}, Named{"bf16", RankOne::bf16},
                               Named{"split", RankOne::split}};
// The first name of a value is the one that is printed.
constexpr std::array kRotations{Named{"none", Rotate::none}, Named{"qk", Rotate::qk}, Named{"qkv", Rotate::qkv},
                                Named{"hadamard", Rotate::qk}};
constexpr std::array kSwitches{Named{"off", false}, Named{"on", true}};
constexpr std::array kBackwards{Named{"straight_through", BackwardRule::straight_through},
                                Named{"direct_p", BackwardRule::direct_p}, Named{"attn_qat", BackwardRule::attn_qat},
                                Named{"full_stack_fp4", BackwardRule::full_stack_fp4}};
constexpr std::array kPlainPs{Named{"f32", PMode::f32},
                              Named{"bf16", PMode::bf16},
                              Named{"mxfp4", PMode::mxfp4},
                              Named{"mxfp4_direct_fast", PMode::mxfp4_direct_fast},
                              Named{"mxfp4_direct_accurate", PMode::mxfp4_direct_accurate},
                              Named{"nvfp4", PMode::nvfp4},
                              Named{"nvfp4_two_level", PMode::nvfp4_two_level},
                              Named{"nvfp4_underflow", PMode::nvfp4_underflow}};

template <const auto& kNames>
std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const auto& n : kNames) names.emplace_back(n.name);
  return names;
}

template <auto kMember, const auto& kNames>
bool set_named(Recipe& r, std::string_view text) {
  for (const auto& n : kNames) {
    if (n.name != text) continue;
    r.*kMember = n.value;
    return true;
  }
  return false;
}

template <auto kMember, const auto& kNames>
std::string get_named(const Recipe& r) {
  for (const auto& n : kNames) {
    if (n.value == r.*kMember) return std::string(n.name);
  }
  return "?";
}

template <auto kMember, const auto& kNames>
constexpr RecipeField named_field(std::string_view name, std::string_view alias = {}) {
  return {name, alias, set_named<kMember, kNames>, get_named<kMember, kNames>, all_names<kNames>};
}

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

template <auto kMember>
bool set_format(Recipe& r, std::string_view text) {
  const Result<BlockFormat> format = parse_format(text);
  if (!format.ok()) return false;
  r.*kMember = format.value();
  r.qk = natural_product(r.q, r.k);
  if (is_wide(r.q)) r.q_terms = 1;
  return true;
}

template <auto kMember>
std::string get_format(const Recipe& r) {
  return format_name(r.*kMember);
}

std::vector<std::string> all_formats() {
  return format_names();
}

bool set_both(Recipe& r, std::string_view text) {
  return set_format<&Recipe::k>(r, text) && set_format<&Recipe::v>(r, text);
}

bool set_p(Recipe& r, std::string_view text) {
  Recipe changed = r;
  changed.p_scale = 1.0F;
  if (!set_named<&Recipe::p, kPlainPs>(changed, text)) {
    constexpr std::string_view kPlain = "e4m3", kLoglin = "e4m3_loglin";
    const bool loglin = text.starts_with(kLoglin);
    if (!text.starts_with(kPlain)) return false;
    text.remove_prefix(loglin ? kLoglin.size() : kPlain.size());
    changed.p = loglin ? PMode::e4m3_loglin : PMode::e4m3;
    changed.p_scale = 256.0F;
    if (!text.empty() && (text.front() != 'x' || !parse_number(text.substr(1), changed.p_scale))) return false;
  }
  changed.denominator = natural_denominator(changed.p);
  r = changed;
  return true;
}

std::string get_p(const Recipe& r) {
  if (r.p == PMode::e4m3) return fmt::format("e4m3x{}", r.p_scale);
  if (r.p == PMode::e4m3_loglin) return r.p_scale == 256.0F ? "e4m3_loglin" : fmt::format("e4m3_loglinx{}", r.p_scale);
  return get_named<&Recipe::p, kPlainPs>(r);
}

std::vector<std::string> all_ps() {
  std::vector<std::string> names = all_names<kPlainPs>();
  names.insert(names.begin() + 2, {"e4m3x256", "e4m3x448", "e4m3_loglin"});
  return names;
}

// A centred Q without its rank-one term gives other scores, so it takes saying rank_one=off to get that.
bool set_q_centre(Recipe& r, std::string_view text) {
  if (!set_named<&Recipe::q_centre, kQCentres>(r, text)) return false;
  const bool has_term = r.q_centre == QCentre::mean || r.q_centre == QCentre::fixed;
  if (!has_term) r.rank_one = RankOne::off;
  if (has_term && r.rank_one == RankOne::off) r.rank_one = RankOne::split;
  return true;
}

bool set_q_terms(Recipe& r, std::string_view text) {
  if (text != "1" && text != "2") return false;
  r.q_terms = text.front() - '0';
  return true;
}

bool set_count(std::int64_t& count, std::string_view text) {
  std::int64_t value = 0;
  if (!parse_number(text, value) || value < 0 || value > kMaxWideTokens) return false;
  count = value;
  return true;
}

bool set_recent(Recipe& r, std::string_view text) {
  if (text != "page") return set_count(r.recent, text);
  r.recent = Recipe::recent_page;
  return true;
}

bool set_logit_cap(Recipe& r, std::string_view text) {
  float cap = 0.0F;
  if (!parse_number(text, cap) || !std::isfinite(cap) || cap < 0.0F) return false;
  r.logit_cap = cap == 0.0F ? 0.0F : cap;  // no -0
  return true;
}

std::string token_range() {
  return fmt::format("0 to {}", kMaxWideTokens);
}

constexpr auto kFields = std::to_array<RecipeField>({
    {"kv", "", set_both, get_format<&Recipe::k>, all_formats},
    {"q", "", set_format<&Recipe::q>, get_format<&Recipe::q>, all_formats},
    {"k", "", set_format<&Recipe::k>, get_format<&Recipe::k>, all_formats},
    {"v", "", set_format<&Recipe::v>, get_format<&Recipe::v>, all_formats},
    named_field<&Recipe::qk, kProducts>("qk"),
    {"q_terms", "", set_q_terms, [](const Recipe& r) { return std::to_string(r.q_terms); },
     [] {
       return std::vector<std::string>{"1", "2"};
     }},
    {"p", "", set_p, get_p, all_ps},
    named_field<&Recipe::denominator, kDenominators>("denominator"),
    named_field<&Recipe::order, kOrders>("order"),
    named_field<&Recipe::centre, kCentres>("centre", "center"),
    {"q_centre", "q_center", set_q_centre, get_named<&Recipe::q_centre, kQCentres>, all_names<kQCentres>},
    named_field<&Recipe::rank_one, kRankOnes>("rank_one"),
    named_field<&Recipe::v_mean, kVMeans>("v_mean"),
    named_field<&Recipe::v_residual, kSwitches>("v_residual"),
    named_field<&Recipe::rotate, kRotations>("rotate"),
    {"sink", "", [](Recipe& r, std::string_view text) { return set_count(r.sink, text); },
     [](const Recipe& r) { return std::to_string(r.sink); }, [] { return std::vector<std::string>{token_range()}; }},
    {"recent", "", set_recent,
     [](const Recipe& r) { return r.recent == Recipe::recent_page ? "page" : std::to_string(r.recent); },
     [] {
       return std::vector<std::string>{"page", token_range()};
     }},
    named_field<&Recipe::phase_switch, kSwitches>("phase_switch"),
    {"logit_cap", "", set_logit_cap, [](const Recipe& r) { return fmt::format("{}", r.logit_cap); },
     [] {
       return std::vector<std::string>{"0 (no cap)", "a finite positive number"};
     }},
    named_field<&Recipe::backward, kBackwards>("backward"),
});

bool is_fp8(Element e) {
  return e == Element::e4m3 || e == Element::e5m2;
}
bool is_symmetric_integer(Element e) {
  return e == Element::int8 || e == Element::int4;
}

}  // namespace

std::span<const RecipeField> recipe_fields() {
  return kFields;
}

const RecipeField* find_recipe_field(std::string_view name) {
  for (const RecipeField& field : kFields) {
    if (name == field.name || (!field.alias.empty() && name == field.alias)) return &field;
  }
  return nullptr;
}

bool is_wide(const BlockFormat& f) {
  return f.element == Element::f32 || f.element == Element::bf16 || f.element == Element::f16;
}

bool is_four_bit(PMode p) {
  return p != PMode::f32 && p != PMode::bf16 && p != PMode::e4m3 && p != PMode::e4m3_loglin;
}

QkProduct natural_product(const BlockFormat& q, const BlockFormat& k) {
  if (q.axis == PackAxis::keys || k.axis == PackAxis::keys) return QkProduct::wide;
  // Block-scaled FP4 instructions take 8-bit scales, of one type and block length for both operands.
  const bool byte_scales = k.scale == ScaleType::e4m3 || k.scale == ScaleType::e8m0;
  const bool same_blocks = byte_scales && q.scale == k.scale && q.block_channels == k.block_channels;
  if (q.element == Element::e2m1 && k.element == Element::e2m1 && same_blocks) return QkProduct::fp4;
  if (is_fp8(q.element) && is_fp8(k.element)) return QkProduct::fp8;
  if (is_symmetric_integer(q.element) && is_symmetric_integer(k.element)) return QkProduct::int8;
  return QkProduct::wide;
}

Denominator natural_denominator(PMode p) {
  return is_four_bit(p) || p == PMode::e4m3_loglin ? Denominator::same_codes : Denominator::exact;
}

}  // namespace mpfa
