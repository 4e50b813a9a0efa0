// `cairn inspect`: what a checkpoint holds, from its commit record alone.
#include <algorithm>
#include <iostream>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cairn/runtime/tools/commands.hpp>

namespace cairn::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string crc_text(std::uint32_t crc32) { return fmt::format("{:08x}", crc32); }

Json to_json(const Extents& extents) { return extents.to_vector(); }

Json to_json(const Path& path) {
  Json elements = Json::array();
  for (const auto& element : path) std::visit([&](const auto& value) { elements.push_back(value); }, element);
  return elements;
}

Json to_json(const Metadata& metadata, const StorageInfo& storage) {
  Json json{{"file", storage.file < metadata.files.size() ? Json(metadata.files[storage.file].name) : Json()},
            {"offset", storage.offset},
            {"length", storage.length}};
  if (storage.payload_offset != 0) json["payload_offset"] = storage.payload_offset;
  if (!storage.transforms.empty()) json["transforms"] = storage.transforms;
  return json;
}

Json to_json(const Metadata& metadata, const TensorStorageMetadata& tensor) {
  Json chunks = Json::array();
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    Json chunk{{"offsets", to_json(tensor.chunks[i].offsets)}, {"sizes", to_json(tensor.chunks[i].sizes)}};
    if (i < tensor.storage.size()) chunk.update(to_json(metadata, tensor.storage[i]));
    chunks.push_back(std::move(chunk));
  }
  return {{"kind", "tensor"},
          {"dtype", to_string(tensor.properties.dtype)},
          {"shape", to_json(tensor.size)},
          {"bytes", tensor_bytes(tensor)},
          {"requires_grad", tensor.properties.requires_grad},
          {"chunks", std::move(chunks)}};
}

Json to_json(const Metadata& metadata, const BytesStorageMetadata& bytes) {
  Json json{{"kind", "bytes"}};
  if (bytes.storage) json.update(to_json(metadata, *bytes.storage));
  return json;
}

Json to_json(const std::string& url, const Metadata& metadata) {
  Json json{{"checkpoint", url},
            {"writer", written_by_cairn(metadata) ? "cairn" : "pytorch"},
            {"writer_version", metadata.commit ? metadata.commit->writer_version : metadata.version},
            {"save_id", metadata.save_id}};
  if (metadata.commit) {
    const CommitInfo& commit = *metadata.commit;
    json["step"] = commit.step ? Json(*commit.step) : Json();
    json["sequence"] = commit.sequence;
    json["world_size"] = commit.world_size;
    json["plan_digest"] = commit.plan_digest;
    json["user_metadata"] = commit.user_metadata;
  }
  std::unordered_map<std::string, const Path*> paths;
  for (const auto& [fqn, path] : metadata.planner_data) paths[fqn] = &path;
  Json keys = Json::array();
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    Json key{{"key", fqn}};
    if (const auto path = paths.find(fqn); path != paths.end()) key["path"] = to_json(*path->second);
    key.update(std::visit([&](const auto& kind) { return to_json(metadata, kind); }, entry));
    keys.push_back(std::move(key));
  }
  json["keys"] = std::move(keys);
  Json files = Json::array();
  for (const auto& file : metadata.files) {
    files.push_back({{"name", file.name},
                     {"length", file.length ? Json(*file.length) : Json()},
                     {"crc32", file.crc32 ? Json(crc_text(*file.crc32)) : Json()}});
  }
  json["files"] = std::move(files);
  return json;
}

// Rows of text in columns that are as wide as their widest cell; the last one is not padded.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) { add(std::move(heading)); }
  void add(std::vector<std::string> row) {
    widths_.resize(std::max(widths_.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths_[i] = std::max(widths_[i], row[i].size());
    rows_.push_back(std::move(row));
  }
  void print(std::ostream& out) const {
    for (const auto& row : rows_) {
      out << "  ";
      for (std::size_t i = 0; i + 1 < row.size(); ++i) out << fmt::format("{:<{}}  ", row[i], widths_[i]);
      out << row.back() << '\n';
    }
  }

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> widths_;
};

std::string location(const Metadata& metadata, const StorageInfo& storage) {
  const std::string file = storage.file < metadata.files.size() ? printable(metadata.files[storage.file].name) : "?";
  return fmt::format("{} at {}, {} bytes", file, storage.offset, storage.length);
}

void print_head(const OpenedCheckpoint& opened) {
  const Metadata& metadata = opened.metadata;
  std::uint64_t bytes = 0;
  std::size_t tensors = 0;
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
      bytes += tensor_bytes(*tensor);
      ++tensors;
    }
  }
  const auto line = [](const char* name, const std::string& value) { std::cout << fmt::format("{:<13}{}\n", name, value); };
  line("checkpoint", printable(opened.store->url()));
  const std::string version = printable(metadata.commit ? metadata.commit->writer_version : metadata.version);
  line("written by", (written_by_cairn(metadata) ? "Cairn" : "PyTorch") + (version.empty() ? "" : " " + version));
  if (!metadata.save_id.empty()) line("save id", printable(metadata.save_id));
  if (metadata.commit) {
    const CommitInfo& commit = *metadata.commit;
    if (commit.step) line("step", std::to_string(*commit.step));
    line("sequence", std::to_string(commit.sequence));
    line("world size", std::to_string(commit.world_size));
    for (const auto& [name, value] : commit.user_metadata) line("user", printable(name) + " = " + printable(value));
  }
  line("tensors", fmt::format("{}, {}", tensors, human_bytes(bytes)));
  line("other values", std::to_string(metadata.state_dict_metadata.size() - tensors));
}

void print_keys(const Metadata& metadata, bool chunks) {
  Table table({"key", "dtype", "shape", "chunks", "size"});
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
      table.add({printable(fqn), to_string(tensor->properties.dtype), to_string(tensor->size),
                 std::to_string(tensor->chunks.size()), human_bytes(tensor_bytes(*tensor))});
      for (std::size_t i = 0; chunks && i < tensor->chunks.size(); ++i) {
        table.add({"", "", to_string(tensor->chunks[i]), "",
                   i < tensor->storage.size() ? location(metadata, tensor->storage[i]) : "not recorded"});
      }
    } else {
      const auto& storage = std::get<BytesStorageMetadata>(entry).storage;
      table.add({printable(fqn), "bytes", "", "", storage ? human_bytes(storage->length) : "not recorded"});
      if (chunks && storage) table.add({"", "", "", "", location(metadata, *storage)});
    }
  }
  std::cout << '\n';
  table.print(std::cout);
}

void print_files(const Metadata& metadata) {
  if (metadata.files.empty()) return;
  Table table({"file", "crc32", "size"});
  for (const auto& file : metadata.files) {
    table.add({printable(file.name), file.crc32 ? crc_text(*file.crc32) : "-", file.length ? human_bytes(*file.length) : "-"});
  }
  std::cout << '\n';
  table.print(std::cout);
}

}  // namespace

int inspect(const InspectOptions& options) {
  const OpenedCheckpoint opened = open_checkpoint(options.checkpoint);
  if (options.json) {
    std::cout << to_json(opened.store->url(), opened.metadata).dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  } else {
    print_head(opened);
    print_keys(opened.metadata, options.chunks);
    print_files(opened.metadata);
  }
  return kFine;
}

}  // namespace cairn::tools
