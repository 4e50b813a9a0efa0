// Visits what metadata place in files.
#pragma once

#include <cairn/planning/metadata.hpp>

namespace cairn {

// Calls `visit(storage, tensor, chunk)` for each location of an entry: one for a bytes object, which
// has no tensor and no chunk, and one for each chunk of a tensor. All are const unless the entry is
// not.
template <class AnyEntry, class Visit>
void visit_stored(AnyEntry& entry, Visit visit) {
  if (auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
    for (std::size_t i = 0; i < tensor->storage.size(); ++i) visit(tensor->storage[i], tensor, &tensor->chunks[i]);
  } else if (auto& bytes = std::get<BytesStorageMetadata>(entry); bytes.storage) {
    visit(*bytes.storage, static_cast<decltype(tensor)>(nullptr), static_cast<const Box*>(nullptr));
  }
}

}  // namespace cairn
