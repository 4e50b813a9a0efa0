#include <cairn/state/load_destinations.hpp>

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include <cairn/base/error.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/planning/closest_names.hpp>
#include <cairn/planning/flat_names.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/state/flat_leaf.hpp>
#include <cairn/state/leaf_bytes.hpp>
#include <cairn/state/libtorch_compat.hpp>
#include <cairn/state/rank_names.hpp>
#include <cairn/state/tensor_memory.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

std::string joined(const char* heading, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = std::string("\n") + heading + " (" + std::to_string(lines.size()) + "):";
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

// Returns why `tensor` cannot be filled, or an empty string if it can.
std::string why_not_fillable(const torch::Tensor& tensor) {
  std::string reason = why_not_storable(tensor);
  if (reason.empty() && at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    reason = "has elements that share memory (expanded)";
  return reason;
}

// Returns whether stored elements can be written directly into `view`.
bool is_direct(const torch::Tensor& view, at::ScalarType stored) {
  // The reader writes bytes. A lazy flag would change their meaning, and memory of inference mode
  // may be written only in that mode.
  return view.scalar_type() == stored && !view.is_conj() && !view.is_neg() && !view.is_inference();
}

// Returns the faults in the stored chunks that `wanted` needs, or an empty string.
std::string fault_in(const std::string& name, const TensorStorageMetadata& stored, const std::vector<Box>& wanted) {
  if (stored.chunks.size() == 1 && stored.chunks[0] == Box::whole(stored.size)) return "";
  const std::vector<CoverageFault> faults = check_coverage(name, stored.size, stored.chunks);
  if (faults.empty()) return "";
  for (const CoverageFault& fault : faults) {
    // Overlaps and chunks outside of the tensor make every part of it doubtful.
    if (fault.kind != CoverageFault::Kind::kGap) return "the checkpoint is damaged: " + to_string(fault);
  }
  // Without overlaps, comparing volumes shows whether a gap affects this rank.
  const ChunkIndex index(stored.chunks);
  for (const Box& box : wanted) {
    if (box.empty()) continue;
    std::int64_t covered = 0;
    for (const std::uint32_t chunk : index.find(box)) {
      if (const auto common = intersect(stored.chunks[chunk], box)) covered += volume(common->sizes);
    }
    if (covered != volume(box.sizes)) {
      return "the checkpoint holds only " + std::to_string(covered) + " of the " + std::to_string(volume(box.sizes)) +
             " elements of " + to_string(box) + ": " + to_string(faults.front());
    }
  }
  return "";
}

// Returns the number in a 0-dim tensor, as an integer if both the caller's number and this one are
// integers.
c10::IValue scalar_in(const torch::Tensor& tensor, const c10::IValue& callers) {
  constexpr double kExactMax = 9007199254740992.0;  // 2^53: float64 represents all integers up to here
  if (tensor.scalar_type() == at::kBool) return tensor.item<bool>();
  if (!tensor.is_floating_point()) {
    const auto whole = tensor.item<std::int64_t>();
    if (callers.isDouble()) return static_cast<double>(whole);
    return whole;
  }
  const auto number = tensor.item<double>();
  if (callers.isInt() && std::trunc(number) == number && std::fabs(number) <= kExactMax) return static_cast<std::int64_t>(number);
  return number;
}

// Converts `loaded` to the kind of container that the caller holds in its place, `held`. A saved
// list does not record its kind.
Value like(const Value& held, Value loaded) {
  const bool is_plain_list = loaded.is_ivalue() && loaded.ivalue().isList();
  if (held.is_list() && (is_plain_list || loaded.is_list())) {
    List elements;
    if (is_plain_list) {
      for (const c10::IValue& element : loaded.ivalue().toListRef()) elements.emplace_back(element);
    } else {
      elements = std::move(loaded.list());
    }
    // If the caller's list is shorter, its last element is the pattern for the rest. An empty list
    // means List at every level.
    static const Value any_list{List{}};
    const List& patterns = held.list();
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const Value& pattern = patterns.empty() ? any_list : patterns[std::min(i, patterns.size() - 1)];
      elements[i] = like(pattern, std::move(elements[i]));
    }
    return Value(std::move(elements));
  }
  if (held.is_ivalue() && held.ivalue().isList() && loaded.is_list() && loaded.list().empty())
    return c10::IValue(c10::impl::GenericList(held.ivalue().toList().elementType()));
  return loaded;
}

}  // namespace

