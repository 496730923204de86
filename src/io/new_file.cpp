// SPDX-License-Identifier: Apache-2.0
#include "io/new_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "errors/fault_list.h"

namespace packattn::io {
namespace {

std::filesystem::path name_beside(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};
  std::filesystem::path beside = path;
  beside += fmt::format(".{}-{}.tmp", ::getpid(), counter++);
  return beside;
}

[[noreturn]] void refuse(const std::filesystem::path& path, int error) {
  fail(Code::file_unwritable,
       {.argument = path.string(), .value = std::generic_category().message(error)});
}

// The file that a name stands for: as with any other way of writing, a link stays and what it leads
// to is written, whether that is there already or not.
std::filesystem::path behind_links(const std::filesystem::path& named) {
  constexpr int most_links = 40;  // as many as Linux follows
  std::filesystem::path path = named;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(path, error); ++links) {
    if (links == most_links) refuse(named, ELOOP);
    const auto target = std::filesystem::read_symlink(path, error);
    if (error) refuse(named, error.value());
    path = path.parent_path() / target;
  }
  return path;
}

// A rename would put a file in the place of a device, a pipe or a socket: who may do that to
// /dev/null has broken the machine for everyone.
std::filesystem::path replaceable(std::filesystem::path path) {
  using std::filesystem::file_type;
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  const bool special = type == file_type::block || type == file_type::character ||
                       type == file_type::fifo || type == file_type::socket;
  if (special || type == file_type::directory) {
    fail(Code::file_unwritable,
         {.argument = path.string(),
          .value = special ? "it is not a regular file" : "it is a directory"});
  }
  return path;
}

}  // namespace

NewFile::NewFile(const std::filesystem::path& path)
    : path_(replaceable(behind_links(path))),
      temporary_(name_beside(path_)),
      descriptor_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) refuse(path_, errno);
}

NewFile::~NewFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void NewFile::write(std::span<const std::byte> bytes) {
  constexpr std::size_t at_once = std::size_t{1} << 30;  // one call writes at most 2 GiB
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), at_once));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(path_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void NewFile::finish() {
  // Before the rename, or a crash could leave the new name with the old disk's zeros.
  if (::fsync(descriptor_) != 0) refuse(path_, errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) refuse(path_, errno);
  const int error = ::close(std::exchange(descriptor_, -1)) == 0 ? 0 : errno;
  if (error != 0) refuse(path_, error);
}

}  // namespace packattn::io
