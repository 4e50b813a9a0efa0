// `cairn diff`: compares two checkpoints. Only a piece of one tensor of each is in memory at a
// time.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cairn/formats/torch_archive.hpp>
#include <cairn/planning/pieces.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/tensor_source.hpp>
#include <cairn/tools/terminal.hpp>
#include <cairn/tools/value_text.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kDiffExamples = R"(Examples:
  cairn diff run/step_100 run/step_200     compares keys, shapes, types and values
  cairn diff a b --tolerance 1e-6          ignores differences of at most 1e-6
  cairn diff a b --tensors 'model.*'       compares only these keys
  cairn diff run/step_100 model.pt         compares with a torch.save file
  cairn diff a b --json                    prints JSON

Layouts do not matter: a checkpoint of 4 ranks can be compared with one of 2. NaN equals NaN.
Tensors of different types differ; their values are compared as numbers.
Exits with 1 if anything differs.)";

struct DiffOptions {
  std::string a;
  std::string b;
  std::vector<std::string> tensors;
  double tolerance = 0;
  std::uint64_t memory = 256u << 20;
  bool json = false;
};

// The differences between the elements of one tensor.
struct TensorDifference : ElementDifference {
  std::vector<std::int64_t> index;  // of the first element that differs
  std::string first_a, first_b;

  double mean() const { return elements > one_nan ? sum / static_cast<double>(elements - one_nan) : 0; }
};

struct KeyDifference {
  std::string key;
  const char* what = "";  // "only_a", "only_b", "kind", "shape", "dtype", "values", "value", "unreadable"
  std::string a, b;       // both sides as text
  std::optional<TensorDifference> elements;
};

// Compares a piece of both tensors. Its elements begin at `begin` of tensors of size `size`.
void compare_piece(const Bytes& a, DType dtype_a, const Bytes& b, DType dtype_b, const Extents& size, double tolerance,
                   TensorDifference& found) {
  const std::int64_t begin = found.elements;
  const bool is_first = found.first < 0;
  compare_elements(a, dtype_a, b, dtype_b, tolerance, found);
  if (!is_first || found.first < 0) return;
  const auto at = static_cast<std::size_t>(found.first - begin);
  found.first_a = element_text(a.data() + at * element_size(dtype_a), dtype_a);
  found.first_b = element_text(b.data() + at * element_size(dtype_b), dtype_b);
  std::int64_t rest = found.first;
  found.index.assign(size.size(), 0);
  for (std::size_t dim = size.size(); dim > 0; --dim) {
    found.index[dim - 1] = rest % size[dim - 1];
    rest /= size[dim - 1];
  }
}

// Returns what equal values have in common. Files of torch.save may have bytes in place of an
// io.BytesIO.
Bytes content_of(TensorSource& source, const std::string& key, const SavedValue& value, bool with_elements) {
  constexpr std::size_t kOpaqueTextMax = std::size_t{1} << 28;  // shared parts are written once for each use
  Bytes content;
  if (value.is_opaque()) {
    PythonText text{kOpaqueTextMax, /*is_exact=*/true};
    put_pickle(text, value.value);
    content = text.take();
    if (!with_elements) return content;
  } else {
    const PickledLeaf pickled = pickle_leaf(value, BlobsAs::kBytes);
    content = pickled.pickle;
    if (pickled.tensors.empty()) return content;
  }
  const Bytes bytes = source.read_bytes(key);
  const TorchArchive archive(bytes, "a value");
  for (int i = 0; archive.has_storage(std::to_string(i)); ++i) content += archive.read_storage(std::to_string(i));
  return content;
}

class Comparison {
 public:
  explicit Comparison(const DiffOptions& options)
      : options_(options),
        a_(open_tensor_source(options.a, CheckParts::kYes)),
        b_(open_tensor_source(options.b, CheckParts::kYes)) {}

