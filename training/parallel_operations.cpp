#include <algorithm>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/training/distributed_tensor.hpp>
#include <cairn/training/parallel_parameter.hpp>

namespace cairn::training {
namespace {

const TensorPlacement kLastCut = Shard{-1};

Extents with_last(const torch::Tensor& tensor, std::int64_t last) {
  Extents size = extents_of(tensor.sizes());
  size[size.size() - 1] = last;
  return size;
}

// Converts an activation from one placement to another.
torch::Tensor laid_out(const torch::Tensor& local, const Extents& size, const ParallelParameter& parameter,
                       const TensorPlacement& from, const TensorPlacement& to) {
  return DistributedTensor::from_local(local, size, parameter.mesh, {from}).redistribute({to}).local();
}

// Returns a tensor that every rank has whole, but uses for its own part of the work.
torch::Tensor used_in_parts(const torch::Tensor& whole, const ParallelParameter& parameter) {
  // Each rank's gradient covers its own part of the work. Marked as Partial, the backward pass adds
  // them up.
  return DistributedTensor::from_local(whole, extents_of(whole.sizes()), parameter.mesh, {Replicate{}}).to_local({Partial{}});
}

torch::Tensor added_up(const torch::Tensor& addend, const ParallelParameter& parameter) {
  return laid_out(addend, extents_of(addend.sizes()), parameter, Partial{}, Replicate{});
}

torch::Tensor output_of_columns(const torch::Tensor& part, std::int64_t features, const ParallelParameter& parameter) {
  if (!parameter.gather_output) return part;
  return laid_out(part, with_last(part, features), parameter, kLastCut, Replicate{});
}

bool is_cut_in_rows(const ParallelArgument& weight) { return weight.dim() == 0; }
std::int64_t whole_size(const ParallelArgument& argument, std::size_t dim) {
  return argument.parameter->size[argument.transposed ? 1 - dim : dim];
}

void check_features(const torch::Tensor& input, std::int64_t expected, const ParallelParameter& parameter, const char* what) {
  if (input.dim() >= 1 && input.size(-1) == expected) return;
  throw Error(
      ErrorCode::kMismatch,
      "parallel layer: \"" + parameter.name + "\" takes " + std::to_string(expected) + " features (" + what +
          "), its input has the size " + to_string(extents_of(input.sizes())) +
          "; column-wise layers give parts unless gather_output is set, row-wise ones take parts unless input_is_parallel is off");
}

// Returns this rank's part of the input, for a weight that is cut in rows.
torch::Tensor input_of_rows(const torch::Tensor& input, const ParallelArgument& weight) {
  const ParallelParameter& parameter = *weight.parameter;
  if (parameter.input_is_parallel) {
    check_features(input, parameter.part.size(parameter.dim), parameter, "this rank's part");
    return input;
  }
  check_features(input, whole_size(weight, 0), parameter, "the whole");
  return laid_out(input, extents_of(input.sizes()), parameter, Replicate{}, kLastCut);
}

torch::Tensor input_of_columns(const torch::Tensor& input, const ParallelArgument& weight) {
  check_features(input, whole_size(weight, 0), *weight.parameter, "the whole");
  return used_in_parts(input, *weight.parameter);
}

}  // namespace

torch::Tensor ParallelArgument::local() const {
  const torch::Tensor part = detached ? parameter->part.detach() : parameter->part;
  return transposed ? part.t() : part;
}

torch::Tensor parallel_product(const torch::Tensor& input, const ParallelArgument& weight) {
  if (is_cut_in_rows(weight)) return added_up(at::matmul(input_of_rows(input, weight), weight.local()), *weight.parameter);
  return output_of_columns(at::matmul(input_of_columns(input, weight), weight.local()), whole_size(weight, 1), *weight.parameter);
}

torch::Tensor parallel_affine(const torch::Tensor& bias, const ParallelArgument* parallel_bias, const torch::Tensor& input,
                              const ParallelArgument& weight, const at::Scalar& beta, const at::Scalar& alpha) {
  if (is_cut_in_rows(weight)) {
    if (parallel_bias != nullptr) {
      throw Error(ErrorCode::kUnsupported, "parallel layer: \"" + parallel_bias->parameter->name +
                                               "\" is cut, and cannot be added to the whole output of \"" + weight.parameter->name +
                                               '"');
    }
    // The sum over ranks comes first. A bias that each rank added before it would be added several
    // times.
    torch::Tensor output = parallel_product(input, weight);
    if (alpha.toDouble() != 1) output = output * alpha;
    return bias.defined() ? at::add(output, bias.to(output.scalar_type()), beta) : output;  // autocast has cast the output only
  }
  const torch::Tensor own_bias = parallel_bias != nullptr ? parallel_bias->local() : bias;
  if (own_bias.defined() && own_bias.size(-1) != weight.local().size(1)) {
    throw Error(ErrorCode::kMismatch, "parallel layer: what is added to the output of \"" + weight.parameter->name + "\" has " +
                                          std::to_string(own_bias.size(-1)) + " features, this rank's part of the output " +
                                          std::to_string(weight.local().size(1)));
  }
  const torch::Tensor whole = input_of_columns(input, weight);
  const torch::Tensor part =
      own_bias.defined() ? at::addmm(own_bias, whole, weight.local(), beta, alpha) : at::matmul(whole, weight.local()) * alpha;
  return output_of_columns(part, whole_size(weight, 1), *weight.parameter);
}

torch::Tensor parallel_bias(const torch::Tensor& output, const ParallelArgument& bias) {
  const ParallelParameter& parameter = *bias.parameter;
  torch::Tensor own = bias.local();
  // Clone: the part may have no memory until an operation reads it.
  if (parameter.gather_output) own = laid_out(own.clone(), parameter.size, parameter, Shard{0}, Replicate{});
  check_features(output, own.size(0), parameter, parameter.gather_output ? "the whole" : "this rank's part");
  return own;
}

torch::Tensor parallel_embedding(const ParallelArgument& weight, const torch::Tensor& indices, std::int64_t padding_index) {
  const ParallelParameter& parameter = *weight.parameter;
  const torch::Tensor part = weight.local();
  if (parameter.dim == 1) return output_of_columns(at::embedding(part, indices, padding_index), parameter.size[1], parameter);
  // A plain layer reports an index out of range; here it would look like an index of another rank.
  if (indices.is_cpu() && indices.numel() > 0 &&
      (indices.min().item<std::int64_t>() < 0 || indices.max().item<std::int64_t>() >= parameter.size[0])) {
    throw Error(ErrorCode::kInvalidArgument, "parallel layer: an index is out of range for the " +
                                                 std::to_string(parameter.size[0]) + " rows of \"" + parameter.name + '"');
  }
  // On a device, the device reports the error, as for a plain layer.
  if (!indices.is_cpu() && indices.numel() > 0) at::_assert_async((indices >= 0).logical_and(indices < parameter.size[0]).all());
  const std::int64_t count = part.size(0);
  const std::int64_t chunk = (parameter.size[0] + parameter.group().size() - 1) / parameter.group().size();
  const std::int64_t begin = std::min(parameter.size[0], chunk * parameter.group().rank());
  torch::Tensor found;
  if (count == 0) {
    auto sizes = indices.sizes().vec();
    sizes.push_back(parameter.size[1]);
    // This rank adds zeros. `part.sum()` of an empty part connects the result to the graph, so that
    // all ranks get gradients and send the same messages.
    found = at::zeros(sizes, part.options().requires_grad(false)) + part.sum();
  } else {
    // Indices of other ranks' rows look up row 0 and become zeros, so that the sum over ranks has
    // each row once.
    const torch::Tensor elsewhere = (indices < begin).logical_or(indices >= begin + count);
    const bool padding_is_here = padding_index >= begin && padding_index < begin + count;
    found = at::embedding(part, (indices - begin).masked_fill(elsewhere, 0), padding_is_here ? padding_index - begin : -1)
                .masked_fill(elsewhere.unsqueeze(-1), 0);
  }
  return added_up(found, parameter);
}

}  // namespace cairn::training
