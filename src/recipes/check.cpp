// What a recipe's fields may be together.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "mpfa/recipe.hpp"
#include "recipes/fields.hpp"

namespace mpfa {
namespace {

Status refuse(std::string message) {
  return {StatusCode::invalid_argument, "recipe: " + std::move(message)};
}

std::string value_of(const Recipe& r, std::string_view field) {
  return fmt::format("{}={}", field, find_recipe_field(field)->get(r));
}

Status check_named(std::string_view field, const BlockFormat& f) {
  const Result<BlockFormat> named = parse_format(format_name(f));
  if (named.ok() && named.value() == f) return {};
  return refuse(fmt::format("field {} is a format without a name; take one of parse_format's: {}", field,
                            fmt::join(format_names(), ", ")));
}

Status check_q(const Recipe& r) {
  if (r.q.axis == PackAxis::keys) {
    return refuse(fmt::format("{} has blocks along the keys and a query has none; take a format without @keys",
                              value_of(r, "q")));
  }
  if (r.q.rule == ScaleRule::fixed) {
    return refuse(
        fmt::format("{} needs a calibrated scale and queries carry none; take fp8_e4m3 or fp8_e5m2", value_of(r, "q")));
  }
  if (r.q_terms != 1 && r.q_terms != 2) return refuse(fmt::format("q_terms={} is not allowed; take 1 or 2", r.q_terms));
  if (r.q_terms == 2 && is_wide(r.q)) {
    return refuse(
        fmt::format("q_terms=2 splits a quantised query but {} is not quantised; take q_terms=1 or a 4- or "
                    "8-bit q",
                    value_of(r, "q")));
  }
  if (r.qk != QkProduct::wide && r.qk != natural_product(r.q, r.k)) {
    return refuse(fmt::format("{} cannot multiply {} with {}; leave qk out or take qk=wide", value_of(r, "qk"),
                              value_of(r, "q"), value_of(r, "k")));
  }
  return {};
}

Status check_p(const Recipe& r) {
  if (natural_denominator(r.p) == Denominator::same_codes && r.denominator == Denominator::exact) {
    return refuse(
        fmt::format("denominator=exact with {} loses part of the mass of each row; take "
                    "denominator=same_codes",
                    value_of(r, "p")));
  }
  const bool scaled = r.p == PMode::e4m3 || r.p == PMode::e4m3_loglin;
  if (!scaled && r.p_scale != 1.0F) {
    return refuse(fmt::format("p_scale {} with {} is not allowed; only e4m3 P has a scale, set it to 1", r.p_scale,
                              value_of(r, "p")));
  }
  int exponent = 0;
  const bool power_of_two = std::isfinite(r.p_scale) && std::frexp(r.p_scale, &exponent) == 0.5F;
  if (scaled && r.p_scale != 448.0F && !(power_of_two && r.p_scale >= 1.0F && r.p_scale <= 256.0F)) {
    return refuse(
        fmt::format("the scale of {} is not allowed; take a power of two from 1 to 256, or 448", value_of(r, "p")));
  }
  return {};
}

Status check_means(const Recipe& r) {
  const bool has_term = r.q_centre == QCentre::mean || r.q_centre == QCentre::fixed;
  if (r.rank_one != RankOne::off && !has_term) {
    return refuse(fmt::format("{} needs q_centre=mean or q_centre=static but {}; take rank_one=off or centre q",
                              value_of(r, "rank_one"), value_of(r, "q_centre")));
  }
  if (r.v_residual && r.v.axis == PackAxis::keys) {
    return refuse(
        fmt::format("v_residual=on with {} is not allowed, its scales are per channel already; take "
                    "v_residual=off or a v without @keys",
                    value_of(r, "v")));
  }
  if (r.v_residual && r.v_mean != VMean::none) {
    return refuse(
        fmt::format("v_residual=on with {} is not allowed, the residual has a mean of its own; take one of "
                    "them",
                    value_of(r, "v_mean")));
  }
  return {};
}

Status check_ranges(const Recipe& r) {
  if (r.sink < 0 || r.sink > kMaxWideTokens) {
    return refuse(fmt::format("sink={} is not allowed; take 0 to {}", r.sink, kMaxWideTokens));
  }
  if (r.recent != Recipe::recent_page && (r.recent < 0 || r.recent > kMaxWideTokens)) {
    return refuse(fmt::format("recent={} is not allowed; take page, or 0 to {}", r.recent, kMaxWideTokens));
  }
  if (!std::isfinite(r.logit_cap) || r.logit_cap < 0.0F) {
    return refuse(fmt::format("logit_cap={} is not allowed; take 0 (no cap) or a finite positive number", r.logit_cap));
  }
  return {};
}

}  // namespace

Status check_recipe(const Recipe& r) {
  for (const RecipeField& field : recipe_fields()) {
    if (field.get(r) != "?") continue;
    return refuse(
        fmt::format("field {} holds no value of its type; allowed: {}", field.name, fmt::join(field.allowed(), ", ")));
  }
  MPFA_RETURN_IF_ERROR(check_named("q", r.q));
  MPFA_RETURN_IF_ERROR(check_named("k", r.k));
  MPFA_RETURN_IF_ERROR(check_named("v", r.v));
  MPFA_RETURN_IF_ERROR(check_q(r));
  MPFA_RETURN_IF_ERROR(check_p(r));
  MPFA_RETURN_IF_ERROR(check_means(r));
  return check_ranges(r);
}

Status check_shared_kv(const Recipe& r, std::int64_t head_dim, std::int64_t head_dim_v) {
  const auto refuse_sharing = [](std::string reason) { return refuse("shared_kv: " + std::move(reason)); };
  if (head_dim_v > head_dim) {
    return refuse_sharing(fmt::format("V of {} channels cannot be the first of K's {}; take head_dim_v <= head_dim",
                                      head_dim_v, head_dim));
  }
  if (r.k != r.v) {
    return refuse_sharing(fmt::format("V is read from the bytes of K, but {} and {}; take one format for both (kv=...)",
                                      value_of(r, "k"), value_of(r, "v")));
  }
  if (r.k.rule == ScaleRule::norm && head_dim_v != head_dim) {
    return refuse_sharing(
        fmt::format("{} is scaled by the norm of a whole token, which reads as another value over {} "
                    "of its {} channels; take another format",
                    value_of(r, "k"), head_dim_v, head_dim));
  }
  if (r.v_mean != VMean::none || r.v_residual) {
    return refuse_sharing(fmt::format("{} changes V apart from K; leave it out, centre=mean or static centres both",
                                      value_of(r, r.v_residual ? "v_residual" : "v_mean")));
  }
  if (r.rotate == Rotate::qk) {
    return refuse_sharing("rotate=qk would leave V rotated with K; take rotate=qkv, which rotates the output back");
  }
  const std::int64_t block = head_dim & -head_dim;  // what the Hadamard matrix of K works on
  if (r.rotate == Rotate::qkv && head_dim_v % block != 0) {
    return refuse_sharing(
        fmt::format("rotate=qkv mixes blocks of {} channels of K and V ends inside one, at {}; take "
                    "rotate=none or a head_dim_v that is a multiple of {}",
                    block, head_dim_v, block));
  }
  return {};
}

std::int64_t commit_unit(const Recipe& r, std::int64_t page_size) {
  const std::int64_t block = std::max(r.k.block_keys, r.v.block_keys);
  return r.v_mean == VMean::page ? std::max(block, page_size) : block;
}

bool keeps_wide_tokens(const Recipe& r) {
  return r.sink > 0 || r.recent != 0 || commit_unit(r, 1) > 1 || r.v_mean == VMean::page || r.phase_switch;
}

}  // namespace mpfa
