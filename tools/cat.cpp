// `cairn cat`: prints elements of a tensor, or a value.
#include <algorithm>
#include <iostream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cairn/base/settings.hpp>
#include <cairn/planning/closest_names.hpp>
#include <cairn/storage/engine/strided_bytes.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/tensor_source.hpp>
#include <cairn/tools/value_text.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kCatExamples = R"(Examples:
  cairn cat run/step_100 model.weight                  prints its first and last elements
  cairn cat run/step_100 model.weight --slice 0:4,:    prints the first four rows
  cairn cat run/step_100 model.weight --slice -1,0     prints one element
  cairn cat run/step_100 model.weight --full           prints all elements
  cairn cat run/step_100 step                          prints a value
  cairn cat run/step_100 model.weight --json           prints JSON
  cairn cat model.pt weight                            reads a torch.save file

Reads only the bytes that it prints. In Cairn's checkpoints, reads and checks the blocks that hold
these bytes. In PyTorch's, a part of a tensor cannot be checked; cairn verify checks whole tensors.
Exits with 1 if a value cannot be shown.)";

struct CatOptions {
  std::string checkpoint;
  std::string key;
  std::string slice;
  bool full = false;
  bool json = false;
};

struct Slice {
  Box box;
  std::vector<bool> is_index;  // by dimension: given as one number, so the result lacks the dimension
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(at, begin)) != std::string::npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  for (std::string& part : parts) {
    part.erase(0, std::min(part.find_first_not_of(' '), part.size()));
    part.erase(part.find_last_not_of(' ') + 1);
  }
  return parts;
}

// Parses a Python slice such as "0:4,:": a range, ":" or a number per dimension; negative numbers
// count from the end. "..." stands for the dimensions between. Dimensions omitted at the end are
// taken whole. Ranges are clipped to the tensor. Throws WrongUse for an index out of range, too
// many dimensions, or steps.
Slice read_slice(const std::string& text, const Extents& size) {
  const auto fail = [&](const std::string& why) {
    throw WrongUse(fmt::format("--slice {}: {}; write it like 0:4,: or 3,-1", printable(text), why));
  };
  const auto number = [&](const std::string& part) {
    const auto value = parse_number<std::int64_t>(part);
    if (!value) fail("\"" + printable(part) + "\" is no number");
    return *value;
  };
  Slice slice{Box::whole(size), std::vector<bool>(size.size(), false)};
  if (text.empty()) return slice;
  std::vector<std::string> parts = split(text, ',');
  const auto dots = std::find(parts.begin(), parts.end(), "...");
  if (dots != parts.end()) {
    if (std::find(dots + 1, parts.end(), "...") != parts.end()) fail("it has \"...\" twice");
    const std::size_t given = parts.size() - 1;
    const auto at = parts.erase(dots);
    parts.insert(at, size.size() > given ? size.size() - given : 0, ":");
  }
  if (parts.size() > size.size())
    fail(fmt::format("it names {} dimensions, the tensor {} has {}", parts.size(), to_string(size), size.size()));
  for (std::size_t dim = 0; dim < parts.size(); ++dim) {
    const std::int64_t extent = size[dim];
    const std::vector<std::string> ends = split(parts[dim], ':');
    if (ends.size() > 2) fail("steps cannot be given");
    const auto from_begin = [&](std::int64_t given) { return given < 0 ? given + extent : given; };
    const auto place = [&](const std::string& end, std::int64_t otherwise) {
      return end.empty() ? otherwise : std::clamp<std::int64_t>(from_begin(number(end)), 0, extent);
    };
    slice.is_index[dim] = ends.size() == 1;
    const std::int64_t begin = slice.is_index[dim] ? from_begin(number(ends[0])) : place(ends[0], 0);
    if (slice.is_index[dim] && (begin < 0 || begin >= extent))
      fail(fmt::format("{} is outside dimension {}, which has {}", number(ends[0]), dim, extent));
    slice.box.offsets[dim] = begin;
    slice.box.sizes[dim] = slice.is_index[dim] ? 1 : std::max<std::int64_t>(0, place(ends[1], extent) - begin);
  }
  return slice;
}

// Larger tensors are summarised: only the ends of each dimension are read and shown.
constexpr std::int64_t kShownMax = 1000;
constexpr std::int64_t kEnds = 3;
constexpr std::int64_t kInMemoryMax = std::int64_t{1} << 28;