ListGrowth::ListGrowth(const Metadata& metadata) {
  constexpr std::uint64_t kFree = 4096, kPerName = 16;
  left_ = kFree + kPerName * (metadata.state_dict_metadata.size() + metadata.others.names.size());
}

void ListGrowth::add(const StateDict& state_dict, const std::string& name, const Path& path) {
  for (std::size_t depth = 1; depth < path.size(); ++depth) {
    const auto* index = std::get_if<std::int64_t>(&path[depth]);
    if (index == nullptr || *index < 0) continue;
    const Value* held = find_at(state_dict, Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(depth)));
    // A dict takes an index as a key and does not grow by it.
    if (held != nullptr && held->is_dict()) continue;
    const std::uint64_t size = held != nullptr && held->is_list() ? held->list().size() : 0;
    const std::uint64_t wanted = static_cast<std::uint64_t>(*index) + 1;
    if (wanted > size + left_)
      throw Error(ErrorCode::kUnsupported, "plan a load: \"" + name + "\" belongs at " + describe_path(path) +
                                               ", in lists that are far longer than what the checkpoint holds of them");
    left_ -= std::max(wanted, size) - size;
  }
}

LoadDestinations::LoadDestinations(StateDict& state_dict, const Metadata& metadata, LoadPlannerOptions options,
                                   bool leave_out_opaque)
    : state_dict_(&state_dict), metadata_(&metadata), options_(std::move(options)), leave_out_opaque_(leave_out_opaque) {}

void LoadDestinations::expect(NameTable names) {
  names_ = std::move(names);
  if (names_.size() == 0) names_.reserve(state_dict_->size());
}

NameId LoadDestinations::add_name(const std::string& name, const Path& path) {
  const auto next = static_cast<NameId>(destinations_.size());
  if (next < names_.size() && names_[next] == name) return next;
  drop_expected_names();
  const NameId id = names_.intern(name);
  if (id == next) return id;
  if (!path.empty() && !destinations_[id].path.empty()) FlatNames::throw_twice(name, destinations_[id].path, path);
  std::vector<Path> paths;
  visit_leaves(*state_dict_, [&](const FlatLeaf& leaf) {
    if (leaf.name == name) paths.push_back(leaf.path());
  });
  paths.resize(2);
  FlatNames::throw_twice(name, paths[0], paths[1]);
}

void LoadDestinations::drop_expected_names() {
  if (names_.size() == destinations_.size()) return;
  NameTable names;
  names.reserve(names_.size());
  for (const Destination& destination : destinations_) names.intern(name_of(destination));
  names_ = std::move(names);
}

void LoadDestinations::add(const std::string& name, const std::string& storage_name, Path path, const Value& value) {
  Destination made;
  made.id = add_name(name, path);
  if (storage_name != name) made.storage_name = storage_name;
  made.path = std::move(path);
  made.type_name = value.type_name();
  made.is_blob = value.is_blob();
  made.is_per_rank = value.is_per_rank();
  has_per_rank_ = has_per_rank_ || made.is_per_rank;
  made.is_if_stored = value.is_if_stored();
  made.is_empty_dict = value.is_dict() && value.dict().empty();
  if (value.is_tensor()) {
    made.is_tensor = true;
    if (value.tensor().defined()) made.size = extents_of(value.tensor().sizes());
    made.parts.push_back({Box::whole(made.size), value.tensor()});
  } else if (value.is_sharded()) {
    made.is_tensor = true;
    made.size = value.sharded().size();
    for (const LocalShard& shard : value.sharded().local_shards())
      made.parts.push_back({Box{shard.offsets, extents_of(shard.tensor.sizes())}, shard.tensor});
  } else if (value.is_ivalue() && (value.ivalue().isInt() || value.ivalue().isDouble() || value.ivalue().isBool())) {
    made.is_number = true;
    made.number = value.ivalue();
  }
  destinations_.push_back(std::move(made));
}

