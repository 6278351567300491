// Files written here are read back; hostile files are refused with the reason, whatever their bytes.
#include "io/safetensors.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace mpfa::io {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SafetensorsFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "mpfa_io_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const char* name = "a.safetensors") const { return (folder_ / name).string(); }

  std::string write_raw(std::uint64_t header_bytes, std::string_view rest) const {
    std::ofstream out(path(), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
    out.write(rest.data(), static_cast<std::streamsize>(rest.size()));
    return path();
  }

  [[nodiscard]] std::string error(std::string_view json, std::size_t data_bytes) const {
    const auto file = SafetensorsFile::open(write_raw(json.size(), std::string(json) + std::string(data_bytes, 'x')));
    EXPECT_FALSE(file.ok()) << json;
    if (file.ok()) return {};
    EXPECT_EQ(file.status().code(), StatusCode::io_error);
    return file.status().message();
  }

  std::filesystem::path folder_;
};

std::string entry(const char* name, const char* dtype, const char* shape, const char* offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

std::string object(const std::string& entries) {
  return fmt::format("{{{}}}", entries);
}
std::string object(const std::string& a, const std::string& b) {
  return fmt::format("{{{},{}}}", a, b);
}

TEST_F(SafetensorsFiles, WhatIsWrittenIsReadBack) {
  const std::vector<float> q{1.0F, -2.5F, 3.0F, 4.0F, 5.0F, 6.0F};
  const std::vector<std::int8_t> codes{-1, 2, 3};
  const std::vector<TensorToWrite> tensors{{"q", FileType::f32, {1, 2, 3}, std::as_bytes(std::span(q))},
                                           {"codes", FileType::i8, {3}, std::as_bytes(std::span(codes))},
                                           {"empty", FileType::bf16, {4, 0}, {}},
                                           {"scalar", FileType::i8, {}, std::as_bytes(std::span(codes).first(1))}};
  const Status written = write_safetensors(path(), tensors, {{"recipe", "mpfa"}});
  ASSERT_TRUE(written.ok()) << written.message();

  const auto file = SafetensorsFile::open(path());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file.value().header().metadata.at("recipe"), "mpfa");
  EXPECT_EQ(file.value().header().tensors.size(), tensors.size());
  for (const TensorToWrite& t : tensors) {
    const TensorEntry* const found = file.value().find(t.name);
    ASSERT_NE(found, nullptr) << t.name;
    EXPECT_EQ(found->type, t.type);
    EXPECT_EQ(found->shape, t.shape);
    const auto bytes = file.value().read(*found);
    ASSERT_TRUE(bytes.ok());
    EXPECT_TRUE(std::equal(t.bytes.begin(), t.bytes.end(), bytes.value().begin(), bytes.value().end())) << t.name;
  }
  EXPECT_EQ(file.value().find("k"), nullptr);
}

TEST_F(SafetensorsFiles, WriterRefusesWhatItCouldNotReadBack) {
  const std::vector<float> x(4);
  const auto bytes = std::as_bytes(std::span(x));
  EXPECT_THAT(write_safetensors(path(), {{"x", FileType::f32, {5}, bytes}}).message(), HasSubstr("16 bytes"));
  EXPECT_THAT(write_safetensors(path(), {{"x", FileType::f32, {-4}, bytes}}).message(), HasSubstr("'x'"));
  const TensorToWrite twice{"x", FileType::f32, {4}, bytes};
  EXPECT_THAT(write_safetensors(path(), {twice, twice}).message(), HasSubstr("given twice"));
  EXPECT_EQ(write_safetensors(path("no/such/folder"), {twice}).code(), StatusCode::io_error);
  EXPECT_EQ(write_safetensors(folder_.string(), {twice}).code(), StatusCode::io_error);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(write_safetensors(path("pipe"), {twice}).message(), HasSubstr("not a regular file"));
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));  // a rename would have replaced it
}

