// The part of `cairn` that only cairn-tensors has.

#include <cairn/base/error.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/inspect.hpp>
#include <cairn/tools/tensor_source.hpp>
#include <cairn/tools/value_text.hpp>

namespace cairn::tools {

void become_program_for(int /*argc*/, char** /*argv*/) {}

void become_tensor_program() { throw InternalError("this is cairn-tensors already"); }

void add_tensor_commands(CLI::App& app, Run& chosen) {
  for (const auto add : {add_verify, add_cat, add_diff, add_convert, add_merge}) add(app, chosen);
}

InspectSource open_inspect_source(const std::string& place) {
  const std::shared_ptr<TensorSource> opened = open_tensor_source(place, CheckParts::kNo);
  InspectSource source;
  source.name = opened->name();
  source.writer = opened->writer();
  const auto files = tensor_files_at(place);
  source.is_file = !files.empty() && opened->writer() != std::string_view("torch_checkpointing");
  source.metadata = std::shared_ptr<const Metadata>(opened, &opened->metadata());
  source.value = [opened](const std::string& fqn, std::size_t length_max) -> InspectedValue {
    const Value value = opened->read_value(fqn);
    return {value_text(value, length_max), value.is_opaque() ? value.opaque().name() : ""};
  };
  return source;
}

}  // namespace cairn::tools
