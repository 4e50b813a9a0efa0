// The safetensors files of a directory.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>

#include <cairn/planning/metadata.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// The names of safetensors files, each with the tensors that an index says it contains.
using SafetensorsFiles = std::map<std::string, std::set<std::string>>;

// Returns the files that an index in `store` names. The index is the file `index`. If `index` is
// "", it is model.safetensors.index.json, or if that does not exist, the only index at the root. If
// there is no index, returns all safetensors files at the root, perhaps none. Throws kCorrupt if
// the index is damaged, or if `index` is "" and there are several indexes, none of them named
// model.safetensors.index.json. Two more checks apply to files without an index and a commit
// record. Throws kCorrupt if a save to this place has begun and not ended. Throws kNotFound if a
// file of a set `model-<file>-of-<files>` is missing.
SafetensorsFiles find_safetensors_files(Store& store, const std::string& index = "");

// Returns the contents of exactly these files, in the store. Each must contain the tensors that
// `files` lists for it. Throws kNotFound, kCorrupt and kMismatch as
// HuggingFaceStorageReader::read_metadata does.
Metadata safetensors_metadata(Store& store, const SafetensorsFiles& files);

// Returns a file's name: "model-00001-of-00002.safetensors", with a rank
// "shard-00001-model-00001-of-00002.safetensors". PyTorch counts ranks and files from 1.
std::string safetensors_file_name(std::size_t file, std::size_t files, std::optional<int> rank = {});

}  // namespace cairn
