// `cairn inspect`: lists the contents of a checkpoint, from its commit record and its small values,
// or of a file, from its pickle or header.
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cairn/base/rank_text.hpp>
#include <cairn/planning/stored_items.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/tensor_source.hpp>
#include <cairn/tools/terminal.hpp>
#include <cairn/tools/value_text.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kInspectExamples = R"(Examples:
  cairn inspect run/step_100                              shows keys as a tree, shapes, and what each rank wrote
  cairn inspect run/step_100 --tensors 'model.*weight'    shows only these keys; * matches any text, including dots
  cairn inspect run/step_100 --chunks                     lists the box, file and offset of each chunk
  cairn inspect run/step_100 --json                       prints everything as JSON
  cairn inspect model.pt                                  reads a torch.save file; also reads safetensors files

Reads the record of a checkpoint and the small values that it shows; with --json, only the record.
Reads only the pickle of a torch.save file, and only the header of a safetensors file.)";

struct InspectOptions {
  std::string checkpoint;
  std::vector<std::string> tensors;  // patterns; none: all keys
  bool json = false;
  bool chunks = false;  // list every chunk in the text form; JSON always does
};

using Entry = std::pair<std::string, Metadata::Entry>;

// The selected part of a checkpoint.
struct Inspected {
  TensorSource& source;
  const Metadata& metadata;
  std::vector<const Entry*> entries;
  std::unordered_map<std::string, const Path*> paths;

  Path path_of(const std::string& fqn) const {
    const auto found = paths.find(fqn);
    return found == paths.end() || found->second->empty() ? Path{fqn} : *found->second;
  }
  std::optional<int> rank_of(const StorageInfo& storage) const {
    return storage.file < metadata.files.size() ? rank_of_file(metadata.files[storage.file].name) : std::nullopt;
  }
};

struct RankShare {
  std::set<std::uint32_t> files;
  std::size_t chunks = 0;
  std::size_t values = 0;
  std::uint64_t bytes = 0;  // of elements and bytes objects
};

// Returns the shares by rank; -1 for files whose names do not give a rank.
std::map<int, RankShare> shares_of(const Inspected& inspected) {
  std::map<int, RankShare> shares;
  for (const Entry* entry : inspected.entries)
    visit_stored(entry->second, [&](const StorageInfo& storage, const TensorStorageMetadata* tensor, const Box* chunk) {
      RankShare& share = shares[inspected.rank_of(storage).value_or(-1)];
      share.files.insert(storage.file);
      ++(tensor ? share.chunks : share.values);
      share.bytes +=
          tensor ? static_cast<std::uint64_t>(volume(chunk->sizes)) * element_size(tensor->properties.dtype) : storage.length;
    });
  return shares;
}

// --- output for programs ---

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string crc_text(std::uint32_t crc32) { return fmt::format("{:08x}", crc32); }

Json json_of(const Inspected& inspected, const StorageInfo& storage) {
  const Metadata& metadata = inspected.metadata;
  const auto rank = inspected.rank_of(storage);
  Json json{{"file", storage.file < metadata.files.size() ? Json(metadata.files[storage.file].name) : Json()},
            {"rank", rank ? Json(*rank) : Json()},
            {"offset", storage.offset},
            {"length", storage.length}};
  if (storage.payload_offset != 0) json["payload_offset"] = storage.payload_offset;
  if (!storage.transforms.empty()) json["transforms"] = storage.transforms;
  return json;
}

Json json_of(const Inspected& inspected, const TensorStorageMetadata& tensor) {
  Json chunks = Json::array();
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    Json chunk{{"offsets", tensor.chunks[i].offsets.to_vector()}, {"sizes", tensor.chunks[i].sizes.to_vector()}};
    if (i < tensor.storage.size()) chunk.update(json_of(inspected, tensor.storage[i]));
    chunks.push_back(std::move(chunk));
  }
  return {{"kind", "tensor"},
          {"dtype", tensor.type_name()},
          {"shape", tensor.size.to_vector()},
          {"bytes", tensor_bytes(tensor)},
          {"requires_grad", tensor.properties.requires_grad},
          {"chunks", std::move(chunks)}};
}

