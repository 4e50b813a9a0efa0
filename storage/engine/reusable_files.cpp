#include <cairn/storage/engine/reusable_files.hpp>

#include <algorithm>
#include <exception>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>

namespace cairn {
namespace {

bool has_elements(const WriteItem& item) { return item.type != WriteItemType::kByteIO; }

template <class Numbers>
void add_numbers(std::string& text, const Numbers& numbers) {
  for (const auto number : numbers) text.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// Appends what tells the item apart, and its digest. Dimensions and dtype have a fixed length, and
// what has another length is preceded by it.
void add_item(std::string& text, const SavePlan& plan, const WriteItem& item, const Digest128& digest) {
  const std::string& name = plan.names[item.name];
  const std::uint64_t lengths[] = {name.size(), item.size.size(), static_cast<std::uint64_t>(item.properties.dtype)};
  add_numbers(text, lengths);
  text += name;
  for (const Extents* extents : {&item.size, &item.chunk.offsets, &item.chunk.sizes}) add_numbers(text, *extents);
  add_numbers(text, digest);
}

}  // namespace

ReusableFiles::ReusableFiles(bool finds_unmarked, std::uint32_t generations_max)
    : finds_unmarked_(finds_unmarked), generations_max_(generations_max) {
  if (generations_max == 0)
    throw Error(ErrorCode::kInvalidArgument,
                "reuse_generations_max is 0, but a file belongs to one checkpoint at least: use 1 or more, or turn reuse off");
}

void ReusableFiles::begin(const std::string& place, const std::string& url, const std::string& save_id, int rank) {
  if (!next_.places.empty()) known_ = std::exchange(next_, {});
  place_ = place;
  url_ = url;
  save_id_ = save_id;
  rank_ = rank;
  digests_.clear();
  has_logged_ = false;
}

bool ReusableFiles::mark(SavePlan& plan) {
  bool is_anew = known_.places.empty() || known_.places.size() >= generations_max_;
  if (!finds_unmarked_) return is_anew;
  const auto is_steady = [&](const WriteItem& item) {
    if (!has_elements(item) || item.frozen) return false;
    const auto value = known_.values.find(plan.names[item.name]);
    return value != known_.values.end() && value->second.is_steady;
  };
  // Other marks move items to other files, which are then written as a whole. So the marks change
  // only when that happens anyway.
  is_anew = is_anew || (marked_.empty() && std::any_of(plan.items.begin(), plan.items.end(), is_steady));
  if (is_anew) {
    marked_.clear();
    for (const WriteItem& item : plan.items)
      if (is_steady(item)) marked_.insert(plan.names[item.name]);
  }
  for (WriteItem& item : plan.items) item.frozen = item.frozen || (has_elements(item) && marked_.count(plan.names[item.name]) > 0);
  return is_anew;
}

void ReusableFiles::forget() {
  known_.donors.clear();
  known_.places.clear();
}

bool ReusableFiles::is_digested(const WriteItem& item) const { return has_elements(item) && (item.frozen || finds_unmarked_); }

// Returns a digest of the tensors in a file and of their order, from which their offsets follow.
// Returns nothing for a file with anything else in it.
std::optional<Digest128> ReusableFiles::content_of(const SavePlan& plan, const FileLayout& layout) const {
  std::string text;
  const auto add_to_text = [&](std::uint32_t index) {
    const WriteItem& item = plan.items[index];
    if (!is_digested(item)) return false;
    add_item(text, plan, item, digests_.at(index));
    return true;
  };
  for (const PlacedTensor& tensor : layout.tensors)
    if (!add_to_text(tensor.item)) return std::nullopt;
  for (const std::uint32_t item : layout.unsized_items)
    if (!add_to_text(item)) return std::nullopt;
  return xxh3_128(text);
}

std::optional<FileResult> ReusableFiles::take_over(Store& store, const SavePlan& plan, const WriteFile& file, bool is_durable) {
  if (known_.donors.empty()) return std::nullopt;
  const auto content = content_of(plan, file.layout);
  const auto found = content ? known_.donors.find(*content) : known_.donors.end();
  if (found == known_.donors.end()) return std::nullopt;
  const Donor& donor = found->second;
  std::string why;
  try {
    const std::uint64_t length = store.link(donor.url, file.name, is_durable);
    if (length == donor.file.length_bytes) {
      FileResult result = donor.file;
      result.name = file.name;
      return result;
    }
    why = donor.url + " has " + std::to_string(length) + " bytes, but " + std::to_string(donor.file.length_bytes) + " were written";
  } catch (const std::exception& error) {
    why = error.what();
  }
  // The file is written. That fails if the store is in trouble.
  try {
    store.remove(file.name);
  } catch (const std::exception&) {
  }
  if (!has_logged_.exchange(true))
    write_log(LogLevel::kWarning, rank_, "unchanged data is written again at " + url_ + ", because it cannot be linked: " + why);
  return std::nullopt;
}

void ReusableFiles::keep(const SavePlan& plan, const std::vector<WriteFile>& files, const std::vector<FileResult>& results) {
  Known kept;
  kept.places = known_.places;
  kept.places.push_back(place_);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto content = content_of(plan, files[i].layout);
    if (!content) continue;
    Donor& donor = kept.donors[*content] = {child_url(url_, results[i].name), results[i]};
    if (donor.file.written_by.empty()) donor.file.written_by = save_id_;
  }
  std::unordered_map<std::string, std::string> texts;
  for (std::size_t i = 0; i < plan.items.size() && finds_unmarked_; ++i)
    if (has_elements(plan.items[i])) add_item(texts[plan.names[plan.items[i].name]], plan, plan.items[i], digests_.at(i));
  for (const auto& [name, text] : texts) {
    Value& value = kept.values[name] = {xxh3_128(text), false};
    const auto before = known_.values.find(name);
    value.is_steady = before != known_.values.end() && before->second.digest == value.digest;
  }
  next_ = std::move(kept);
}

}  // namespace cairn