// Collects all problems instead of stopping at the first: a user who loads into a changed model
// wants the whole list.
LoadPlan LoadDestinations::create_plan() {
  drop_expected_names();
  LoadPlan plan;
  plan.names = names_;  // so that a destination has its own number there
  Problems problems;
  left_alone_ = {};
  filled_.clear();
  // Loop by index: the loop adds destinations for containers that were stored whole.
  const std::size_t asked = destinations_.size();
  for (std::size_t i = 0; i < asked; ++i) {
    Destination& destination = destinations_[i];
    const auto position = metadata_->position_of(stored_name_of(destination));
    const Metadata::Entry* stored = position ? &metadata_->state_dict_metadata[*position].second : nullptr;
    destination.position = position.value_or(0);
    if (stored == nullptr) {
      plan_absent(destination, plan, problems);
    } else if (const auto* tensor = std::get_if<TensorStorageMetadata>(stored)) {
      plan_tensor(static_cast<NameId>(i), *tensor, plan, problems);
    } else if (destination.is_tensor) {
      const std::string& opaque = std::get<BytesStorageMetadata>(*stored).opaque;
      problems.mismatched.push_back('"' + name_of(destination) + "\": the checkpoint holds a value" +
                                    (opaque.empty() ? "" : " of " + opaque) + ", the state dict " + destination.type_name);
    } else if (const std::string& opaque = std::get<BytesStorageMetadata>(*stored).opaque; !opaque.empty() && leave_out_opaque_) {
      leave_out(destination, opaque);
    } else if (!opaque.empty()) {
      problems.unsupported.push_back('"' + name_of(destination) + "\": a value of " + opaque +
                                     ", which only Python can hold; keep_opaque cannot keep parts of a file of torch.save");
    } else {
      ReadItem item;
      item.type = LoadItemType::kByteIO;
      item.dest_name = static_cast<NameId>(i);
      item.storage_name = plan.names.intern(stored_name_of(destination));
      plan.items.push_back(std::move(item));
    }
  }
  if (options_.refuse_absent_ranks && options_.world_size <= 0)
    throw Error(ErrorCode::kInvalidArgument, "plan a load: refuse_absent_ranks needs the number of ranks; set "
                                             "LoadPlannerOptions::world_size of a planner of your own");
  const auto refuse_absent_rank = [&](std::string_view name) {
    if (const auto rank = rank_of(name); rank && is_absent(*rank))
      problems.mismatched.push_back('"' + std::string(name) + "\": it belongs to a rank that this world of " +
                                    std::to_string(options_.world_size) + " ranks does not have");
  };
  if (options_.refuse_absent_ranks) {
    for (const auto& [name, entry] : metadata_->state_dict_metadata) refuse_absent_rank(name);
    for (const std::string_view name : metadata_->others.names) refuse_absent_rank(name);
  }
  plan_shared(plan, problems);
  const std::size_t count = problems.missing.size() + problems.mismatched.size() + problems.unsupported.size();
  if (count == 0) return plan;
  // A code for one kind of problem lets callers branch, such as on missing keys only.
  const ErrorCode code = problems.mismatched.empty() && problems.unsupported.empty() ? ErrorCode::kNotFound
                         : problems.mismatched.empty() && problems.missing.empty()   ? ErrorCode::kUnsupported
                                                                                     : ErrorCode::kMismatch;
  std::string advice;
  if (!problems.missing.empty() && !options_.allow_partial_load) {
    advice = "\nTo keep the caller's values of missing names, set allow_partial_load.";
  }
  throw Error(code, "plan a load: the checkpoint and the state dict do not fit (" + std::to_string(count) +
                        (count == 1 ? " problem" : " problems") + "); nothing was changed." +
                        joined("not in the checkpoint", problems.missing) + joined("different", problems.mismatched) +
                        joined("not supported", problems.unsupported) + advice);
}

