// The smallest program that uses Cairn: saves a state and loads it into another one, in a world of
// one rank.
#include <iostream>

#include <cairn/runtime/cairn.hpp>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: embed DIRECTORY\n";
    return 2;
  }
  const std::string checkpoint = cairn::child_url(argv[1], "step_7");
  try {
    const cairn::StateDict state{{"weights", torch::arange(12, torch::kFloat32).reshape({3, 4})}, {"step", 7}};
    cairn::save(state, checkpoint);

    cairn::StateDict restored{{"weights", torch::zeros({3, 4})}, {"step", 0}};
    cairn::load(restored, checkpoint);
    std::cout << "Cairn " << cairn::kVersion << " saved " << cairn::read_metadata(checkpoint).save_id << '\n'
              << "step " << restored["step"].to_int() << '\n'
              << restored["weights"].tensor() << '\n';
    return torch::equal(restored["weights"].tensor(), state.at("weights").tensor()) ? 0 : 1;
  } catch (const cairn::Error& error) {
    std::cerr << "embed: " << error.what() << '\n';
    return 1;
  }
}
