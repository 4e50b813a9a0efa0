// Writes the checkpoint that the tests of `cairn` look at: make_checkpoint DIRECTORY [--complex]
#include <cstring>
#include <iostream>

#include <torch/torch.h>

#include <cairn/runtime/cairn.hpp>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    cairn::StateDict state{{"model", cairn::Dict{{"weight", torch::arange(12, torch::kFloat32).reshape({3, 4})},
                                                 {"bias", torch::arange(5, torch::kFloat32).to(torch::kBFloat16)},
                                                 {"flags", torch::tensor({true, false, true})},
                                                 {"count", torch::tensor(41, torch::kInt64)},
                                                 {"transposed", torch::arange(6, torch::kFloat64).reshape({2, 3}).t()},
                                                 {"empty", torch::empty({0, 4})}}},
                           {"large", torch::arange(70'000, torch::kInt32)},  // above the size from which payloads lie on pages
                           {"step", 7},
                           {"name", "grün"}};
    if (argc > 2 && std::strcmp(argv[2], "--complex") == 0) state.insert("complex", torch::zeros({2}, torch::kComplexFloat));
    cairn::SaveOptions options;
    options.step = 7;
    options.user_metadata = {{"note", "for the tests"}};
    cairn::save(state, argv[1], options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
