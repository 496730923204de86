// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "packattn/error.h"
#include "packattn/io.h"

#include "io/temporary_folder.h"

namespace packattn {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class F>
std::vector<Fault> faults_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.faults();
  }
  return {};
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  std::vector<float> q(24);
  std::iota(q.begin(), q.end(), 0.5F);
  const std::array<std::int8_t, 3> bytes{1, -2, 3};
  const std::vector<std::int64_t> cu{0, 2};
  const float scalar = 7;
  save_safetensors(folder / "x.safetensors",
                   {{"q", TensorView::of(q.data(), {2, 3, 4})},
                    {"odd", TensorView::of(bytes.data(), {3})},
                    {"cu_seqlens_q", TensorView::of(cu)},
                    {"none", TensorView::of(q.data(), {0, 4})},
                    {"scalar", TensorView::of(&scalar, {})}},
                   {{"op", "attention"}, {"causal", "true"}});

  const SafetensorsFile file(folder / "x.safetensors");
  EXPECT_THAT(file.names(), ElementsAre("cu_seqlens_q", "none", "odd", "q", "scalar"));
  EXPECT_EQ(file.metadata().at("op"), "attention");
  const TensorView read = file.tensor("q");
  EXPECT_EQ(read.shape_string(), "[2, 3, 4]");
  EXPECT_EQ(read.dtype(), DType::f32);
  EXPECT_TRUE(read.read_only());
  EXPECT_EQ(std::memcmp(read.data(), q.data(), q.size() * sizeof(float)), 0);
  EXPECT_EQ(file.tensor("cu_seqlens_q").as<std::int64_t>()[1], 2);
  EXPECT_EQ(file.tensor("none").numel(), 0);
  EXPECT_EQ(*file.tensor("scalar").as<float>(), 7);
  EXPECT_EQ(file.tensor("scalar").rank(), 0);
  EXPECT_EQ(folder.files(), 1U);
}

TEST(Safetensors, TheSameTensorsGiveTheSameBytes) {
  const TemporaryFolder folder;
  const std::vector<float> q{1, 2};
  const std::map<std::string, TensorView> tensors{{"q", TensorView::of(q)}};
  save_safetensors(folder / "a", tensors, {{"k", "v"}});
  save_safetensors(folder / "b", tensors, {{"k", "v"}});
  EXPECT_EQ(test::read_file(folder / "a"), test::read_file(folder / "b"));
}

TEST(Safetensors, StridedTensorsAreWrittenContiguously) {
  const TemporaryFolder folder;
  std::array<float, 12> rows{};
  std::iota(rows.begin(), rows.end(), 0.0F);
  const std::array<std::int64_t, 2> shape{3, 2};
  const std::array<std::int64_t, 2> strides{1, 4};
  save_safetensors(folder / "x", {{"t", {rows.data(), DType::f32, Device{}, shape, strides}}});
  const SafetensorsFile file(folder / "x");
  const float* read = file.tensor("t").as<float>();
  EXPECT_THAT(std::vector<float>(read, read + 6), ElementsAre(0, 4, 1, 5, 2, 6));
}

TEST(Safetensors, TensorsOffTheirAlignmentAreCopied) {
  const TemporaryFolder folder;
  std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  const std::uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  const float value = 2.5F;
  bytes += header + "x" + std::string(reinterpret_cast<const char*>(&value), 4);
  test::write_file(folder / "x", bytes);
  const SafetensorsFile file(folder / "x");
  EXPECT_EQ(*file.tensor("b").as<float>(), 2.5F);
}

TEST(Safetensors, ACopyKeepsTheViewsAlive) {
  const TemporaryFolder folder;
  const std::vector<float> q{1, 2};
  save_safetensors(folder / "x", {{"q", TensorView::of(q)}});
  auto file = std::make_unique<SafetensorsFile>(folder / "x");
  const SafetensorsFile copy = *file;
  const TensorView view = file->tensor("q");
  file.reset();
  EXPECT_EQ(view.as<float>()[1], 2);
}

