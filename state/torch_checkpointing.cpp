#include <cairn/state/torch_checkpointing.hpp>

#include <cairn/storage/saved_files.hpp>

namespace cairn {

TorchCheckpointingReader::TorchCheckpointingReader() : SavedFilesReader(open_torch_checkpointing) {}

}  // namespace cairn