// The shown part of a tensor: per dimension one range, or two with a gap between them.
struct Shown {
  const TensorStorageMetadata& stored;
  Extents sizes;              // of what is shown
  std::vector<bool> has_gap;  // by dimension: whether there is a gap after its first kEnds
  Bytes elements;             // in row-major order

  std::int64_t count() const { return volume(sizes); }
  DType dtype() const { return stored.properties.dtype; }
  const char* at(std::int64_t index) const { return elements.data() + static_cast<std::size_t>(index) * element_size(dtype()); }
};

Shown read_shown(TensorSource& source, const std::string& key, const TensorStorageMetadata& stored, const Box& box, bool all) {
  const std::size_t dims = box.sizes.size();
  Shown shown{stored, box.sizes, std::vector<bool>(dims), {}};
  const bool is_cut = !all && volume(box.sizes) > kShownMax;
  for (std::size_t dim = 0; dim < dims && is_cut; ++dim) {
    if (box.sizes[dim] <= 2 * kEnds) continue;
    shown.has_gap[dim] = true;
    shown.sizes[dim] = 2 * kEnds;
  }
  if (volume(shown.sizes) > kInMemoryMax)
    throw WrongUse(fmt::format("{} elements are too many to show at once, {} at most: ask for a part with --slice",
                               volume(shown.sizes), kInMemoryMax));
  // Read both ends of each dimension that has a gap, in all combinations.
  for (std::uint64_t corner = 0; corner < (std::uint64_t{1} << dims); ++corner) {
    Box from = box;
    Extents to = Extents::filled(dims, 0);
    bool exists = true;
    for (std::size_t dim = 0; dim < dims; ++dim) {
      const bool second = (corner >> dim & 1) != 0;
      if (second && !shown.has_gap[dim]) exists = false;
      if (!shown.has_gap[dim]) continue;
      from.sizes[dim] = kEnds;
      if (second) {
        from.offsets[dim] += box.sizes[dim] - kEnds;
        to[dim] = kEnds;
      }
    }
    if (!exists) continue;
    Bytes part = source.read(key, from);
    if (volume(from.sizes) == shown.count()) {
      shown.elements = std::move(part);
      break;
    }
    const std::size_t width = element_size(shown.dtype());
    shown.elements.resize(static_cast<std::size_t>(shown.count()) * width);
    part_of_dense(shown.elements.data(), shown.sizes, {to, from.sizes}, width).write(0, part);
  }
  return shown;
}

// Prints nested brackets, one line per row, with aligned columns.
class TensorText {
 public:
  TensorText(const Shown& shown, const Slice& slice) : shown_(shown) {
    for (std::int64_t i = 0; i < shown.count(); ++i) {
      texts_.push_back(element_text(shown.at(i), shown.dtype()));
      width_ = std::max(width_, texts_.back().size());
    }
    for (std::size_t dim = 0; dim < slice.is_index.size(); ++dim)
      if (!slice.is_index[dim]) dims_.push_back(dim);
  }

  void print(std::ostream& out) {
    if (shown_.count() == 0) {
      out << "[]\n";
      return;
    }
    print(out, 0, 0);
    out << '\n';
  }

 private:
  // Prints dimension `level` of the shown dimensions, from element `first` on.
  void print(std::ostream& out, std::size_t level, std::int64_t first) {
    if (level == dims_.size()) {
      out << std::string(dims_.empty() ? 0 : width_ - texts_[static_cast<std::size_t>(first)].size(), ' ')
          << texts_[static_cast<std::size_t>(first)];
      return;
    }
    const std::size_t dim = dims_[level];
    std::int64_t stride = 1;
    for (std::size_t inner = dim + 1; inner < shown_.sizes.size(); ++inner) stride *= shown_.sizes[inner];
    const bool innermost = level + 1 == dims_.size();
    const std::string separator =
        innermost ? ", " : "," + std::string(dims_.size() - level - 1, '\n') + std::string(level + 1, ' ');
    out << '[';
    for (std::int64_t i = 0; i < shown_.sizes[dim]; ++i) {
      if (i > 0) out << separator;
      if (shown_.has_gap[dim] && i == kEnds) out << "..." << separator;
      print(out, level + 1, first + i * stride);
    }
    out << ']';
  }

  const Shown& shown_;
  std::vector<std::string> texts_;
  std::size_t width_ = 0;
  std::vector<std::size_t> dims_;
};

Json nested(const Shown& shown, const Slice& slice, std::size_t dim, std::int64_t& next) {
  while (dim < slice.is_index.size() && slice.is_index[dim]) ++dim;
  if (dim == slice.is_index.size()) return element_json(shown.at(next++), shown.dtype());
  Json list = Json::array();
  for (std::int64_t i = 0; i < shown.sizes[dim]; ++i) list.push_back(nested(shown, slice, dim + 1, next));
  return list;
}