Json json_of(const Inspected& inspected, const BytesStorageMetadata& bytes) {
  Json json{{"kind", "bytes"}};
  if (bytes.storage) json.update(json_of(inspected, *bytes.storage));
  return json;
}

Json json_of(const Inspected& inspected) {
  const Metadata& metadata = inspected.metadata;
  Json json{{"checkpoint", inspected.source.name()},
            {"writer", lower_case(inspected.source.writer())},
            {"writer_version", metadata.commit ? metadata.commit->writer_version : metadata.version},
            {"save_id", metadata.save_id}};
  if (metadata.commit) {
    const CommitInfo& commit = *metadata.commit;
    json["step"] = commit.step ? Json(*commit.step) : Json();
    json["sequence"] = commit.sequence;
    json["world_size"] = commit.world_size;
    json["plan_digest"] = commit.plan_digest;
    json["user_metadata"] = commit.user_metadata;
    for (const auto& [field, bytes] : metadata.later_fields) json["later_fields"].push_back({{"field", field}, {"bytes", bytes}});
  }
  Json keys = Json::array();
  for (const Entry* entry : inspected.entries) {
    Json key{{"key", entry->first}};
    if (const auto path = inspected.paths.find(entry->first); path != inspected.paths.end()) {
      Json elements = Json::array();
      for (const auto& element : *path->second) std::visit([&](const auto& value) { elements.push_back(value); }, element);
      key["path"] = std::move(elements);
    }
    key.update(std::visit([&](const auto& kind) { return json_of(inspected, kind); }, entry->second));
    // The values of a file are in its pickle, which has been read.
    if (inspected.source.is_file() && std::holds_alternative<BytesStorageMetadata>(entry->second))
      if (const std::string opaque = inspected.source.read_value(entry->first).opaque; !opaque.empty()) key["opaque"] = opaque;
    keys.push_back(std::move(key));
  }
  json["keys"] = std::move(keys);
  Json ranks = Json::array();
  for (const auto& [rank, share] : shares_of(inspected))
    ranks.push_back({{"rank", rank < 0 ? Json() : Json(rank)},
                     {"files", share.files.size()},
                     {"chunks", share.chunks},
                     {"values", share.values},
                     {"bytes", share.bytes}});
  json["ranks"] = std::move(ranks);
  Json files = Json::array();
  for (const auto& file : metadata.files) {
    files.push_back({{"name", file.name},
                     {"length", file.length ? Json(*file.length) : Json()},
                     {"crc32", file.crc32 ? Json(crc_text(*file.crc32)) : Json()}});
  }
  json["files"] = std::move(files);
  return json;
}

// --- output for people ---

void print_head(const Inspected& inspected) {
  const Metadata& metadata = inspected.metadata;
  std::uint64_t bytes = 0;
  std::size_t tensors = 0;
  for (const Entry* entry : inspected.entries) {
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry->second)) {
      bytes += tensor_bytes(*tensor);
      ++tensors;
    }
  }
  const auto line = [](const char* name, const std::string& value) { std::cout << fmt::format("{:<13}{}\n", name, value); };
  line(inspected.source.is_file() ? "file" : "checkpoint", inspected.source.name());
  // PyTorch numbers its records, and does not say of which release it was.
  const std::string version = printable(metadata.commit ? metadata.commit->writer_version : metadata.version);
  line("written by",
       std::string(inspected.source.writer()) + (version.empty() ? "" : (metadata.commit ? " " : ", metadata version ") + version));
  if (!metadata.save_id.empty()) line("save id", printable(metadata.save_id));
  if (metadata.commit) {
    const CommitInfo& commit = *metadata.commit;
    if (commit.step) line("step", std::to_string(*commit.step));
    line("sequence", std::to_string(commit.sequence));
    line("world size", std::to_string(commit.world_size));
    for (const auto& [name, value] : commit.user_metadata) line("user", printable(name) + " = " + printable(value));
    for (const auto& [field, size] : metadata.later_fields)
      line("not known", fmt::format("field {} of the record, {} bytes, of a later version", field, size));
  }
  line("tensors", fmt::format("{}, {}", tensors, human_bytes(bytes)));
  line("other values", std::to_string(inspected.entries.size() - tensors));
}