void LoadDestinations::plan_absent(const Destination& destination, LoadPlan& plan, Problems& problems) {
  // PyTorch does not store empty dicts.
  if (destination.is_empty_dict) return;
  if (destination.is_per_rank) return left_alone_.kept.push_back(name_of(destination));
  const Destination* const above = stored_whole_above(destination);
  if (destination.is_if_stored && (above == nullptr || destination.is_tensor))
    return left_alone_.kept.push_back(name_of(destination));
  if (above != nullptr) {
    if (destination.is_tensor) {
      problems.mismatched.push_back('"' + name_of(destination) + "\": the state dict holds " + destination.type_name +
                                    ", the checkpoint only \"" + name_of(*above) + "\" as bytes");
    } else if (!plan.names.find(name_of(*above))) {  // a sibling may have requested it before
      ReadItem item;
      item.type = LoadItemType::kByteIO;
      item.dest_name = item.storage_name = plan.names.intern(name_of(*above));
      plan.items.push_back(std::move(item));
    }
    return;
  }
  if (options_.allow_partial_load)
    left_alone_.missing.push_back(name_of(destination));
  else
    problems.missing.push_back('"' + name_of(destination) + '"' + hint_for_missing(destination, problems.missing.size()));
}

// Suggests names for the first missing ones only: comparing with all names of a checkpoint is slow.
std::string LoadDestinations::hint_for_missing(const Destination& destination, std::size_t missing_before) const {
  constexpr std::size_t kHintsMax = 3;
  if (missing_before >= kHintsMax) return "";
  return ": " + closest_names_text(stored_name_of(destination), *metadata_, SuggestPrefixes::kNo);
}

// Returns whether a destination is filled from `stored_name` on this rank or on another.
bool LoadDestinations::is_expected(std::string_view stored_name, NameId& likely) const {
  const auto same = names_.find(stored_name, likely);
  if (same) likely = *same + 1;
  if (same && !destinations_[*same].is_per_rank) return true;
  const auto rank = rank_of(stored_name);
  return rank && !is_absent(*rank);
}

// Returns the rank that saved a value, if the state dict holds a value of each rank there.
std::optional<std::int64_t> LoadDestinations::rank_of(std::string_view stored_name) const {
  if (!has_per_rank_) return std::nullopt;
  const auto split = split_rank_name(std::string(stored_name));
  const auto found = split ? names_.find(split->first) : std::nullopt;
  return found && destinations_[*found].is_per_rank ? std::optional(split->second) : std::nullopt;
}

// A checkpoint of more ranks has the values of such ones.
bool LoadDestinations::is_absent(std::int64_t rank) const { return options_.world_size > 0 && rank >= options_.world_size; }