TEST_F(SafetensorsFiles, RefusesFilesThatAreNotWhatTheyClaim) {
  const std::string one = object(entry("q", "F32", "[2]", "[0,8]"));
  EXPECT_THAT(SafetensorsFile::open(path("none")).status().message(), HasSubstr("cannot be opened"));
  EXPECT_THAT(SafetensorsFile::open(folder_.string()).status().message(), HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(SafetensorsFile::open(path("pipe")).status().message(), HasSubstr("not a regular file"));
  std::ofstream(path("short")) << "1234567";
  EXPECT_THAT(SafetensorsFile::open(path("short")).status().message(), HasSubstr("7 bytes"));
  for (const std::uint64_t length : {std::uint64_t{1000}, std::uint64_t{1} << 32U, ~std::uint64_t{0}}) {
    EXPECT_THAT(SafetensorsFile::open(write_raw(length, one)).status().message(), HasSubstr("claims a header of"));
  }
  EXPECT_THAT(error(one, 4), AllOf(HasSubstr("'q' ends at byte 8 of 4"), HasSubstr("truncated")));
  EXPECT_THAT(error(one, 12), HasSubstr("4 bytes follow"));
  EXPECT_THAT(error("", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("{}", 3), HasSubstr("3 bytes follow"));
}

TEST_F(SafetensorsFiles, AFileThatShrinksAfterOpeningIsAnErrorNotASignal) {
  const std::string one = object(entry("q", "U8", "[4096]", "[0,4096]"));
  const auto file = SafetensorsFile::open(write_raw(one.size(), one + std::string(4096, 'x')));
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path(), 100);
  EXPECT_THAT(file.value().read(*file.value().find("q")).status().message(), HasSubstr("became shorter"));
}

TEST_F(SafetensorsFiles, RefusesShapesAndOffsetsThatDoNotFit) {
  const auto tensor = [](const char* dtype, const char* shape, const char* offsets) {
    return object(entry("q", dtype, shape, offsets));
  };
  EXPECT_THAT(error(tensor("F32", "[3]", "[0,8]"), 8), HasSubstr("8 bytes by its offsets and 12"));
  EXPECT_THAT(error(tensor("F32", "[4611686018427387904]", "[0,0]"), 0), HasSubstr("64 bits"));
  EXPECT_THAT(error(tensor("U8", "[4294967296,4294967296]", "[0,0]"), 0), HasSubstr("64 bits"));
  EXPECT_THAT(error(tensor("U8", "[9223372036854775808]", "[0,0]"), 0), HasSubstr("63 bits"));
  EXPECT_THAT(error(tensor("U8", "[18446744073709551616]", "[0,0]"), 0), HasSubstr("64-bit integer"));
  EXPECT_THAT(error(tensor("U8", "[-1]", "[0,1]"), 1), HasSubstr("negative"));
  EXPECT_THAT(error(tensor("U8", "[1.5]", "[0,1]"), 1), HasSubstr("64-bit integer"));
  EXPECT_THAT(error(tensor("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]"), 1), HasSubstr("more than 16"));
  EXPECT_THAT(error(tensor("U8", "[8]", "[8,0]"), 8), HasSubstr("[begin, end]"));
  EXPECT_THAT(error(tensor("U8", "[8]", "[0,8,9]"), 8), HasSubstr("[begin, end]"));
  EXPECT_THAT(error(tensor("U8", "[8]", "[0,18446744073709551615]"), 8), HasSubstr("ends at byte 1844"));
  EXPECT_THAT(error(tensor("F8_E4M3", "[8]", "[0,8]"), 8), AllOf(HasSubstr("'F8_E4M3'"), HasSubstr("BF16")));
  const std::string overlap = object(entry("a", "U8", "[8]", "[0,8]"), entry("b", "U8", "[8]", "[4,12]"));
  EXPECT_THAT(error(overlap, 12), AllOf(HasSubstr("'b'"), HasSubstr("overlap")));
  const std::string gap = object(entry("a", "U8", "[8]", "[0,8]"), entry("b", "U8", "[8]", "[12,20]"));
  EXPECT_THAT(error(gap, 20), HasSubstr("gap"));
}

TEST_F(SafetensorsFiles, RefusesMalformedHeaders) {
  const std::string a = entry("a", "U8", "[1]", "[0,1]");
  EXPECT_THAT(error(object(a, a), 1), HasSubstr("'a' is there twice"));
  EXPECT_THAT(error("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 1), HasSubstr("'dtype' of 'a' is there twice"));
  EXPECT_THAT(error("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1), HasSubstr("lacks one of"));
  EXPECT_THAT(error("{\"a\":{\"type\":\"U8\"}}", 1), HasSubstr("'type'"));
  EXPECT_THAT(error("{\"a\":{\"shape\":[[1]]}}", 1), HasSubstr("an array"));
  EXPECT_THAT(error("{\"a\":{\"shape\":{}}}", 1), HasSubstr("an object"));
  EXPECT_THAT(error("{\"a\":{\"shape\":3}}", 1), HasSubstr("a number"));
  EXPECT_THAT(error("{\"a\":[]}", 1), HasSubstr("an array"));
  EXPECT_THAT(error("{\"a\":null}", 1), HasSubstr("null"));
  EXPECT_THAT(error("{\"__metadata__\":{\"n\":1}}", 0), HasSubstr("a number"));
  EXPECT_THAT(error("[]", 0), HasSubstr("an object of tensors"));
  EXPECT_THAT(error(object(a) + " x", 1), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("{\"\xff\":{}}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(error(std::string(1'000'000, '['), 0), HasSubstr("an array"));
  std::string deep;
  for (int i = 0; i < 200'000; ++i) deep += "{\"shape\":";
  EXPECT_THAT(error(deep, 0), HasSubstr("an object"));
}

TEST(SafetensorsHeaderText, AnyMutationOfAHeaderIsAnAnswer) {
  const std::string good =
      object(R"("__metadata__":{"a":"b"})",
             fmt::format("{},{}", entry("q", "F32", "[1,2]", "[0,8]"), entry("k", "BF16", "[4]", "[8,16]")));
  ASSERT_TRUE(parse_safetensors_header(good, 16).ok());
  EXPECT_TRUE(rc::check("one or two bytes changed", [&] {
    std::string text = good;
    for (int i = *rc::gen::inRange(1, 3); i > 0; --i) {
      text[*rc::gen::inRange<std::size_t>(0, text.size())] = *rc::gen::arbitrary<char>();
    }
    const auto header = parse_safetensors_header(text, 16);
    if (!header.ok()) {
      RC_ASSERT(!header.status().message().empty());
      return;
    }
    for (const TensorEntry& t : header.value().tensors) {
      RC_ASSERT(t.begin <= t.end && t.end <= 16);
      RC_ASSERT(tensor_bytes(t.type, t.shape).value() == t.end - t.begin);
    }
  }));
}

}  // namespace
}  // namespace mpfa::io
