#include <cairn/training/parallelize.hpp>

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/training/distributed_tensor.hpp>
#include <cairn/training/parallel_parameter.hpp>
#include <cairn/training/parameter_layout.hpp>
#include <cairn/training/sharded_unit.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training {
namespace {

using torch::nn::Module;

bool name_matches(std::string pattern, std::string name) {
  // As in a path, a '*' does not match across the separators.
  for (std::string* const text : {&pattern, &name}) std::replace(text->begin(), text->end(), '.', '/');
  return pattern.empty() == name.empty() && ::fnmatch(pattern.c_str(), name.c_str(), FNM_PATHNAME) == 0;
}

// A parameter to be cut.
struct Cut {
  std::string name;  // relative to the parallelized module
  torch::Tensor whole;
  std::int64_t dim = 0;
  std::optional<bool> gather_output{};  // nothing if the output is whole anyway
  bool input_is_parallel = true;
};

// Reads the whole plan and collects its problems before the module changes.
class PlanReader {
 public:
  PlanReader(Module& module, const ParallelPlan& plan) {
    const auto modules = module.named_modules("", /*include_self=*/true);
    std::map<const Module*, std::string> taken;  // the pattern that took each module
    for (const auto& [pattern, style] : plan) {
      bool found = false;
      for (const auto& named : modules) {
        if (!name_matches(pattern, named.key())) continue;
        found = true;
        const auto [place, is_new] = taken.emplace(named.value().get(), pattern);
        if (is_new) {
          read(named.key(), *named.value(), style);
        } else {
          problem("\"" + named.key() + "\" is named by \"" + place->second + "\" and by \"" + pattern + '"');
        }
      }
      if (!found) problem("\"" + pattern + "\" names no submodule");
    }
    look_for_ties(module);
    if (!problems_.empty())
      throw Error(ErrorCode::kInvalidArgument,
                  "parallelize " + module.name() + ": the plan does not fit the module; nothing was changed:" + problems_);
  }

  const std::vector<Cut>& cuts() const { return cuts_; }

 private:
  void problem(const std::string& text) { problems_ += "\n  " + text; }

  void read(const std::string& name, Module& layer, const ParallelStyle& style) {
    const auto* const columns = std::get_if<ColwiseParallel>(&style);
    const auto* const rows = std::get_if<RowwiseParallel>(&style);
    const std::string prefix = name.empty() ? "" : name + ".";
    Cut weight{prefix + "weight", {}, columns != nullptr ? 0 : 1};
    if (columns != nullptr) weight.gather_output = columns->gather_output;
    if (rows != nullptr) weight.input_is_parallel = rows->input_is_parallel;
    if (auto* const linear = dynamic_cast<torch::nn::LinearImpl*>(&layer)) {
      weight.whole = linear->weight;
      add(weight);
      // The bias of a row-wise layer stays whole: it is added once, to the sum of all ranks.
      if (columns == nullptr || !linear->bias.defined()) return;
      Cut bias = weight;
      bias.name = prefix + "bias";
      bias.whole = linear->bias;
      add(bias);
    } else if (auto* const embedding = dynamic_cast<torch::nn::EmbeddingImpl*>(&layer)) {
      const auto& options = embedding->options;
      if (options.max_norm()) return problem("\"" + name + "\" has a max_norm, which changes whole rows in forward");
      if (options.scale_grad_by_freq()) return problem("\"" + name + "\" scales gradients by frequency, which no rank knows alone");
      if (options.sparse()) return problem("\"" + name + "\" has sparse gradients");
      weight.whole = embedding->weight;
      weight.dim = 1 - weight.dim;  // embeddings are stored as [rows, features], linear layers as [output, input]
      add(weight);
    } else {
      problem("\"" + name + "\" is a " + layer.name() + "; Linear and Embedding can be cut");
    }
  }

  // A tied parameter is one tensor in two layers. Both must want the same cut.
  void add(const Cut& cut) {
    const std::string the = "\"" + cut.name + "\" ";
    if (is_parallel_handle(cut.whole)) return problem(the + "is parallel already");
    if (cut.whole.key_set().has(kShardedKey)) return problem(the + "is fully sharded; parallelize first");
    if (!cut.whole.is_leaf() || cut.whole.layout() != at::kStrided) return problem(the + "is no plain leaf tensor");
    for (Cut& other : cuts_) {
      if (!other.whole.is_same(cut.whole)) continue;
      const bool differ = other.gather_output && cut.gather_output && other.gather_output != cut.gather_output;
      if (other.dim != cut.dim || differ) return problem(the + "is tied to \"" + other.name + "\", which is cut in another way");
      if (!other.gather_output) other.gather_output = cut.gather_output;
    }
    cuts_.push_back(cut);
  }