LoadReport LoadDestinations::report() const {
  LoadReport report = left_alone_;
  std::vector<std::string_view> names;  // of all destinations, sorted
  const auto has_destinations_below = [&](const std::string& name) {
    if (names.empty()) {
      for (const Destination& destination : destinations_) names.emplace_back(name_of(destination));
      std::sort(names.begin(), names.end());
    }
    const std::string prefix = name + '.';
    const auto first = std::lower_bound(names.begin(), names.end(), std::string_view(prefix));
    return first != names.end() && first->substr(0, prefix.size()) == prefix;
  };
  NameId likely = 0;  // the names are mostly in the order of the destinations
  const auto is_unexpected = [&](std::string_view name, bool is_bytes, bool is_other) {
    // The others are none of the destinations.
    if ((!is_other || has_per_rank_) && is_expected(name, likely)) return false;
    // If a dict is empty on some ranks only, its name is stored besides the values of the other
    // ranks.
    return !is_bytes || !has_destinations_below(std::string(name));
  };
  // A rank of a large world leaves all that the others have, which may be a million names.
  const auto& [others, are_bytes] = metadata_->others;
  bool has_all_others = true;
  for (std::size_t i = 0; has_all_others && i < others.size(); ++i)
    // Most need no look at the name, and the names are decoded only if one does.
    has_all_others = (!has_per_rank_ && !are_bytes[i]) || is_unexpected(others[i], are_bytes[i], true);
  if (has_all_others) report.unexpected = others;
  for (const auto& [name, entry] : metadata_->state_dict_metadata)
    if (is_unexpected(name, std::holds_alternative<BytesStorageMetadata>(entry), false)) report.unexpected.add(name);
  for (std::size_t i = 0; !has_all_others && i < others.size(); ++i)
    if (is_unexpected(others[i], are_bytes[i], true)) report.unexpected.add(others[i]);
  return report;
}

// Returns the destination for the container around `destination` if the checkpoint has that
// container as a whole: PyTorch before 2.4 stored containers without tensors this way.
const LoadDestinations::Destination* LoadDestinations::stored_whole_above(const Destination& destination) {
  if (metadata_->commit || !destination.storage_name.empty()) return nullptr;
  // From the innermost container outwards.
  for (std::size_t length = destination.path.size() - 1; length >= 1; --length) {
    const Path above(destination.path.begin(), destination.path.begin() + static_cast<std::ptrdiff_t>(length));
    const std::string name = to_string(above);
    const Metadata::Entry* stored = metadata_->find(name);
    const auto* bytes = stored != nullptr ? std::get_if<BytesStorageMetadata>(stored) : nullptr;
    if (bytes == nullptr || !bytes->opaque.empty()) continue;
    if (const auto known = names_.find(name)) return destinations_[*known].path == above ? &destinations_[*known] : nullptr;
    add(name, name, above, Value(Dict{}));
    return &destinations_.back();
  }
  return nullptr;
}

void LoadDestinations::plan_tensor(NameId id, const TensorStorageMetadata& stored, LoadPlan& plan, Problems& problems) {
  Destination& destination = destinations_[id];
  const auto quoted = [&] { return '"' + name_of(destination) + "\": "; };
  const auto mismatch = [&](const std::string& what) { problems.mismatched.push_back(quoted() + what); };
  const auto unsupported = [&](const std::string& what) { problems.unsupported.push_back(quoted() + what); };

  if (!destination.is_tensor) {
    if (!destination.is_number || stored.size.size() != 0)
      return mismatch("the checkpoint holds a tensor of size " + to_string(stored.size) + ", the state dict " +
                      destination.type_name);
    if (!prepare_number(destination, stored, problems)) return;
  }
  const DType stored_dtype = stored.properties.dtype;
  if (stored.size != destination.size)
    return mismatch("the checkpoint has the size " + to_string(stored.size) + ", the state dict " + to_string(destination.size));
  if (!scalar_type_of(stored_dtype))
    return unsupported("it is stored as " + printable(stored.type_name()) + ", which this LibTorch (" + TORCH_VERSION +
                       ") cannot hold");
  std::vector<Box> wanted;
  for (const Part& part : destination.parts) {
    const std::string reason = why_not_fillable(part.tensor);
    if (!reason.empty()) return unsupported("the tensor to fill " + reason);
    const DType dtype = *dtype_of(part.tensor.scalar_type());
    if (dtype != stored_dtype && !options_.allow_dtype_cast) {
      return mismatch(std::string("the checkpoint has the type ") + to_string(stored_dtype) + ", the state dict " +
                      to_string(dtype) + "; set allow_dtype_cast to convert");
    }
    if (c10::isComplexType(*scalar_type_of(stored_dtype)) && !c10::isComplexType(part.tensor.scalar_type())) {
      return mismatch(std::string("the checkpoint has the complex type ") + to_string(stored_dtype) + ", which " +
                      to_string(dtype) + " cannot hold");
    }
    wanted.push_back(part.box);
  }
  // Last, because it costs more than the other checks.
  const std::string fault = fault_in(stored_name_of(destination), stored, wanted);
  if (!fault.empty()) return mismatch(fault);
  const ChunkIndex index(stored.chunks);
  const NameId storage_name = destination.storage_name.empty() ? id : plan.names.intern(destination.storage_name);
  for (Part& part : destination.parts) {
    if (part.box.empty()) continue;
    append_reads(stored, index, id, storage_name, part.box, plan);
    if (destination.is_tensor) filled_.push_back({&destination, &part});
  }
}

