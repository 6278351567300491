// The JSON header of a safetensors file, read event by event so that hostile text is refused where it starts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "io/safetensors.hpp"
#include "text/printable.hpp"

namespace mpfa::io {
namespace {

struct TypeRow {
  FileType type;
  std::string_view name;
  std::size_t bytes;
};
constexpr auto kTypes = std::to_array<TypeRow>({{FileType::bf16, "BF16", 2},
                                                {FileType::f16, "F16", 2},
                                                {FileType::f32, "F32", 4},
                                                {FileType::f64, "F64", 8},
                                                {FileType::u8, "U8", 1},
                                                {FileType::i8, "I8", 1},
                                                {FileType::i32, "I32", 4},
                                                {FileType::i64, "I64", 8}});

Status refuse(std::string message) {
  return {StatusCode::io_error, std::move(message)};
}

// Events of {"name": {"dtype": s, "shape": [n...], "data_offsets": [n, n]}, "__metadata__": {s: s}}.
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] SafetensorsHeader take() { return std::move(header_); }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number that is not a 64-bit integer");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (numbers_ == nullptr) return unexpected("a number");
    if (numbers_->size() == kMaxRank) {
      return fail(fmt::format("{} of tensor {} has more than {} numbers", field_, printable(tensor_.name), kMaxRank));
    }
    numbers_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata[field_] = value;
      return true;
    }
    if (depth_ != 2 || field_ != "dtype") return unexpected("a string");
    const auto* const row =
        std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& t) { return t.name == value; });
    if (row == kTypes.end()) {
      return fail(fmt::format("tensor {} has dtype {}; allowed: BF16, F16, F32, F64, U8, I8, I32, I64",
                              printable(tensor_.name), printable(value)));
    }
    tensor_.type = row->type;
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ == 2 || numbers_ != nullptr) return unexpected("an object");
    ++depth_;
    if (depth_ == 2 && !in_metadata_) {
      shape_.clear();
      offsets_.clear();
    }
    fields_.clear();
    return true;
  }

  bool key(string_t& value) override {
    if (depth_ == 1) {
      in_metadata_ = value == "__metadata__";
      tensor_ = {};
      tensor_.name = value;
      return names_.insert(value).second || fail(fmt::format("tensor {} is there twice", printable(value)));
    }
    field_ = value;
    if (!fields_.insert(value).second) {
      return fail(fmt::format("field {} of {} is there twice", printable(value), printable(tensor_.name)));
    }
    const bool known = in_metadata_ || value == "dtype" || value == "shape" || value == "data_offsets";
    return known || fail(fmt::format("tensor {} has a field {}; allowed: dtype, shape, data_offsets",
                                     printable(tensor_.name), printable(value)));
  }

  bool end_object() override {
    --depth_;
    return depth_ == 0 || in_metadata_ || add_tensor();
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == "dtype" || numbers_ != nullptr) return unexpected("an array");
    numbers_ = field_ == "shape" ? &shape_ : &offsets_;
    return true;
  }
  bool end_array() override {
    numbers_ = nullptr;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail(fmt::format("the header is not valid JSON at byte {}", position));
  }

 private:
  bool fail(std::string message) {
    if (status_.ok()) status_ = refuse(std::move(message));
    return false;
  }

  bool unexpected(std::string_view what) {
    if (depth_ == 0) return fail(fmt::format("the header is {} where an object of tensors is needed", what));
    return fail(fmt::format("the header has {} in {} where the format has none", what, printable(tensor_.name)));
  }

  bool add_tensor() {
    if (fields_.size() != 3) {
      return fail(fmt::format("tensor {} lacks one of dtype, shape, data_offsets", printable(tensor_.name)));
    }
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) {
      return fail(fmt::format("data_offsets of tensor {} are not [begin, end]", printable(tensor_.name)));
    }
    for (const std::uint64_t extent : shape_) {
      if (extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return fail(fmt::format("tensor {} has an extent of {}, past 63 bits", printable(tensor_.name), extent));
      }
      tensor_.shape.push_back(static_cast<std::int64_t>(extent));
    }
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    header_.tensors.push_back(std::move(tensor_));
    return true;
  }

  Status status_;
  SafetensorsHeader header_;
  TensorEntry tensor_;
  std::vector<std::uint64_t> shape_, offsets_;
  std::vector<std::uint64_t>* numbers_ = nullptr;  // the array being read
  std::string field_;
  std::set<std::string> names_, fields_;
  int depth_ = 0;  // objects open
  bool in_metadata_ = false;
};

// Tensors in the order of their bytes must tile [0, data_bytes): no overlap, no gap, nothing outside.
Status check_bytes(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t expected = 0;
  for (const TensorEntry& t : tensors) {
    const Result<std::uint64_t> bytes = tensor_bytes(t.type, t.shape);
    if (!bytes.ok()) return refuse(fmt::format("tensor {}: {}", printable(t.name), bytes.status().message()));
    if (t.end > data_bytes) {
      return refuse(fmt::format("tensor {} ends at byte {} of {}; the file is truncated or the offset is wrong",
                                printable(t.name), t.end, data_bytes));
    }
    if (bytes.value() != t.end - t.begin) {
      return refuse(fmt::format("tensor {} has {} bytes by its offsets and {} by its {} shape", printable(t.name),
                                t.end - t.begin, bytes.value(), file_type_name(t.type)));
    }
    if (t.begin != expected) {
      return refuse(
          fmt::format("tensor {} begins at byte {} but the tensor before it ends at {}; tensors may neither "
                      "overlap nor leave a gap",
                      printable(t.name), t.begin, expected));
    }
    expected = t.end;
  }
  if (expected == data_bytes) return {};
  return refuse(fmt::format("{} bytes follow the last tensor; the file must end with it", data_bytes - expected));
}

}  // namespace

std::string_view file_type_name(FileType t) {
  return kTypes[static_cast<std::size_t>(t)].name;
}
std::size_t file_type_bytes(FileType t) {
  return kTypes[static_cast<std::size_t>(t)].bytes;
}

Result<std::uint64_t> tensor_bytes(FileType t, const std::vector<std::int64_t>& shape) {
  std::uint64_t bytes = file_type_bytes(t);
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      return Status{StatusCode::invalid_argument, fmt::format("an extent is {}; it must not be negative", extent)};
    }
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) {
      return Status{StatusCode::invalid_argument, "the shape has more bytes than 64 bits can count"};
    }
  }
  return bytes;
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes) {
  try {
    HeaderEvents events;
    const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &events);
    if (!events.status().ok()) return events.status();
    if (!parsed) return refuse("the header is not valid JSON");
    SafetensorsHeader header = events.take();
    MPFA_RETURN_IF_ERROR(check_bytes(header.tensors, data_bytes));
    return header;
  } catch (const std::bad_alloc&) {
    return Status{StatusCode::out_of_memory, "the header does not fit in memory"};
  }
}

}  // namespace mpfa::io