std::string location(const Metadata& metadata, const StorageInfo& storage) {
  const std::string file = storage.file < metadata.files.size() ? printable(metadata.files[storage.file].name) : "?";
  return fmt::format("{} at {}, {} bytes", file, storage.offset, storage.length);
}

std::string ranks_text(const std::set<int>& ranks) {
  return ranks.empty() || *ranks.begin() < 0 ? "" : name_ranks({ranks.begin(), ranks.end()});
}

// A value for people.
struct ShownValue {
  std::string text;
  std::string opaque;  // its class, if it is opaque
};

// The keys as a tree.
class Tree {
 public:
  Tree(const Inspected& inspected, bool chunks) : inspected_(inspected) {
    for (const Entry* entry : inspected.entries) add(*entry);
    add_rows(root_, "", chunks);
  }
  void print() const { table_.print(); }

 private:
  struct Node {
    std::vector<std::pair<std::string, std::unique_ptr<Node>>> children;
    std::unordered_map<std::string, Node*> by_name;
    const Entry* entry = nullptr;
    std::size_t keys = 0;  // below this node
    std::uint64_t bytes = 0;
  };

  void add(const Entry& entry) {
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry.second);
    const auto* value = std::get_if<BytesStorageMetadata>(&entry.second);
    const std::uint64_t bytes = tensor ? tensor_bytes(*tensor) : value->storage ? value->storage->length : 0;
    Node* node = &root_;
    for (const auto& element : inspected_.path_of(entry.first)) {
      const auto* name = std::get_if<std::string>(&element);
      node = child(*node, name ? printable(*name) : fmt::format("[{}]", std::get<std::int64_t>(element)));
      ++node->keys;
      node->bytes += bytes;
    }
    node->entry = &entry;
  }

  Node* child(Node& node, const std::string& name) {
    Node*& found = node.by_name[name];
    if (found == nullptr) {
      node.children.emplace_back(name, std::make_unique<Node>());
      found = node.children.back().second.get();
    }
    return found;
  }

  void add_rows(const Node& node, const std::string& indent, bool chunks) {
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      const auto& [name, below] = node.children[i];
      const bool is_last = i + 1 == node.children.size();
      const bool is_root = &node == &root_;
      const std::string inner = is_root ? "" : indent + (is_last ? "   " : "│  ");
      add_row(*below, coloured(Colour::kDim, is_root ? "" : indent + (is_last ? "└─ " : "├─ ")) + name, inner, chunks);
      add_rows(*below, inner, chunks);
    }
  }

  // Returns the value; empty texts if it is large, cannot be read, or after kReadMax others.
  ShownValue value_of(const std::string& fqn, const BytesStorageMetadata& bytes) {
    constexpr std::uint64_t kBytesMax = 4096;
    constexpr std::size_t kReadMax = 256;  // a remote store takes a request for each
    constexpr std::size_t kTextMax = 40;
    if (bytes.storage && (bytes.storage->length > kBytesMax || values_read_++ >= kReadMax)) return {};
    try {
      const SavedValue value = inspected_.source.read_value(fqn);
      return {printable(value_text(value, kTextMax)), printable(value.opaque)};
    } catch (const std::exception&) {  // `cairn verify` tells what is wrong
      return {};
    }
  }

  void add_row(const Node& node, const std::string& name, const std::string& indent, bool chunks) {
    if (node.entry == nullptr) {
      table_.add({coloured(Colour::kBold, name), "", "", counted(node.keys, "key"), human_bytes(node.bytes), ""});
      return;
    }
    const Metadata& metadata = inspected_.metadata;
    std::set<int> ranks;
    std::vector<std::vector<std::string>> places;
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&node.entry->second)) {
      for (const auto& storage : tensor->storage) ranks.insert(inspected_.rank_of(storage).value_or(-1));
      table_.add({name, tensor->type_name(), to_string(tensor->size),
                  inspected_.source.is_file() ? "" : counted(tensor->chunks.size(), "chunk"), human_bytes(tensor_bytes(*tensor)),
                  ranks_text(ranks)});
      for (std::size_t i = 0; i < tensor->chunks.size(); ++i)
        places.push_back({indent, "", to_string(tensor->chunks[i]), "", "",
                          i < tensor->storage.size() ? location(metadata, tensor->storage[i]) : "not recorded"});
    } else {
      const auto& storage = std::get<BytesStorageMetadata>(node.entry->second).storage;
      if (storage) ranks.insert(inspected_.rank_of(*storage).value_or(-1));
      const std::string size = storage ? human_bytes(storage->length) : inspected_.source.is_file() ? "" : "not recorded";
      const auto value = value_of(node.entry->first, std::get<BytesStorageMetadata>(node.entry->second));
      const char* const kind = value.text.empty() ? "bytes" : value.opaque.empty() ? "value" : "opaque";
      // Shows the name of the class in full.
      const bool has_name = value.text.find(value.opaque) != std::string::npos;
      table_.add({name, kind, has_name ? value.text : value.opaque, "", size, ranks_text(ranks)});
      if (storage) places.push_back({indent, "", "", "", "", location(metadata, *storage)});
    }
    if (!chunks) return;
    for (auto& place : places) table_.add(std::move(place));
  }

  const Inspected& inspected_;
  std::size_t values_read_ = 0;
  Node root_;
  Table table_;
};