// A number that is stored as a 0-dim tensor is first read into a tensor. Returns false if that is
// not possible.
bool LoadDestinations::prepare_number(Destination& destination, const TensorStorageMetadata& stored, Problems& problems) {
  const auto type = scalar_type_of(stored.properties.dtype);
  if (type && c10::isComplexType(*type)) {
    problems.mismatched.push_back('"' + name_of(destination) + "\": the checkpoint holds a complex number, the state dict " +
                                  destination.type_name);
    return false;
  }
  destination.size = {};
  if (type) destination.parts = {{Box{}, torch::empty({}, torch::TensorOptions().dtype(*type))}};
  return true;
}

const LoadDestinations::Destination& LoadDestinations::destination_of(const LoadPlan& plan, const ReadItem& item) const {
  const std::string& name = plan.names[item.dest_name];
  const auto found = names_.find(name, item.dest_name);
  if (!found) {
    throw Error(ErrorCode::kNotFound,
                "read \"" + name + "\": the state dict has no place of that name; plans must keep to its names");
  }
  return destinations_[*found];
}

// A sharded tensor may have several local parts. Offset and size of the read decide which one it
// fills.
const LoadDestinations::Part& LoadDestinations::part_for(const Destination& destination, const ReadItem& item) const {
  for (const Part& part : destination.parts) {
    if (part.box.offsets == item.dest_chunk_offset && fits(Box{item.dest_offsets, item.lengths}, part.box.sizes)) return part;
  }
  throw Error(ErrorCode::kNotFound, "read \"" + name_of(destination) + "\": this rank has no part at " +
                                        to_string(item.dest_chunk_offset) + " that holds " +
                                        to_string(Box{item.dest_offsets, item.lengths}));
}

torch::Tensor LoadDestinations::lookup_tensor(const LoadPlan& plan, const ReadItem& item) {
  if (!shared_.empty() && !is_compared_)
    throw Error(ErrorCode::kPrecondition, "read a plan: " + text_of(shared_.front().first) + " and " +
                                              text_of(shared_.front().second) +
                                              " use the same memory; call the planner's compare_shared first");
  const Destination& destination = destination_of(plan, item);
  const auto action = [&] { return "read \"" + name_of(destination) + '"'; };
  return with_torch(action, [&] {
    const Part& part = part_for(destination, item);
    // The reader may write the bytes directly, without autograd's knowledge, and fail half-way.
    count_change_of(part);
    return part_of(part.tensor, item.dest_offsets, item.lengths);
  });
}