void cat_tensor(TensorSource& source, const CatOptions& options, const TensorStorageMetadata& stored) {
  const Slice slice = read_slice(options.slice, stored.size);
  const Shown shown = read_shown(source, options.key, stored, slice.box, options.full || options.json);
  if (options.json) {
    std::int64_t next = 0;
    const Json json{{"key", options.key},
                    {"dtype", stored.type_name()},
                    {"shape", stored.size.to_vector()},
                    {"offsets", slice.box.offsets.to_vector()},
                    {"sizes", slice.box.sizes.to_vector()},
                    {"values", nested(shown, slice, 0, next)}};
    std::cout << json.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
    return;
  }
  std::cout << fmt::format("{} {} {}{}\n", printable(options.key), stored.type_name(), to_string(stored.size),
                           options.slice.empty() ? "" : ", " + to_string(slice.box));
  TensorText(shown, slice).print(std::cout);
}

// Returns the exit code.
int cat_value(TensorSource& source, const CatOptions& options) {
  std::string kind = "bytes", text;
  int code = kFine;
  try {
    const SavedValue value = source.read_value(options.key);
    kind = value_kind(value);
    text = value_text(value, options.full ? std::string::npos / 2 : 4000);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    text = fmt::format("{} that cannot be shown: {}", human_bytes(source.read_bytes(options.key).size()), printable(error.what()));
    code = kFoundBad;
  }
  if (options.json) {
    std::cout << Json{{"key", options.key}, {"kind", kind}, {"text", text}}.dump(-1, ' ', false, Json::error_handler_t::replace)
              << '\n';
  } else {
    std::cout << fmt::format("{} is {}\n{}\n", printable(options.key), kind, text);
  }
  return code;
}

// Returns the reason why there is nothing to show.
std::string why_no_key(const std::string& key, const Metadata& metadata) {
  constexpr std::size_t kNamedMax = 5;
  std::string below;
  std::size_t count = 0;
  for (const auto& [name, entry] : metadata.state_dict_metadata)
    if (name.size() > key.size() && name[key.size()] == '.' && name.compare(0, key.size(), key) == 0 && ++count <= kNamedMax)
      below += fmt::format("{}\"{}\"", count == 1 ? "" : ", ", printable(name));
  for (auto dot = key.rfind('.'); count == 0 && dot != std::string::npos && dot > 0; dot = key.rfind('.', dot - 1)) {
    const std::string above = key.substr(0, dot);
    const Metadata::Entry* const whole = metadata.find(above);
    if (whole != nullptr && std::holds_alternative<BytesStorageMetadata>(*whole))
      return fmt::format("\"{}\" is one value, which is shown as a whole", printable(above));
  }
  if (count == 0) return printable(closest_names_text(key, metadata, SuggestPrefixes::kNo));
  return fmt::format("below it are {}{}", below, count > kNamedMax ? fmt::format(" and {} more", count - kNamedMax) : "");
}

int cat(const CatOptions& options) {
  const auto source = open_tensor_source(options.checkpoint, CheckParts::kNo);
  const Metadata::Entry* const entry = source->metadata().find(options.key);
  if (entry == nullptr)
    throw WrongUse(fmt::format("{} has no key \"{}\": {}", source->name(), printable(options.key),
                               why_no_key(options.key, source->metadata())));
  if (const auto* tensor = std::get_if<TensorStorageMetadata>(entry)) {
    cat_tensor(*source, options, *tensor);
    return kFine;
  }
  if (!options.slice.empty()) throw WrongUse(fmt::format("\"{}\" is no tensor: it has no slices", printable(options.key)));
  return cat_value(*source, options);
}

}  // namespace

void add_cat(CLI::App& app, Run& chosen) {
  const auto [command, options] = add_command(app, chosen, "cat", "Print the elements of a tensor, or a value", kCatExamples, cat);
  command->add_option("DIR", options.checkpoint, "The checkpoint, torch.save file or safetensors file")->required();
  command->add_option("KEY", options.key, "The key, as cairn inspect --json prints it")->required();
  command->add_option("--slice", options.slice, "The part to print: a range, a number or ':' for each dimension")
      ->type_name("0:4,:");
  command->add_flag("--full", options.full, "Print all elements, at most 2^28");
  command->add_flag("--json", options.json, "Print JSON with all elements, at most 2^28");
}

}  // namespace cairn::tools
