// A file that appears whole, under its name, when it is finished; until then it lies beside it as "<name>.cairn-partial". A process that is
// killed meanwhile leaves that, with a log of how far it came, and the same conversion goes on there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include <cairn/base/bytes.hpp>
#include <cairn/runtime/tools/conversion_log.hpp>

namespace cairn::tools {

enum class Existing { kRefused, kReplaced };

class PartialFile {
 public:
  // Throws kAlreadyExists for a path that is taken (with kReplaced: by anything that is no file); as ConversionLog; what the file system says.
  PartialFile(std::string path, const nlohmann::ordered_json& identity, Existing existing);
  // Unfinished: leaves what was recorded if the reason may pass (`keep_for_later`), else nothing.
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // The last that was recorded, of an earlier run too; null at the start. All that was written before it is there.
  const nlohmann::ordered_json& recorded() const { return recorded_; }
  void write_at(std::uint64_t offset, ByteSpan bytes);
  // What has been written is synced, and `place` is where to go on.
  void record(nlohmann::ordered_json place);
  void keep_for_later() { keep_ = true; }
  bool is_kept() const { return keep_ && !recorded_.is_null(); }
  // All is written: cuts the file to `length`, makes it appear, and survive power loss. kAlreadyExists if one came to be there meanwhile.
  void finish(std::uint64_t length);

 private:
  void rename_into_place();

  const std::string path_;
  const std::string partial_path_;
  const Existing existing_;
  std::unique_ptr<ConversionLog> log_;
  int descriptor_ = -1;
  bool finished_ = false;
  bool keep_ = false;
  nlohmann::ordered_json recorded_;
};

}  // namespace cairn::tools
