// SPDX-License-Identifier: Apache-2.0
#include "io/mapped_file.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "errors/fault_list.h"

namespace packattn::io {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto refuse = [&](std::string why) {
    fail(Code::file_unreadable, {.argument = path.string(), .value = std::move(why)});
  };
  // Without O_NONBLOCK opening a named pipe would wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) refuse(std::generic_category().message(errno));

  struct ::stat status = {};
  const bool known = ::fstat(descriptor, &status) == 0;
  int error = errno;
  void* mapped = MAP_FAILED;
  if (known && S_ISREG(status.st_mode) && status.st_size > 0) {
    mapped = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE,
                    descriptor, 0);
    error = errno;
  }
  ::close(descriptor);
  if (!known) refuse(std::generic_category().message(error));
  if (!S_ISREG(status.st_mode)) refuse("it is not a regular file");
  if (status.st_size == 0) return;
  if (mapped == MAP_FAILED) refuse(std::generic_category().message(error));
  data_ = static_cast<const std::byte*>(mapped);
  size_ = static_cast<std::size_t>(status.st_size);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace packattn::io
