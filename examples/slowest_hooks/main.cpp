// A custom analysis: prints the hooks that took longest on any rank, over all saves and loads in a
// directory of traces.
#include <iostream>
#include <map>

#include <cairn/tracing/trace_directory.hpp>

int main(int argc, char** argv) try {
  const cairn::TraceDirectory traces(argc > 1 ? argv[1] : ".");
  std::multimap<double, std::string> hooks;
  for (const auto& attempt : traces.attempts()) {
    const cairn::Trace trace = traces.read(attempt);
    for (const auto& [rank, events] : trace.events)
      for (const auto& event : events)
        if (event.kind == cairn::EventKind::kOperation)
          hooks.emplace(-std::chrono::duration<double>(event.duration).count(),
                        std::string(event.name) + " of rank " + std::to_string(rank) + ", " + attempt.describe());
  }
  std::size_t shown = 0;
  for (const auto& [seconds, what] : hooks)
    if (++shown <= 10) std::cout << -seconds << " s  " << what << '\n';
} catch (const cairn::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
