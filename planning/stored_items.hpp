// Visits what metadata place in files.
#pragma once

#include <cairn/planning/metadata.hpp>

namespace cairn {

// Calls `visit(storage, tensor, chunk)` for each location of an entry: one for each chunk of a
// tensor, and one, without tensor and chunk, for a bytes object. All are const if the entry is.
template <class AnyEntry, class Visit>
void visit_stored(AnyEntry& entry, Visit visit) {
  if (auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
    for (std::size_t i = 0; i < tensor->storage.size(); ++i) visit(tensor->storage[i], tensor, &tensor->chunks[i]);
  } else if (auto& bytes = std::get<BytesStorageMetadata>(entry); bytes.storage) {
    visit(*bytes.storage, static_cast<decltype(tensor)>(nullptr), static_cast<const Box*>(nullptr));
  }
}

}  // namespace cairn
