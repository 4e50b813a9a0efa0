#include <array>
#include <string_view>

#include <fmt/format.h>

#include <cairn/base/utf8.hpp>
#include <cairn/runtime/tools/commands.hpp>
#include <cairn/storage/checkpoint_writer.hpp>

namespace cairn::tools {

std::shared_ptr<Store> open_existing(const std::string& url) {
  auto store = open_store(url);
  if (const auto name = store->url().rfind('/'); store->url().substr(name + 1) == kCommitRecordName)
    throw WrongUse(fmt::format("{} is the record of a checkpoint: name the directory that it lies in", printable(store->url())));
  if (store->exists(kCommitRecordName)) return store;
  const auto objects = store->list();
  if (objects.empty()) throw WrongUse(fmt::format("there is no checkpoint at {}: nothing is there", printable(store->url())));
  throw Error(ErrorCode::kNotFound,
              fmt::format("{} holds {} files but no complete checkpoint: {} is missing. A save that did not finish leaves this; "
                          "if the directory is a run, name one of its checkpoints",
                          printable(store->url()), objects.size(), kCommitRecordName));
}

OpenedCheckpoint open_checkpoint(const std::string& url) {
  OpenedCheckpoint opened;
  opened.store = open_existing(url);
  opened.metadata = read_metadata(*opened.store);
  return opened;
}

std::uint64_t tensor_bytes(const TensorStorageMetadata& tensor) {
  return static_cast<std::uint64_t>(volume(tensor.size)) * element_size(tensor.properties.dtype);
}

std::string human_bytes(std::uint64_t bytes) {
  static constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double amount = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (amount >= 1024 && unit + 1 < kUnits.size()) {
    amount /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", amount, kUnits[unit]);
}

std::string printable(const std::string& text) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const std::size_t length = utf8_character_bytes(std::string_view(text).substr(at));
    // C0 and C1 control characters (the latter are C2 80 .. C2 9F in UTF-8) and DEL.
    const bool control =
        byte < 0x20 || byte == 0x7F || (byte == 0xC2 && length == 2 && static_cast<unsigned char>(text[at + 1]) < 0xA0);
    if (length == 0 || control) {
      shown += fmt::format("\\x{:02x}", byte);
      at += 1;
      if (control && length == 2) shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at++]));
    } else {
      shown.append(text, at, length);
      at += length;
    }
  }
  return shown;
}

bool written_by_cairn(const Metadata& metadata) { return metadata.commit.has_value(); }

}  // namespace cairn::tools
