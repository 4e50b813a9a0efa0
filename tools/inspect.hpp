// The source of what `cairn inspect` shows. Does not include LibTorch, which inspecting most
// checkpoints does not need.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <cairn/planning/metadata.hpp>

namespace cairn::tools {

struct InspectedValue {
  std::string text;    // as `value_text` returns it
  std::string opaque;  // the class name of an opaque value; "" for others
};

struct InspectSource {
  std::string name;      // for messages
  std::string writer;    // as TensorSource::writer
  bool is_file = false;  // no rank wrote it, and nothing is known of places in it
  std::shared_ptr<const Metadata> metadata;
  // Reads a value that is no tensor. Throws if that is impossible.
  std::function<InspectedValue(const std::string& fqn, std::size_t length_max)> value;
};

// Opens what open_tensor_source opens, and throws what that throws. In `cairn`, this and
// `InspectSource::value` may become cairn-tensors, which starts the command anew: call them
// before any output.
InspectSource open_inspect_source(const std::string& place);

}  // namespace cairn::tools