void print_ranks(const Inspected& inspected) {
  const auto shares = shares_of(inspected);
  if (shares.empty()) return;
  Table table({"rank", "files", "chunks", "values", "size"});
  for (const auto& [rank, share] : shares)
    table.add({rank < 0 ? "?" : std::to_string(rank), std::to_string(share.files.size()), std::to_string(share.chunks),
               std::to_string(share.values), human_bytes(share.bytes)});
  std::cout << '\n';
  table.print();
}

void print_files(const Inspected& inspected) {
  if (inspected.metadata.files.empty()) return;
  Table table({"file", "crc32", "size"});
  for (const auto& file : inspected.metadata.files)
    table.add({printable(file.name), file.crc32 ? crc_text(*file.crc32) : "-", file.length ? human_bytes(*file.length) : "-"});
  std::cout << '\n';
  table.print();
}

int inspect(const InspectOptions& options) {
  const std::unique_ptr<TensorSource> source = open_tensor_source(options.checkpoint, CheckParts::kNo);
  if (source->is_file() && options.chunks)
    throw WrongUse(printable(options.checkpoint) + " is no checkpoint: it has no ranks and no chunks to show");
  const Metadata& metadata = source->metadata();
  Inspected inspected{*source, metadata, {}, {}};
  for (const Entry& entry : metadata.state_dict_metadata)
    if (options.tensors.empty() || matches_any(entry.first, options.tensors)) inspected.entries.push_back(&entry);
  for (const auto& [fqn, path] : metadata.planner_data) inspected.paths[fqn] = &path;
  if (inspected.entries.empty() && !options.tensors.empty())
    throw WrongUse(fmt::format("no key of {} matches --tensors; * matches any text; without --tensors all keys are listed",
                               inspected.source.name()));
  if (options.json) {
    print_json(json_of(inspected));
    return kFine;
  }
  const Tree tree(inspected, options.chunks);
  print_head(inspected);
  std::cout << '\n';
  tree.print();
  print_ranks(inspected);
  print_files(inspected);
  return kFine;
}

}  // namespace

void add_inspect(CLI::App& app, Run& chosen) {
  const auto [command, options] = add_command(
      app, chosen, "inspect", "Show the keys, shapes, ranks, files and origin of a checkpoint", kInspectExamples, inspect);
  command->add_option("DIR", options.checkpoint, "The checkpoint, torch.save file or safetensors file")->required();
  add_patterns(*command, "--tensors", options.tensors, "Show only keys that match this pattern");
  command->add_flag("--chunks", options.chunks, "List every chunk and where it is stored");
  command->add_flag("--json", options.json, "Print JSON");
}

}  // namespace cairn::tools
