// SPDX-License-Identifier: Apache-2.0
#include "cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace packattn::cpu {
namespace {

TEST(Parallel, EveryItemRunsOnceAndEachWorkerIsAlone) {
  for (const int threads : {1, 2, 5}) {
    std::vector<std::atomic<int>> runs(1000), busy(static_cast<std::size_t>(threads));
    std::atomic<bool> shared{false};
    parallel_for_items(1000, {.threads = threads}, [&](std::int64_t item, int worker) {
      if (busy[static_cast<std::size_t>(worker)].fetch_add(1) != 0) shared = true;
      ++runs[static_cast<std::size_t>(item)];
      busy[static_cast<std::size_t>(worker)].fetch_sub(1);
    });
    EXPECT_TRUE(std::all_of(runs.begin(), runs.end(), [](const auto& n) { return n == 1; }));
    EXPECT_FALSE(shared);
  }
}

TEST(Parallel, NoItemsIsNoWork) {
  parallel_for_items(0, {.threads = 2}, [](std::int64_t, int) { FAIL(); });
}

TEST(Parallel, ProgressCountsUpToTheTotal) {
  std::vector<std::int64_t> seen;
  const std::function<void(std::int64_t, std::int64_t)> progress = [&](auto done, auto total) {
    EXPECT_EQ(total, 60);
    seen.push_back(done);
  };
  parallel_for_items(50, {.threads = 2, .progress = &progress}, [](auto, int) {}, 10, 60);
  ASSERT_EQ(seen.size(), 50U);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.front(), 11);
  EXPECT_EQ(seen.back(), 60);
}

TEST(Parallel, AnExceptionStopsTheRestAndReachesTheCaller) {
  std::atomic<int> runs{0};
  const auto work = [&](std::int64_t item, int) {
    ++runs;
    if (item == 3) throw std::runtime_error("item 3");
  };
  for (const int threads : {1, 2}) {
    runs = 0;
    EXPECT_THROW(parallel_for_items(1'000'000, {.threads = threads}, work), std::runtime_error);
    EXPECT_LT(runs, 1'000'000);
  }
}

TEST(Parallel, AChildOfForkStillFinishes) {
  std::atomic<int> runs{0};
  const auto work = [&](std::int64_t, int) { ++runs; };
  parallel_for_items(100, {.threads = 2}, work);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    runs = 0;
    parallel_for_items(100, {.threads = 2}, work);
    _exit(runs == 100 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace packattn::cpu