// Returns the destination itself whenever possible, so that the reader fills it without a copy.
torch::Tensor LoadDestinations::transform_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor view) {
  at::ScalarType type = view.scalar_type();
  const auto destination = names_.find(plan.names[item.dest_name], item.dest_name);
  const Metadata::Entry* stored =
      metadata_->find(plan.names[item.storage_name], destination ? destinations_[*destination].position : 0);
  if (stored != nullptr && std::holds_alternative<TensorStorageMetadata>(*stored)) {
    type = scalar_type_of(std::get<TensorStorageMetadata>(*stored).properties.dtype).value_or(type);
  }
  if (is_direct(view, type)) return view;
  return with_torch("read \"" + plan.names[item.dest_name] + '"',
                    [&] { return torch::empty(array_of(item.lengths), torch::TensorOptions().dtype(type)); });
}

void LoadDestinations::commit_tensor(const LoadPlan& plan, const ReadItem& item, const torch::Tensor& tensor) {
  const Destination& destination = destination_of(plan, item);
  const auto action = [&] {
    return "fill \"" + name_of(destination) + "\" with " + to_string(Box{item.dest_offsets, item.lengths});
  };
  with_torch(action, [&] {
    const Part& part = part_for(destination, item);
    torch::Tensor view = part_of(part.tensor, item.dest_offsets, item.lengths);
    const bool is_filled =
        view.is_alias_of(tensor) && view.scalar_type() == tensor.scalar_type() && view.data_ptr() == tensor.data_ptr();
    if (!is_filled && view.numel() != 0) {
      // A tensor created in inference mode may be written only in inference mode.
      const c10::InferenceMode inference(view.is_inference());
      const torch::NoGradGuard no_grad;
      view.copy_(tensor);
    }
    count_change_of(part);
    if (!destination.is_tensor) place(destination, Value(scalar_in(view, destination.number)));
  });
}

void LoadDestinations::load_bytes(const LoadPlan& plan, const ReadItem& item, const Bytes& bytes) {
  const Destination& destination = destination_of(plan, item);
  Value value;
  try {
    value = read_leaf(bytes);
    if (value.is_opaque() && std::none_of(options_.keep_opaque.begin(), options_.keep_opaque.end(),
                                          [&](const std::string& kept) { return is_below(name_of(destination), kept); })) {
      if (leave_out_opaque_) return leave_out(destination, value.opaque().name());
      throw Error(ErrorCode::kUnsupported,
                  value.opaque().why() + ". To load it as it is, for the next save, name it in keep_opaque");
    }
  } catch (const Error& error) {
    throw Error(error.code(), "read \"" + name_of(destination) + "\": " + error.what());
  }
  // Python 2 pickled bytes as a str.
  if (destination.is_blob && value.is_ivalue() && value.ivalue().isString()) value = Blob{value.to_text()};
  place(destination, std::move(value));
}

void LoadDestinations::leave_out(const Destination& destination, const std::string& opaque) {
  const MutexLock lock(mutex_);
  left_out_.push_back(name_of(destination) + ": " + opaque);
  // The value's place may already hold the tensors in the value. In a list, None keeps the place.
  const Value* const held = find_at(*state_dict_, destination.path);
  if (held == nullptr || !held->is_none()) return;
  const Path above(destination.path.begin(), destination.path.end() - 1);
  const auto& key = destination.path.back();
  if (above.empty())
    state_dict_->erase(std::get<std::string>(key));
  else if (Value* const container = find_at(*state_dict_, above); container->is_dict())
    container->dict().erase(to_string(Path{key}));
}

std::vector<std::string> LoadDestinations::left_out() const {
  const MutexLock lock(mutex_);
  return left_out_;
}

void LoadDestinations::place(const Destination& destination, Value value) {
  // The reader's threads replace leaves at the same time. Tensors need no lock, because each read
  // fills a part of its own.
  const MutexLock lock(mutex_);
  if (const Value* held = find_at(*state_dict_, destination.path)) {
    // If a dict is empty on some ranks only, its name is stored besides the values of the other
    // ranks.
    if (held->is_dict() && value.is_dict() && value.dict().empty()) return;
    value = like(*held, std::move(value));
  }
  set_at(*state_dict_, destination.path, std::move(value));
}

}  // namespace cairn
