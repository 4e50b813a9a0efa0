// Converts the description of a checkpoint between its forms.
#include <string_view>

#include <cairn/base/error.hpp>
#include <cairn/base/settings.hpp>
#include <cairn/storage/format/metadata_codec.hpp>
#include <cairn/storage/runs/run_directory.hpp>

namespace cairn {
namespace {

constexpr std::string_view kMetricPrefix = "metric.";

bool is_metric(const std::string& key) { return key.compare(0, kMetricPrefix.size(), kMetricPrefix) == 0; }

void refuse_metrics(const std::map<std::string, std::string>& user_metadata) {
  for (const auto& entry : user_metadata)
    if (is_metric(entry.first))
      throw Error(ErrorCode::kInvalidArgument, "user metadata '" + entry.first + "' would be taken for a metric: give it another " +
                                                   "name, or put it into Annotations::metrics");
}

}  // namespace

std::map<std::string, std::string> user_metadata_of(const std::map<std::string, std::string>& common,
                                                    const Annotations& annotations) {
  refuse_metrics(common);
  refuse_metrics(annotations.user_metadata);
  std::map<std::string, std::string> all = annotations.user_metadata;
  // An entry of this save counts before that of all saves: `insert` replaces nothing.
  all.insert(common.begin(), common.end());
  for (const auto& [name, value] : annotations.metrics) all[std::string(kMetricPrefix) + name] = number_text(value);
  return all;
}

CheckpointInfo info_of(const RunDirectory& run, const RunCheckpoint& checkpoint) {
  CheckpointInfo info;
  info.name = checkpoint.name;
  info.checkpoint_id = child_url(run.url(), checkpoint.name);
  info.save_id = checkpoint.head.save_id;
  info.sequence = checkpoint.head.sequence;
  info.step = checkpoint.head.step;
  for (const auto& [key, value] : checkpoint.head.user_metadata) {
    // Other programs may write anything, so an entry that is no number stays what it is.
    if (const auto number = is_metric(key) ? parse_number<double>(value) : std::nullopt)
      info.annotations.metrics.emplace(key.substr(kMetricPrefix.size()), *number);
    else
      info.annotations.user_metadata.emplace(key, value);
  }
  return info;
}

// In the form of a commit record's section.
std::string checkpoint_text(const RunCheckpoint& checkpoint) {
  const CommitHead& head = checkpoint.head;
  Metadata record;
  record.checkpoint_id = checkpoint.name;
  record.save_id = head.save_id;
  record.commit = CommitInfo{head.sequence, head.step, 0, "", "", head.user_metadata, {}};
  return encode_metadata(record);
}

RunCheckpoint checkpoint_in(const std::string& text) {
  Metadata record = decode_metadata(text);
  if (!record.commit) throw Error(ErrorCode::kCorrupt, "cannot read what rank 0 says of a checkpoint");
  return {std::move(record.checkpoint_id), {*std::move(record.commit), std::move(record.save_id)}};
}

}  // namespace cairn
