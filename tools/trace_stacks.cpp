// The stacks of threads in traces, for `cairn trace explain`, with the names that addr2line gives.
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <cairn/tools/terminal.hpp>
#include <cairn/tools/trace.hpp>

namespace cairn::tools {
namespace {

constexpr std::size_t kStacksShown = 64;
constexpr std::size_t kFramesShown = 64;     // of each stack
constexpr std::size_t kFunctionShown = 120;  // bytes of a function's name

struct TracedStack {
  const ObservedEvent* thread = nullptr;                      // the kStack event
  std::vector<std::pair<std::string, std::uint64_t>> frames;  // module and offset
};

struct Function {
  std::string name;
  std::string place;  // file and line; "" if unknown
};
// By module and offset. Inlined functions come before those that contain them.
using Functions = std::map<std::pair<std::string, std::uint64_t>, std::vector<Function>>;

std::vector<TracedStack> stacks_of(const Trace& trace, std::optional<int> rank) {
  std::vector<TracedStack> stacks;
  for (const auto& [whose, events] : trace.events) {
    if (rank && whose != *rank) continue;
    std::map<std::uint64_t, std::size_t> by_id;
    for (const auto& event : events) {
      if (event.kind == EventKind::kStack && stacks.size() < kStacksShown) {
        by_id.emplace(event.id, stacks.size());
        stacks.push_back({&event, {}});
      }
      if (event.kind != EventKind::kFrame) continue;
      const auto found = by_id.find(event.cause);
      if (found == by_id.end() || stacks[found->second].frames.size() == kFramesShown) continue;
      stacks[found->second].frames.emplace_back(event.name, event.number);
    }
  }
  return stacks;
}

std::string in_quotes(const std::string& text) {
  std::string quoted = "'";
  for (const char letter : text) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
  return quoted + "'";
}

std::string output_of(const std::string& command) {
  std::string output;
  FILE* const pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) return output;
  char block[4096];
  for (std::size_t taken = 0; (taken = std::fread(block, 1, sizeof block, pipe)) > 0;) output.append(block, taken);
  ::pclose(pipe);
  return output;
}

// Returns whether the file is the one that the process had loaded: it is there, and was not changed
// since.
// Programs that install libraries set st_mtime, but not st_ctime.
bool is_same_module(const std::string& path, WallTime loaded) {
  struct stat status {};
  if (path.empty() || path[0] != '/' || path.find('\0') != std::string::npos || ::stat(path.c_str(), &status) != 0) return false;
  const auto is_before = [&](const timespec& time) {
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec) <= loaded.time_since_epoch();
  };
  return S_ISREG(status.st_mode) && is_before(status.st_mtim) && is_before(status.st_ctim);
}

Functions functions_of(const std::vector<TracedStack>& stacks) {
  std::map<std::string, std::string> offsets;  // by module, as arguments
  for (const auto& stack : stacks)
    for (const auto& [module, offset] : stack.frames)
      if (is_same_module(module, stack.thread->wall_time)) offsets[module] += fmt::format(" 0x{:x}", offset);
  Functions functions;
  for (const auto& [module, arguments] : offsets) {
    // -a: each address comes before its functions, which have two lines each.
    const std::string asked = " -a -i -f -C -e " + in_quotes(module) + arguments + " 2>/dev/null";
    std::istringstream lines(output_of("export DEBUGINFOD_URLS=; addr2line" + asked + " || llvm-addr2line" + asked));
    std::vector<Function>* of_address = nullptr;
    for (std::string name, place; std::getline(lines, name);) {
      if (name.rfind("0x", 0) == 0) {
        of_address = &functions[{module, std::strtoull(name.c_str(), nullptr, 16)}];
        of_address->clear();
      } else if (std::getline(lines, place) && of_address != nullptr && name != "??") {
        // "a.cpp:12 (discriminator 2)", or "a.cpp:?" without debug information.
        const std::size_t colon = std::min(place.rfind(':'), place.size());
        const int line = colon == place.size() ? 0 : std::atoi(place.c_str() + colon + 1);
        of_address->push_back({name, line == 0 ? "" : fmt::format("{}:{}", place.substr(0, colon), line)});
      }
    }
  }
  return functions;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string title_of(const ObservedEvent& thread) {
  std::string text = fmt::format("Stack of rank {} in {} (its {})", thread.rank, name_of(thread), to_string(thread.actor));
  if (thread.phase) text += fmt::format(", in {}", to_string(*thread.phase));
  text += fmt::format(", after {}", human_duration(thread.duration));
  if (!thread.ok) text += ", could not be taken";
  return thread.text.empty() ? text : text + ": " + printable(std::string(thread.text));
}

}  // namespace

Json trace_stacks(const OpenedTrace& opened, std::optional<int> rank, bool print) {
  const auto stacks = stacks_of(opened.trace, rank);
  const Functions functions = functions_of(stacks);
  Json json = Json::array();
  const TracedStack* previous = nullptr;
  for (const auto& stack : stacks) {
    const std::string title = title_of(*stack.thread);
    const bool is_as_above = previous != nullptr && !stack.frames.empty() && previous->frames == stack.frames;
    if (print) print_line(title + (is_as_above ? "; the same as above" : ""), kTraceIndent);
    Json frames = Json::array();
    std::size_t number = 0;
    for (const auto& frame : stack.frames) {
      const auto& [module, offset] = frame;
      const auto found = functions.find(frame);
      const bool is_known = found != functions.end() && !found->second.empty();
      const std::string place = fmt::format("{}+0x{:x}", module.empty() ? "?" : last_part(module), offset);
      for (const auto& function : is_known ? found->second : std::vector<Function>{{"", ""}}) {
        frames.push_back({{"module", module}, {"offset", offset}, {"function", function.name}, {"place", function.place}});
        if (!print || is_as_above) continue;
        const std::string name =
            function.name.size() > kFunctionShown ? function.name.substr(0, kFunctionShown) + "…" : function.name;
        const std::string line =
            name.empty() ? place
                         : fmt::format("{}  ({}{}{})", name, last_part(function.place), function.place.empty() ? "" : ", ", place);
        print_line(fmt::format("  {:>2}  {}", number, printable(line)), kTraceIndent);
      }
      ++number;
    }
    if (print) std::cout << '\n';
    previous = &stack;
    json.push_back({{"title", title}, {"rank", stack.thread->rank}, {"steps", Json::array()}, {"frames", std::move(frames)}});
  }
  return json;
}

}  // namespace cairn::tools
