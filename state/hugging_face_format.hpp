// The files of HuggingFaceStorageWriter, as they are saved, or made from others. Implemented in
// hugging_face_writer.cpp. Internal.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/formats/safetensors.hpp>
#include <cairn/state/hugging_face.hpp>
#include <cairn/storage/data_format.hpp>

namespace cairn {

class HuggingFaceFormat final : public DataFormat {
 public:
  // `source`: the URL of other safetensors files that `complete` consolidates.
  explicit HuggingFaceFormat(const HuggingFaceWriterOptions& options, std::string source = "")
      : options_(options), source_(std::move(source)) {}

  bool names_are_unique() const override { return false; }
  // A file that a frozen rank has not finished may get its name later.
  bool needs_no_record(const ObjectName& name) const override {
    return name.find('/') == ObjectName::npos && name.find(kSafetensorsEnd) != ObjectName::npos;
  }

  void require_room(Store& store) override;
  SavePlan prepare(SavePlan plan, const Store& store) const override;
  std::vector<std::string> arrange(const std::vector<SavePlan>& plans) override;
  std::vector<FileLayout> layouts(const SavePlan& plan, const std::string& arrangement) const override;
  ObjectName name(int rank, std::size_t file, std::size_t files, const std::string& arrangement,
                  const std::string& save_id) const override;
  std::function<void()> complete(const std::shared_ptr<Store>& store, const std::string& url, Metadata& metadata,
                                 WrittenNames& written) override;

  static CheckpointWriterOptions writer_options(const HuggingFaceWriterOptions& options);

 private:
  // Deals out tensors to files of at most `bytes_max`, in order; a larger tensor gets a file of its
  // own. Returns indices. Several parts of one tensor go to different files, because a file has one
  // tensor of a name.
  static std::vector<std::vector<std::uint32_t>> deal_out(const std::vector<SafetensorsTensor>& tensors, std::uint64_t bytes_max);
  // `items`: indices into `tensors`, which has one entry per item of the plan.
  static FileLayout lay_out(const std::vector<SafetensorsTensor>& tensors, const std::vector<std::uint32_t>& items);
  // Writes whole tensors from the parts at `url` that `metadata` locates, and makes it locate the
  // whole tensors.
  void join(Store& store, const std::string& url, Metadata& metadata, WrittenNames& written) const;
  void write_index(Store& store, const Metadata& metadata, WrittenNames& written) const;

  const HuggingFaceWriterOptions options_;
  const std::string source_;
  bool joins_parts_ = false;  // of the current save; set on the coordinator
};

}  // namespace cairn
