// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string_view>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "fault.h"
#include "web/service.h"

namespace packattn::cli {
namespace {

namespace fs = std::filesystem;

// A connection holds at most this much of a request: longer lines and headers are answered 414 or
// 431. Together with the number of connections it bounds what clients can make the server keep.
constexpr std::size_t connection_memory = 32 * 1024;
constexpr unsigned int most_connections = 256;
// One that neither reads nor writes for so long is closed.
constexpr unsigned int idle_seconds = 10;

struct CloseResponse {
  void operator()(MHD_Response* response) const { MHD_destroy_response(response); }
};
using Response = std::unique_ptr<MHD_Response, CloseResponse>;

Response from_text(std::string_view text) {
  // MHD copies the text; its signature is older than const.
  return Response(MHD_create_response_from_buffer(text.size(), const_cast<char*>(text.data()),
                                                  MHD_RESPMEM_MUST_COPY));
}

// Null for a file that went away or may not be read.
Response from_file(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct stat status{};
  if (fstat(file, &status) != 0) {
    close(file);
    return nullptr;
  }
  // MHD closes the file.
  return Response(MHD_create_response_from_fd64(static_cast<std::uint64_t>(status.st_size), file));
}

MHD_Result send(MHD_Connection* connection, const WebAnswer& answer) {
  const Response response = answer.file.empty() ? from_text(answer.body) : from_file(answer.file);
  if (!response) return MHD_NO;
  const auto header = [&](const char* name, const std::string& value) {
    if (!value.empty()) MHD_add_response_header(response.get(), name, value.c_str());
  };
  header("Content-Type", answer.type);
  header("Location", answer.location);
  header("X-Content-Type-Options", "nosniff");
  header("Cache-Control", "no-cache");
  if (answer.status == 405) header("Allow", "GET, HEAD");
  return MHD_queue_response(connection, static_cast<unsigned int>(answer.status), response.get());
}

// Called by the server's thread; no exception may leave it.
MHD_Result handle(void* context, MHD_Connection* connection, const char* url, const char* method,
                  const char* /*version*/, const char* /*data*/, std::size_t* data_size,
                  void** /*per_connection*/) {
  try {
    const std::string_view verb = method;
    if (verb != "GET" && verb != "HEAD") {
      *data_size = 0;  // what comes with it is not read
      return send(connection, {.status = 405, .type = "text/plain", .body = "only GET and HEAD\n"});
    }
    const auto query = [&](const std::string& name) -> std::optional<std::string> {
      const char* value =
          MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, name.c_str());
      return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
    };
    return send(connection, static_cast<const WebService*>(context)->answer(url, query));
  } catch (const std::exception&) {
    return MHD_NO;  // closes this connection; the others go on
  }
}

struct StopDaemon {
  void operator()(MHD_Daemon* daemon) const { MHD_stop_daemon(daemon); }
};
using Daemon = std::unique_ptr<MHD_Daemon, StopDaemon>;

Daemon start(const WebService& service, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto silent = +[](void*, const char*, va_list) {};
  errno = 0;
  Daemon daemon(MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_USE_ERROR_LOG,
                                 port, nullptr, nullptr, handle, const_cast<WebService*>(&service),
                                 MHD_OPTION_EXTERNAL_LOGGER, silent, nullptr, MHD_OPTION_SOCK_ADDR,
                                 &address, MHD_OPTION_CONNECTION_MEMORY_LIMIT, connection_memory,
                                 MHD_OPTION_CONNECTION_LIMIT, most_connections,
                                 MHD_OPTION_CONNECTION_TIMEOUT, idle_seconds, MHD_OPTION_END));
  if (!daemon) {
    fail(Code::port_unavailable,
         {.value = std::to_string(port), .limit = std::strerror(errno == 0 ? EADDRINUSE : errno)});
  }
  return daemon;
}

std::optional<fs::path> site_of(const ServeRequest& request) {
  std::error_code error;
  if (!request.site.empty()) {
    if (fs::is_directory(request.site, error)) return request.site;
    fail(Code::file_unreadable, {.argument = request.site, .value = "it is no folder"});
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const std::array<fs::path, 2> places{fs::path("site"),
                                       program.parent_path() / "../share/packattn/site"};
  for (const fs::path& place : places) {
    if (fs::is_regular_file(place / "index.html", error)) return place;
  }
  return {};
}

}  // namespace

int serve_command(const ServeRequest& request) {
  // Before any thread is there, so that all of them leave the signals to sigwait.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const std::optional<fs::path> site = site_of(request);
  const WebService service(site);
  const Daemon daemon = start(service, request.port);
  const MHD_DaemonInfo* info = MHD_get_daemon_info(daemon.get(), MHD_DAEMON_INFO_BIND_PORT);
  fmt::print("http://127.0.0.1:{}/  {}; Ctrl-C ends\n", info != nullptr ? info->port : request.port,
             site ? site->string() : "no site here, /api only");
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  return exit_ok;
}

}  // namespace packattn::cli
