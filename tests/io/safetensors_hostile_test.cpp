// SPDX-License-Identifier: Apache-2.0
// Files that somebody made to break a reader, and thousands that chance made.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "packattn/error.h"
#include "packattn/io.h"

#include "io/temporary_folder.h"

namespace packattn {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;

std::string file_of(const std::string& header, std::size_t data_bytes, std::uint64_t length) {
  return std::string(reinterpret_cast<const char*>(&length), 8) + header +
         std::string(data_bytes, '\1');
}
std::string file_of(const std::string& header, std::size_t data_bytes = 0) {
  return file_of(header, data_bytes, header.size());
}

// One tensor, data of `bytes`.
std::string tensor(const std::string& fields, std::size_t bytes) {
  return file_of("{\"t\":{" + fields + "}}", bytes);
}

struct Hostile {
  std::string name;
  std::string bytes;
  std::string problem;
};

std::vector<Hostile> hostile_files() {
  const std::string f32 = R"("dtype":"F32",)";
  const std::string at8 = R"(,"data_offsets":[0,8])";
  const std::string good = f32 + R"("shape":[2])" + at8;
  return {
      {"empty file", "", "it has 0 bytes"},
      {"short length", std::string(3, '\1'), "alone takes 8"},
      {"huge header", file_of("{}", 0, ~0ULL), "18446744073709551615 bytes"},
      {"header over 100 MB", file_of("{}", 0, 100'000'001), "at most 100000000"},
      {"header past the end", file_of("{}", 0, 3), "ends after 2"},
      {"no header", file_of(""), "not JSON"},
      {"not JSON", file_of("{\"t\":}"), "not JSON at its byte 6"},
      {"truncated JSON", file_of("{\"t\":{\"dtype\""), "not JSON"},
      {"text after the object", file_of("{} x"), "not JSON"},
      {"not UTF-8", file_of("{\"\xff\xfe\":{}}"), "not JSON"},
      {"NaN", tensor(f32 + R"("shape":[NaN])" + at8, 8), "not JSON"},
      {"deep lists", file_of(std::string(1'000'000, '[')), "the header is a list"},
      {"deep objects", file_of("{\"a\":{\"shape\":[" + std::string(1'000'000, '[')), "a list"},
      {"a list", file_of("[]"), "not an object"},
      {"a number", file_of("7"), "the header is a number"},
      {"tensor is a number", file_of("{\"t\":7}"), "t is a number"},
      {"metadata is a list", file_of("{\"__metadata__\":[]}"), "__metadata__ is a list"},
      {"metadata of numbers", file_of(R"({"__metadata__":{"a":1}})"), "a of __metadata__"},
      {"metadata twice", file_of(R"({"__metadata__":{},"__metadata__":{}})"), "given twice"},
      {"metadata key twice", file_of(R"({"__metadata__":{"a":"","a":""}})"), "given twice"},
      {"no dtype", tensor(R"("shape":[2])" + at8, 8), "has no dtype"},
      {"no shape", tensor(R"("dtype":"F32")" + at8, 8), "has no shape"},
      {"no offsets", tensor(f32 + R"("shape":[2])", 8), "no data_offsets"},
      {"one offset", tensor(f32 + R"("shape":[2],"data_offsets":[0])", 8), "no data_offsets"},
      {"three offsets", tensor(f32 + R"("shape":[2],"data_offsets":[0,8,8])", 8), "a number"},
      {"dtype twice", tensor(f32 + good, 8), "dtype of t is a text"},
      {"shape twice", tensor(f32 + R"("shape":[2],"shape":[2])" + at8, 8), "shape of t is a list"},
      {"offsets twice", tensor(good + at8, 8), "data_offsets of t is a list"},
      {"unknown field", tensor(good + R"(,"x":{})", 8), "x of t is an object"},
      {"unknown dtype", tensor(R"("dtype":"F3","shape":[2])" + at8, 8), "unknown dtype F3"},
      {"negative size", tensor(f32 + R"("shape":[-2])" + at8, 8), "a negative number"},
      {"size with a fraction", tensor(f32 + R"("shape":[2.0])" + at8, 8), "a fraction"},
      {"size over 64 bits", tensor(f32 + R"("shape":[18446744073709551616])" + at8, 8), "fraction"},
      {"size over 63 bits", tensor(f32 + R"("shape":[18446744073709551615])" + at8, 8), "64 bits"},
      {"product overflows", tensor(f32 + R"("shape":[4611686018427387904,4])" + at8, 8), "64 bits"},
      {"product wraps to 8", tensor(f32 + R"("shape":[4294967297,4294967297,2])" + at8, 8),
       "64 bits can count"},
      {"nine dimensions", tensor(f32 + R"("shape":[1,1,1,1,1,1,1,1,2])" + at8, 8), "dimensions"},
      {"shape too small", tensor(f32 + R"("shape":[1])" + at8, 8), "need 4"},
      {"shape too large", tensor(f32 + R"("shape":[3])" + at8, 8), "need 12"},
      {"offsets past the end", tensor(good, 7), "0 to 8 of 7"},
      {"offsets reversed", tensor(f32 + R"("shape":[2],"data_offsets":[8,0])", 8), "8 to 0"},
      {"offset over 64 bits", tensor(f32 + R"("shape":[2],"data_offsets":[0,1e30])", 8),
       "fraction"},
      {"name twice", file_of("{\"t\":{" + good + "},\"t\":{" + good + "}}", 8), "given twice"},
      {"overlap", file_of("{\"t\":{" + good + "},\"u\":{" + good + "}}", 8), "overlaps"},
      {"bytes before", tensor(f32 + R"("shape":[2],"data_offsets":[4,12])", 12), "0 to 4"},
      {"bytes after", tensor(good, 9), "8 to 9"},
      {"bytes of no tensor", file_of("{}", 1), "0 to 1"},
      {"steers a terminal", file_of("{\"\\u001b[2J\":7}"), "?[2J is a number"},
      {"long name", file_of("{\"" + std::string(10'000, 'n') + "\":7}"), "n... is a number"},
  };
}

TEST(HostileSafetensors, EachIsRefusedWithItsReason) {
  const TemporaryFolder folder;
  for (const Hostile& hostile : hostile_files()) {
    test::write_file(folder / "x", hostile.bytes);
    try {
      const SafetensorsFile file(folder / "x");
      ADD_FAILURE() << hostile.name << " was accepted";
    } catch (const Error& error) {
      ASSERT_EQ(error.faults().size(), 1U) << hostile.name;
      EXPECT_EQ(error.code(), Code::safetensors_malformed) << hostile.name;
      EXPECT_THAT(error.faults()[0].value, HasSubstr(hostile.problem)) << hostile.name;
      EXPECT_LT(error.faults()[0].value.size(), 300U) << hostile.name;
    }
  }
}

TEST(HostileSafetensors, UnusualButLegalFilesAreRead) {
  const TemporaryFolder folder;
  for (const std::string& header : std::vector<std::string>{
           "{}", "{}   \n", R"({"__metadata__":{}})",
           R"({"t":{"data_offsets":[0,0],"shape":[0,4611686018427387904],"dtype":"F32"}})",
           R"({"":{"dtype":"U16","shape":[0],"data_offsets":[0,0]}})"}) {
    test::write_file(folder / "x", file_of(header));
    EXPECT_NO_THROW(SafetensorsFile(folder / "x")) << header;
  }
}

// Reads every byte that the file's views reach.
std::uint64_t sum_of(const SafetensorsFile& file) {
  std::uint64_t sum = 0;
  for (const std::string& name : file.names()) {
    const TensorView view = file.tensor(name);
    const auto bytes = static_cast<std::size_t>(view.numel()) * size_of(view.dtype());
    for (std::size_t i = 0; i < bytes; ++i) sum += view.as<unsigned char>()[i];
  }
  return sum;
}

TEST(HostileSafetensors, MutatedFilesAreReadOrRefused) {
  const TemporaryFolder folder;
  const std::vector<float> q{1, 2, 3, 4};
  const std::vector<std::int64_t> cu{0, 2};
  save_safetensors(folder / "seed",
                   {{"q", TensorView::of(q.data(), {2, 2})}, {"cu_seqlens_q", TensorView::of(cu)}},
                   {{"op", "attention"}});
  const std::string seed = test::read_file(folder / "seed");
  const std::string letters = "{}[]\",:0123456789-.eEUF\\\x7f\xff";

  const unsigned first = std::random_device{}();
  int accepted = 0;
  for (unsigned round = 0; round < 4000; ++round) {
    SCOPED_TRACE("seed " + std::to_string(first + round));
    std::mt19937 random(first + round);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    std::string bytes = seed;
    for (std::size_t edits = 1 + below(3); edits > 0 && !bytes.empty(); --edits) {
      const std::size_t place = below(bytes.size());
      switch (below(5)) {
        case 0: bytes[place] = static_cast<char>(random()); break;
        case 1: bytes[place] = letters[below(letters.size())]; break;
        case 2: bytes.erase(place, 1 + below(8)); break;
        case 3: bytes.insert(place, bytes.substr(below(bytes.size()), 1 + below(16))); break;
        default: bytes.resize(place); break;
      }
    }
    // A new name each time: some file systems flush a file that is truncated and written again.
    const auto path = folder / std::to_string(round);
    test::write_file(path, bytes);
    try {
      const SafetensorsFile file(path);
      EXPECT_LE(sum_of(file), 255U * bytes.size());
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::safetensors_malformed);
    }
    std::filesystem::remove(path);
  }
  // Edits of the data alone leave a good file: both ways were tried.
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 3000);
}

}  // namespace
}  // namespace packattn