TEST(Safetensors, AMissingTensorIsNamedWithTheOnesThereAre) {
  const TemporaryFolder folder;
  const std::vector<float> q{1, 2};
  save_safetensors(folder / "x", {{"q", TensorView::of(q)}});
  const SafetensorsFile file(folder / "x");
  const auto faults = faults_of([&] { static_cast<void>(file.tensor("k")); });
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(faults[0].code, Code::tensor_not_in_file);
  EXPECT_THAT(faults[0].help, HasSubstr("it has q"));
}

TEST(Safetensors, UnreadablePathsAreRefused) {
  const TemporaryFolder folder;
  for (const auto& path : {folder / "absent", folder / ".", folder / std::string(5000, 'x')}) {
    const auto faults = faults_of([&] { SafetensorsFile file(path); });
    ASSERT_EQ(faults.size(), 1U) << path;
    EXPECT_EQ(faults[0].code, Code::file_unreadable);
  }
}

// A rename over /dev/null, by who may do that, would leave a plain file in its place.
TEST(Safetensors, OnlyAFileIsReplaced) {
  const TemporaryFolder folder;
  const std::vector<float> q{1, 2};
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink(folder / "pipe", folder / "link");
  for (const char* name : {"pipe", "link"}) {
    const auto faults =
        faults_of([&] { save_safetensors(folder / name, {{"q", TensorView::of(q)}}); });
    ASSERT_EQ(faults.size(), 1U) << name;
    EXPECT_EQ(faults[0].code, Code::file_unwritable);
  }
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
  EXPECT_EQ(folder.files(), 2U);
}

TEST(Safetensors, AFailedWriteLeavesWhatWasThere) {
  const TemporaryFolder folder;
  const std::vector<float> q{1, 2};
  std::filesystem::create_directory(folder / "folder");
  test::write_file(folder / "folder/inside", "x");
  for (const auto& path : {folder / "folder", folder / "absent/x"}) {
    const auto faults = faults_of([&] { save_safetensors(path, {{"q", TensorView::of(q)}}); });
    ASSERT_EQ(faults.size(), 1U) << path;
    EXPECT_EQ(faults[0].code, Code::file_unwritable);
  }
  EXPECT_EQ(folder.files(), 1U);

  test::write_file(folder / "x", "before");
  EXPECT_FALSE(
      faults_of([&] { save_safetensors(folder / "x", {{"\xff", TensorView::of(q)}}); }).empty());
  EXPECT_FALSE(faults_of([&] {
                 save_safetensors(folder / "x", {{"__metadata__", TensorView::of(q)}});
               }).empty());
  EXPECT_EQ(test::read_file(folder / "x"), "before");
  EXPECT_EQ(folder.files(), 2U);
}

TEST(Safetensors, EveryTensorThatCannotBeWrittenIsListed) {
  const TemporaryFolder folder;
  float x = 0;
  const std::array<std::int64_t, 1> one{1};
  const std::array<std::int64_t, 1> negative{-1};
  const std::array<std::int64_t, 9> deep{1, 1, 1, 1, 1, 1, 1, 1, 1};
  const auto faults = faults_of([&] {
    save_safetensors(folder / "x", {{"a", {}},
                                    {"b", {&x, DType::f32, {DeviceType::cuda, 0}, one}},
                                    {"c", {&x, DType::other, Device{}, one}},
                                    {"d", {&x, DType::f32, Device{}, negative}},
                                    {"e", {&x, DType::f32, Device{}, deep}},
                                    {"f", {nullptr, DType::f32, Device{}, one}}});
  });
  std::vector<Code> codes;
  codes.reserve(faults.size());
  for (const Fault& fault : faults) codes.push_back(fault.code);
  EXPECT_THAT(codes, ElementsAre(Code::tensor_missing, Code::tensor_device, Code::tensor_dtype,
                                 Code::negative_size, Code::tensor_rank, Code::null_data));
  EXPECT_EQ(folder.files(), 0U);
}

}  // namespace
}  // namespace packattn
