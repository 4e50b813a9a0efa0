// Writes the checkpoints that the tests of `cairn` inspect: make_checkpoint DIRECTORY [OPTION...]
//   --step N              the step, in place of 7
//   --metadata KEY=VALUE  an entry of the user metadata
//   --complex             adds a complex tensor
//   --set KEY,INDEX,NUMBER   element INDEX of model.KEY, in row-major order
//   --grid                other tensors, from four ranks: sharded by rows and columns, along one
//                         dimension, and in three dimensions
//   --more                adds to these values that all ranks hold, and one of each rank's own
//   --parts               the same, but each rank saves its part for itself
//   --zstd                compresses tensors
//   --seeds               adds a value that differs between the ranks
//   --odd                 adds entries of which size, type, kind or path differs on one rank
//   --donor DIRECTORY     saves there first, and takes all tensors over from there
//   --overlap             adds a tensor of which the ranks hold overlapping rows
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/in_process_world.hpp>

namespace {

cairn::Dict small_model() {
  return {{"weight", torch::arange(12, torch::kFloat32).reshape({3, 4})},
          {"bias", torch::arange(5, torch::kFloat32).to(torch::kBFloat16)},
          {"flags", torch::tensor({true, false, true})},
          {"count", torch::tensor(41, torch::kInt64)},
          {"transposed", torch::arange(6, torch::kFloat64).reshape({2, 3}).t()},
          {"empty", torch::empty({0, 4})}};
}

void set_element(cairn::Dict& model, const std::string& what) {
  std::istringstream text(what);
  std::string key, index, number;
  std::getline(text, key, ',');
  std::getline(text, index, ',');
  std::getline(text, number);
  torch::Tensor changed = model.at(key).tensor().contiguous().clone();
  changed.view(-1)[std::stoll(index)] = std::strtod(number.c_str(), nullptr);
  model[key] = changed;
}

struct More {
  bool values = false, parts = false, seeds = false, odd = false, overlap = false;
};

void save_grid(const std::string& directory, const cairn::SaveOptions& options, const More& more) {
  cairn::testing::on_all_ranks(4, [&](cairn::World& world) {
    const auto cut = [&](const torch::Tensor& whole, std::vector<std::int64_t> mesh, std::vector<cairn::Placement> placements) {
      return cairn::ShardedTensor::distribute(whole, cairn::DeviceMesh(std::move(mesh)), placements, world.rank());
    };
    cairn::StateDict state{
        {"grid", cut(torch::arange(48, torch::kFloat32).reshape({6, 8}), {2, 2}, {cairn::Shard{0}, cairn::Shard{1}})},
        {"line", cut(torch::arange(10, torch::kInt64), {4}, {cairn::Shard{0}})},
        {"cube", cut(torch::arange(24, torch::kFloat32).reshape({4, 3, 2}), {4}, {cairn::Shard{0}})}};
    if (more.values) {
      state.insert("short", cut(torch::arange(2, torch::kFloat32), {4}, {cairn::Shard{0}}));  // nothing on ranks 2 and 3
      state.insert("copy", torch::arange(6, torch::kFloat32));
      state.insert("epoch", 3);
      state.insert("own", cairn::per_rank(10 * world.rank()));
    }
    if (more.seeds) state.insert("seed", world.rank() / 2);
    if (more.odd) {
      const bool is_odd = world.rank() == 1;
      state.insert("size", torch::ones({is_odd ? 2 : 3}));
      state.insert("type", torch::ones({3}, is_odd ? torch::kFloat64 : torch::kFloat32));
      if (is_odd)
        state.insert("kind", 1);
      else
        state.insert("kind", torch::ones({3}));
      if (is_odd)
        state.insert("pa.th", 1);
      else
        state.insert("pa", cairn::Dict{{"th", 1}});
      // Rank 1 holds nothing of it.
      state.insert("none", is_odd ? cairn::ShardedTensor({9}, cairn::DType::kFloat32, {})
                                  : cairn::ShardedTensor({3}, cairn::DType::kFloat32, {{torch::ones({3}), {0}}}));
    }
    if (more.overlap)
      state.insert("rows", cairn::ShardedTensor({9}, cairn::DType::kFloat32, {{torch::ones({3}), {2 * world.rank()}}}));
    cairn::SaveOptions own = options;
    own.world = world;
    own.use_collectives = !more.parts;
    cairn::save(state, directory, own);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    cairn::Dict model = small_model();
    cairn::SaveOptions options;
    options.step = 7;
    options.user_metadata = {{"note", "for the tests"}};
    bool with_complex = false, grid = false;
    std::string donor;
    More more;
    for (int i = 2; i < argc; ++i) {
      const std::string option = argv[i];
      if (option == "--complex") {
        with_complex = true;
      } else if (option == "--grid") {
        grid = true;
      } else if (option == "--more") {
        more.values = grid = true;
      } else if (option == "--parts") {
        more.parts = more.values = grid = true;
      } else if (option == "--zstd") {
        options.writer.zstd_level = 1;
      } else if (option == "--seeds") {
        more.seeds = true;
      } else if (option == "--odd") {
        more.odd = true;
      } else if (option == "--overlap") {
        more.overlap = true;
      } else if (i + 1 == argc) {
        return 2;
      } else if (option == "--step") {
        options.step = std::stoll(argv[++i]);
      } else if (option == "--metadata") {
        const std::string pair = argv[++i];
        options.user_metadata[pair.substr(0, pair.find('='))] = pair.substr(pair.find('=') + 1);
      } else if (option == "--donor") {
        donor = argv[++i];
      } else if (option == "--set") {
        set_element(model, argv[++i]);
      } else {
        return 2;
      }
    }
    if (grid) {
      save_grid(argv[1], options, more);
      return 0;
    }
    cairn::StateDict state{{"model", model},
                           // above the size from which payloads are page-aligned
                           {"large", torch::arange(70'000, torch::kInt32)},
                           {"step", *options.step},
                           {"name", "grün"}};
    if (with_complex) state.insert("complex", torch::zeros({2}, torch::kComplexFloat));
    cairn::Checkpointer checkpointer(cairn::World::single());
    if (!donor.empty()) {
      options.writer.reuse = cairn::Reuse::kDeclared;
      state["model"] = cairn::frozen(state["model"]);
      state["large"] = cairn::frozen(state["large"]);
      checkpointer.save(state, donor, options);
    }
    checkpointer.save(state, argv[1], options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
