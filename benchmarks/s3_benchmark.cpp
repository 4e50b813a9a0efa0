// Saves a state to a bucket and loads it again, and prints how long each took and how much memory
// it needed beside the state. benchmarks/s3.py compares the times with curl's.
//
// usage: cairn_s3_benchmark URL MIB
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include <torch/torch.h>

#include <cairn/runtime/cairn.hpp>

namespace {

double mib_of_process(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(field + ":", 0) == 0) return std::stod(line.substr(field.size() + 1)) / 1024;
  return 0;
}

// Prints seconds, and by how many MiB the process grew at most.
template <class Work>
void measure(const char* name, Work work) {
  std::ofstream("/proc/self/clear_refs") << "5\n";  // the peak counts from here
  const double before = mib_of_process("VmRSS");
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%s %.6f %.1f\n", name, seconds.count(), mib_of_process("VmHWM") - before);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s URL MIB\n", argv[0]);
    return 2;
  }
  try {
    const std::string url = argv[1];
    const std::int64_t tensors = std::stoll(argv[2]) / 16;
    cairn::StateDict state;
    for (std::int64_t i = 0; i < tensors; ++i) state["tensor " + std::to_string(i)] = torch::rand({4 << 20});  // 16 MiB
    const cairn::World world = cairn::World::single();
    cairn::Checkpointer checkpointer(world);
    // Connections and threads are there, as in a trainer that has saved before.
    checkpointer.save({{"first", 1}}, cairn::child_url(url, "first"));
    measure("save", [&] { checkpointer.save(state, cairn::child_url(url, "measured")); });
    measure("load", [&] { checkpointer.load(state, cairn::child_url(url, "measured")); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