  // Finds places that register a parameter which the plan cuts only elsewhere.
  void look_for_ties(Module& module) {
    std::set<std::string> planned;
    for (const Cut& cut : cuts_) planned.insert(cut.name);
    for (const auto& named : module.named_modules("", /*include_self=*/true)) {
      for (const auto& parameter : registered_parameters(*named.value())) {
        const std::string name = (named.key().empty() ? "" : named.key() + ".") + parameter.key();
        if (planned.count(name) > 0) continue;
        for (const Cut& cut : cuts_) {
          if (!cut.whole.is_same(parameter.value())) continue;
          problem("\"" + name + "\" is tied to \"" + cut.name + "\", but the plan does not name it");
          break;
        }
      }
    }
  }

  std::vector<Cut> cuts_;
  std::string problems_;
};

// Ranks with different plans would wait for each other's collectives until the timeout.
void compare_plans(const Module& module, const std::vector<Cut>& cuts, const ProcessMesh& mesh) {
  DigestBuilder digest;
  for (const Cut& cut : cuts) {
    digest.add(ByteSpan(cut.name)).add(cut.dim).add(static_cast<std::int64_t>(cut.gather_output.value_or(false)));
    digest.add(static_cast<std::int64_t>(cut.input_is_parallel));
    digest.add(static_cast<std::int64_t>(cut.whole.requires_grad()));
  }
  for (const auto& parameter : module.named_parameters()) {
    if (unit_behind(parameter.value())) continue;  // its rows differ between ranks
    digest.add(ByteSpan(parameter.key())).add(static_cast<std::int64_t>(parameter.value().scalar_type()));
    for (const std::int64_t size : parameter.value().sizes()) digest.add(size);
  }
  require_same(digest.finish(), mesh.world(), "parallelize " + module.name() + ": ", "cut something else",
               "the plan, and the names, sizes and types of parameters");
}

// Copies the first rank's values of parameters that stay whole. Equal gradients alone would
// preserve initial differences.
void make_alike(const Module& module, const ProcessMesh& mesh) {
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& parameter : module.parameters()) {
    if (unit_behind(parameter) || !groups_cutting(parameter).empty()) continue;
    const torch::Tensor sent = parameter.detach().clone(at::MemoryFormat::Contiguous);
    mesh.world().broadcast(sent, 0);
    parameter.detach().copy_(sent);
  }
}

}  // namespace

void parallelize(Module& module, const ProcessMesh& mesh, const ParallelPlan& plan) {
  if (mesh.axes() != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "parallelize: the mesh has " + std::to_string(mesh.axes()) + " axes; pass one of them, as mesh.along(\"tp\")");
  }
  const PlanReader reader(module, plan);
  // Before anything changes, so that an error leaves the module as it was on every rank.
  compare_plans(module, reader.cuts(), mesh);
  std::map<const void*, torch::Tensor> parts;  // keyed by the whole parameter
  for (const Cut& cut : reader.cuts()) {
    if (parts.count(cut.whole.unsafeGetTensorImpl()) > 0) continue;  // tied to an earlier one
    const DistributedTensor distributed = DistributedTensor::distribute(cut.whole, mesh, {Shard{cut.dim}});
    const torch::Tensor& part = distributed.local();
    part.set_requires_grad(cut.whole.requires_grad());
    distributed.declare();
    make_parallel(cut.whole, std::make_shared<const ParallelParameter>(
                                 ParallelParameter{cut.name, part, distributed.size(), cut.dim, mesh,
                                                   cut.gather_output.value_or(false), cut.input_is_parallel}));
    parts.emplace(cut.whole.unsafeGetTensorImpl(), part);
  }
  for (const auto& inner : module.modules()) {
    for (auto& parameter : registered_parameters(*inner)) {
      const auto part = parts.find(parameter.value().unsafeGetTensorImpl());
      // Optimizers and state dicts find the part here. The layer's own member keeps the handle.
      if (part != parts.end()) parameter.value() = part->second;
    }
  }
  make_alike(module, mesh);
}

}  // namespace cairn::training