  void run() {
    for (const auto& [key, entry] : a_->metadata().state_dict_metadata) {
      if (!is_wanted(key)) continue;
      const Metadata::Entry* const other = b_->metadata().find(key);
      ++keys_;
      if (other == nullptr)
        add(key, "only_a", described(entry), "");
      else if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry))
        if (const auto* tensor_b = std::get_if<TensorStorageMetadata>(other); tensor_b && tensor_b->size == tensor->size)
          bytes_ += tensor_bytes(*tensor) + tensor_bytes(*tensor_b);
    }
    for (const auto& [key, entry] : b_->metadata().state_dict_metadata) {
      if (!is_wanted(key) || a_->metadata().find(key) != nullptr) continue;
      ++keys_;
      add(key, "only_b", "", described(entry));
    }
    ProgressBar progress("comparing");
    for (const auto& [key, entry] : a_->metadata().state_dict_metadata) {
      const Metadata::Entry* const other = b_->metadata().find(key);
      if (is_wanted(key) && other != nullptr) compare(key, entry, *other, progress);
    }
  }

  void print() const {
    std::cout << fmt::format("a: {}\nb: {}\n", a_->name(), b_->name());
    Table table;
    for (const auto& one : differences_) {
      std::string text = one.elements ? told(*one.elements) : one.a.empty() ? one.b : one.b.empty() ? one.a : one.a + " / " + one.b;
      table.add({coloured(Colour::kBad, shown(one.what)), printable(one.key), std::move(text)});
    }
    table.print();
    if (differences_.empty())
      std::cout << fmt::format(
          "{}: {} keys\n", coloured(Colour::kGood, options_.tolerance > 0 ? "no difference beyond the tolerance" : "no difference"),
          keys_);
    else
      std::cout << fmt::format("{} in {} keys\n", counted(differences_.size(), "difference"), keys_);
  }

  void print_as_json() const {
    Json json{
        {"a", a_->name()}, {"b", b_->name()}, {"keys", keys_}, {"equal", differences_.empty()}, {"differences", Json::array()}};
    for (const auto& one : differences_) {
      Json entry{{"key", one.key}, {"what", one.what}, {"a", one.a}, {"b", one.b}};
      if (one.elements) {
        const TensorDifference& found = *one.elements;
        const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value)); };
        entry.update({{"elements", found.elements},
                      {"different", found.different},
                      {"one_nan", found.one_nan},
                      {"max", number(found.max)},
                      {"mean", number(found.mean())},
                      {"first", found.index}});
      }
      json["differences"].push_back(std::move(entry));
    }
    print_json(json);
  }

  bool is_equal() const { return differences_.empty(); }
  std::size_t keys() const { return keys_; }

 private:
  static const char* shown(const std::string& what) {
    if (what == "only_a") return "only in a";
    if (what == "only_b") return "only in b";
    if (what == "unreadable") return "not compared";
    return what == "kind" ? "kind" : what == "shape" ? "shape" : what == "dtype" ? "dtype" : what == "values" ? "values" : "value";
  }

  static std::string told(const TensorDifference& found) {
    std::string index;
    for (const auto i : found.index) index += (index.empty() ? "" : ", ") + std::to_string(i);
    return fmt::format("{} of {} elements{}: max {:.6g}, mean {:.6g}; first at [{}]: {} / {}", found.different, found.elements,
                       found.one_nan > 0 ? fmt::format(", NaN in one of the two in {}", found.one_nan) : "", found.max,
                       found.mean(), index, found.first_a, found.first_b);
  }

  static std::string described(const Metadata::Entry& entry) {
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
    return tensor ? fmt::format("{} {}", tensor->type_name(), to_string(tensor->size)) : "bytes";
  }

  bool is_wanted(const std::string& key) const { return options_.tensors.empty() || matches_any(key, options_.tensors); }

  void add(const std::string& key, const char* what, std::string a, std::string b) {
    differences_.push_back({key, what, std::move(a), std::move(b), std::nullopt});
  }

  void compare(const std::string& key, const Metadata::Entry& entry_a, const Metadata::Entry& entry_b, ProgressBar& progress) {
    const auto* a = std::get_if<TensorStorageMetadata>(&entry_a);
    const auto* b = std::get_if<TensorStorageMetadata>(&entry_b);
    if ((a == nullptr) != (b == nullptr)) return add(key, "kind", described(entry_a), described(entry_b));
    try {
      if (a == nullptr) return compare_values(key);
      if (a->size != b->size) return add(key, "shape", described(entry_a), described(entry_b));
      if (a->type_name() != b->type_name()) add(key, "dtype", described(entry_a), described(entry_b));
      compare_elements(key, *a, *b, progress);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported && error.code() != ErrorCode::kCorrupt) throw;
      add(key, "unreadable", printable(error.what()), "");
    }
  }

  void compare_values(const std::string& key) {
    // Compare values, not bytes: different programs serialize the same value to different bytes.
    const SavedValue value_a = a_->read_value(key), value_b = b_->read_value(key);
    // In files of others, the tensors in an opaque value have keys of their own.
    const auto is_part = [](const TensorSource& source, const SavedValue& value) {
      return value.is_opaque() && !source.has_archives();
    };
    const bool with_elements = !is_part(*a_, value_a) && !is_part(*b_, value_b);
    if (content_of(*a_, key, value_a, with_elements) == content_of(*b_, key, value_b, with_elements)) return;
    constexpr std::size_t kTextMax = 200;
    add(key, "value", value_text(value_a, kTextMax), value_text(value_b, kTextMax));
  }

  void compare_elements(const std::string& key, const TensorStorageMetadata& a, const TensorStorageMetadata& b,
                        ProgressBar& progress, bool packed = false) {
    const auto read = [&](TensorSource& from, const Box& box) { return packed ? from.read_packed(key, box) : from.read(key, box); };
    const auto packed_a = as_packed_bytes(a), packed_b = as_packed_bytes(b);
    if (packed_a && packed_b && a.unknown_dtype == b.unknown_dtype)
      return compare_elements(key, *packed_a, *packed_b, progress, true);
    const std::size_t width = element_size(a.properties.dtype) + element_size(b.properties.dtype);
    // A piece of both. Half of the limit is left for the readers' own buffers.
    const auto elements_max =
        static_cast<std::int64_t>(std::max<std::uint64_t>(1, options_.memory / 2 / std::max<std::size_t>(1, width)));
    TensorDifference found;
    for_each_piece(a.size, elements_max, [&](const Box& box, std::int64_t) {
      const Bytes piece_a = read(*a_, box), piece_b = read(*b_, box);
      compare_piece(piece_a, a.properties.dtype, piece_b, b.properties.dtype, a.size, options_.tolerance, found);
      done_ += static_cast<std::uint64_t>(volume(box.sizes)) * width;
      progress.update(done_, bytes_);
    });
    if (found.different == 0) return;
    differences_.push_back({key, "values", found.first_a, found.first_b, std::move(found)});
  }

  const DiffOptions& options_;
  const std::unique_ptr<TensorSource> a_;
  const std::unique_ptr<TensorSource> b_;
  std::vector<KeyDifference> differences_;
  std::size_t keys_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t done_ = 0;
};

int diff(const DiffOptions& options) {
  Comparison comparison(options);
  comparison.run();
  if (comparison.keys() == 0 && !options.tensors.empty())
    throw WrongUse("no key of either matches --tensors; * matches any text; `cairn inspect` lists the keys");
  options.json ? comparison.print_as_json() : comparison.print();
  return comparison.is_equal() ? kFine : kFoundBad;
}

}  // namespace

void add_diff(CLI::App& app, Run& chosen) {
  const auto [command, options] =
      add_command(app, chosen, "diff", "Compare the keys, shapes, types and values of two checkpoints", kDiffExamples, diff);
  command->add_option("A", options.a, "A checkpoint, torch.save file or safetensors file")->required();
  command->add_option("B", options.b, "The one to compare it with")->required();
  add_patterns(*command, "--tensors", options.tensors, "Compare only keys that match this pattern");
  command->add_option("--tolerance", options.tolerance, "Largest absolute difference of elements that count as equal")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_memory(*command, options.memory);
  command->add_flag("--json", options.json, "Print JSON");
}

}  // namespace cairn::tools
