// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "device_memory.h"
#include "fault.h"
#include "input.h"
#include "progress.h"

namespace packattn::cli {
namespace {

using nlohmann::ordered_json;

/// A call that passed its checks, with memory for its outputs.
struct PreparedCall {
  Call call;
  std::map<std::string, TensorView*> outputs;
  std::vector<std::unique_ptr<std::byte[]>> memory;
  DeviceMemory on_device;

  bool moves() const { return !call.device.is_host(); }
  std::byte* take(const TensorView& view) {
    const auto bytes = static_cast<std::size_t>(view.numel()) * size_of(view.dtype());
    auto& block = memory.emplace_back(new (std::nothrow) std::byte[bytes + 1]);
    if (!block) fail(Code::out_of_memory, {.value = std::to_string(bytes)});
    return block.get();
  }
};

Call read_call(const Input& input, const OptionTexts& given) {
  OptionTexts options = input.options();
  for (const auto& [name, text] : given) options[name] = text;
  Call call;
  call.op = options.contains("op") ? parse_op(options["op"]) : input.usual_op();
  input.bind(call);
  apply_options(call, options);
  return call;
}

// Only a call that passed its checks gets here, so the sizes are no more than the file's own.
void allocate_outputs(PreparedCall& prepared) {
  for (auto& [name, view] : prepared.outputs) {
    if (prepared.moves()) {  // where the state has been copied to already
      if (name != "state") *view = prepared.on_device.make(*view, prepared.call.device);
      continue;
    }
    std::byte* memory = prepared.take(*view);
    if (name == "state") {
      std::memcpy(memory, view->data(),
                  static_cast<std::size_t>(view->numel()) * size_of(view->dtype()));
    }
    *view = {memory, view->dtype(), Device{}, shape_of(*view)};
  }
}

void move_inputs(PreparedCall& prepared) {
  if (!prepared.moves()) return;
  for (TensorView* x : tensors_of(prepared.call)) {
    *x = prepared.on_device.copy(*x, prepared.call.device);
  }
}

void bring_outputs_back(PreparedCall& prepared) {
  if (!prepared.moves()) return;
  for (auto& [name, view] : prepared.outputs) {
    std::byte* memory = prepared.take(*view);
    DeviceMemory::fetch(*view, memory);
    *view = {memory, view->dtype(), Device{}, shape_of(*view)};
  }
}

// The state in the file is read-only; the check must see what the run will see.
void make_state_writable(Call& call) {
  TensorView* state = call.state();
  if (!state || !state->present() || state->rank() > TensorView::max_rank) return;
  *state = {state->data(), state->dtype(), state->device(), shape_of(*state)};
}

ordered_json summary(const TensorView& view) {
  return {{"dtype", to_string(view.dtype())}, {"shape", shape_of(view)}};
}

std::string running_implementation(const Call& call, const PackedBatch* batch) {
  if (!call.context.implementation.empty()) return call.context.implementation;
  for (const Verdict& verdict : why(call, batch)) {
    if (!verdict.declined) return verdict.implementation;
  }
  fail(Code::internal, {.argument = "run", .value = "no implementation takes a checked call"});
}

void print_summary(const PreparedCall& prepared, const CallRequest& request,
                   const PackedBatch* batch, const std::string& implementation, double seconds) {
  if (request.json) {
    ordered_json result{
        {"op", to_string(prepared.call.op)},
        {"implementation", implementation},
        {"seconds", seconds},
        {"outputs", ordered_json::object()},
        {"written", request.output.empty() ? ordered_json() : ordered_json(request.output)}};
    for (const auto& [name, view] : prepared.outputs) result["outputs"][name] = summary(*view);
    fmt::print("{}\n", result.dump(2, ' ', false, ordered_json::error_handler_t::replace));
    return;
  }
  fmt::print("{}\n", describe(prepared.call, batch));
  fmt::print("ran {} in {:.3f} ms\n", implementation, seconds * 1e3);
  for (const auto& [name, view] : prepared.outputs) {
    fmt::print("  {} {} {}\n", name, view->shape_string(), to_string(view->dtype()));
  }
  if (!request.output.empty()) fmt::print("wrote {}\n", request.output);
}

}  // namespace

int check_command(const CallRequest& request) {
  const Input input(request.input);
  Call call = read_call(input, request.options);
  make_state_writable(call);
  static_cast<void>(place_outputs(call));
  const std::vector<Fault> faults = check(call);
  if (!faults.empty()) return report(faults, request.json);
  if (request.json) {
    fmt::print("{{\"faults\":[]}}\n");
    return exit_ok;
  }
  const auto batch = make_batch(call);
  fmt::print("no faults\n{}\n", describe(call, batch ? &*batch : nullptr));
  return exit_ok;
}

int why_command(const CallRequest& request) {
  const Input input(request.input);
  Call call = read_call(input, request.options);
  make_state_writable(call);
  static_cast<void>(place_outputs(call));
  // A forced name is a question about that one; the list answers it with all the others.
  call.context.implementation.clear();
  const std::vector<Fault> faults = check(call);
  if (!faults.empty()) return report(faults, request.json);
  const auto batch = make_batch(call);
  const std::vector<Verdict> verdicts = why(call, batch ? &*batch : nullptr);

  auto list = ordered_json::array();
  bool first = true;
  for (const Verdict& verdict : verdicts) {
    ordered_json row{{"implementation", verdict.implementation}, {"runs", false}};
    if (verdict.declined) {
      row["code"] = code_id(verdict.declined->code);
      row["reason"] = verdict.declined->message;
    } else {
      row["runs"] = std::exchange(first, false);
    }
    list.push_back(row);
    if (request.json) continue;
    const std::string text =
        verdict.declined
            ? fmt::format("no: {} [{}]", verdict.declined->message, code_id(verdict.declined->code))
        : row["runs"] ? "yes, and it is the one that runs"
                      : "yes";
    fmt::print("{:<28} {}\n", verdict.implementation, text);
  }
  if (request.json)
    fmt::print("{}\n", list.dump(2, ' ', false, ordered_json::error_handler_t::replace));
  return exit_ok;
}

int run_command(const CallRequest& request) {
  const Input input(request.input);
  if (!input.has_data()) {
    fail(Code::command_line,
         {.argument = request.input, .value = "a description has no data to run on; see check"});
  }
  PreparedCall prepared{read_call(input, request.options), {}, {}, {}};
  move_inputs(prepared);
  make_state_writable(prepared.call);
  prepared.outputs = place_outputs(prepared.call);
  if (const auto faults = check(prepared.call); !faults.empty()) throw Error(faults);
  allocate_outputs(prepared);

  const auto batch = make_batch(prepared.call);
  const PackedBatch* boundaries = batch ? &*batch : nullptr;
  Progress progress(!request.quiet && !request.json);
  prepared.call.context.progress = [&](std::int64_t done, std::int64_t total) {
    progress(done, total);
  };
  const std::string implementation = running_implementation(prepared.call, boundaries);
  const auto start = std::chrono::steady_clock::now();
  run(prepared.call, boundaries);
  if (prepared.moves()) DeviceMemory::wait(prepared.call.device);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  bring_outputs_back(prepared);

  if (!request.output.empty()) {
    std::map<std::string, TensorView> tensors;
    for (const auto& [name, view] : prepared.outputs) tensors[name] = *view;
    save_safetensors(request.output, tensors,
                     {{"packattn.op", to_string(prepared.call.op)},
                      {"packattn.implementation", implementation},
                      {"packattn.version", std::string(version())}});
  }
  if (!request.quiet) print_summary(prepared, request, boundaries, implementation, elapsed.count());
  return exit_ok;
}

}  // namespace packattn::cli
