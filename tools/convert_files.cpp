// Converts to the single-file formats: safetensors, and the one that torch.load reads.
#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <filesystem>
#include <unordered_map>

#include <fmt/format.h>

#include <cairn/base/descriptor.hpp>
#include <cairn/formats/safetensors.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/planning/pieces.hpp>
#include <cairn/storage/stores/file_system.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/conversion.hpp>

namespace cairn::tools {
namespace {

void require_file_destination(const std::string& destination) {
  if (destination.find("://") != std::string::npos)
    throw WrongUse(fmt::format("{} is a URL: the destination must be a file's path", printable(destination)));
  if (destination.empty()) throw WrongUse("the name of the file to write is empty");
  const auto folder = std::filesystem::absolute(destination).parent_path();
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    throw WrongUse(fmt::format("cannot write {}: there is no directory {}", printable(destination), printable(folder)));
}

Error already_there(const std::string& path) {
  return Error(ErrorCode::kAlreadyExists, fmt::format("{} exists already; --force replaces it", printable(path)));
}

// A file that appears under its name only when it is complete. Until then it is written beside that
// name, as "<name>.cairn-partial". A process that is killed with SIGKILL leaves the partial file,
// which the next one empties.
class PartialFile {
 public:
  // Locks the partial file until it is finished or removed. Throws kAlreadyExists if the path
  // exists; if `replaces`, only if it is neither a regular file nor a symbolic link. Throws
  // kPrecondition if another process has locked the partial file, and file system errors.
  PartialFile(std::string path, bool replaces)
      : path_(std::move(path)), partial_path_(path_ + ".cairn-partial"), replaces_(replaces) {
    FileStatus status;
    if (files_.status(path_, false, status) >= 0) {
      if (!replaces_) throw already_there(path_);
      // Renaming over a device or a pipe would replace it for everyone who uses it.
      if (status.kind != FileKind::kRegular && status.kind != FileKind::kLink)
        throw Error(ErrorCode::kAlreadyExists,
                    fmt::format("{} is {}: name the file to write", printable(path_),
                                status.kind == FileKind::kDirectory ? "a directory" : "no regular file"));
    }
    file_.reset(::open(partial_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!file_.valid()) throw system_error("create", partial_path_, errno);
    open();
  }
  // Removes the partial file if it is unfinished.
  ~PartialFile() {
    if (!finished_) files_.remove_file(partial_path_);
  }

  // Returns whether an earlier process left bytes in the partial file, which are gone now.
  bool starts_over() const { return starts_over_; }

  void write_at(std::uint64_t offset, ByteSpan bytes) {
    for (std::size_t done = 0; done < bytes.size();) {
      const std::size_t left = bytes.size() - done;
      const ssize_t written = files_.write_at(file_.get(), bytes.data() + done, left, offset + done);
      require(written, fmt::format("write {} bytes to", left), partial_path_);
      done += static_cast<std::size_t>(written);
    }
  }

  // Completes the file: truncates it to `length`, syncs it and renames it into place, so that it
  // survives power loss. Unless it replaces one, throws kAlreadyExists if a file has appeared
  // meanwhile.
  void finish(std::uint64_t length) {
    require(files_.truncate(file_.get(), length), "cut", partial_path_);
    require(files_.sync_data(file_.get()), "sync", partial_path_);
    rename_into_place();
    finished_ = true;
    const std::string folder = std::filesystem::absolute(path_).parent_path().string();
    require(files_.sync_directory(folder), "sync", folder);
  }

 private:
  void open() {
    FileStatus opened, named;
    const bool is_locked = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0;
    if (!is_locked && errno != EWOULDBLOCK) throw system_error("lock", partial_path_, errno);
    require(files_.status_of(file_.get(), opened), "examine", partial_path_);
    // Between the opening and the lock, another process may have renamed the file into place.
    if (!is_locked || files_.status(partial_path_, false, named) < 0 || named.serial != opened.serial)
      throw Error(ErrorCode::kPrecondition,
                  fmt::format("another conversion writes there now ({} is locked)", printable(partial_path_)));
    starts_over_ = opened.size_bytes > 0;
    require(files_.truncate(file_.get(), 0), "cut", partial_path_);
  }

  void rename_into_place() {
    int result = replaces_ ? files_.rename(partial_path_, path_) : files_.rename_exclusively(partial_path_, path_);
    // Some file systems cannot do the latter. A link also fails if the name exists.
    if (!replaces_ && (result == -EINVAL || result == -ENOSYS)) {
      result = files_.link(partial_path_, path_);
      if (result >= 0) files_.remove_file(partial_path_);
    }
    if (!replaces_ && result == -EEXIST) throw already_there(path_);
    require(result, "rename into place", path_);
  }

  FileSystem& files_ = system_files();
  const std::string path_;
  const std::string partial_path_;
  const bool replaces_;
  Descriptor file_;
  bool starts_over_ = false;
  bool finished_ = false;
};

// One place of the nested state in the file: a leaf, a dict or a list.
struct Node {
  const ConvertedKey* leaf = nullptr;
  bool is_list = false;
  std::vector<std::pair<std::string, Node>> children{};      // of a list, by index; one without a leaf and children is None
  std::unordered_map<std::string, std::size_t> positions{};  // of a dict: indices into `children`
};

Node& child(Node& node, const PathElement& step, const Path& path) {
  const auto* const index = std::get_if<std::int64_t>(&step);
  if (node.leaf == nullptr && node.children.empty()) node.is_list = index != nullptr;
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::kMismatch, "state dict: cannot put a value at " + describe_path(path) + ": " + why);
  };
  if (node.leaf != nullptr || (node.is_list && index == nullptr)) fail("a value above it has no such place");
  if (!node.is_list) {
    // A path of PyTorch's may have whole numbers as keys.
    const std::string key = index != nullptr ? std::to_string(*index) : std::get<std::string>(step);
    const auto [known, is_new] = node.positions.emplace(key, node.children.size());
    return is_new ? node.children.emplace_back(key, Node()).second : node.children[known->second].second;
  }
  constexpr std::int64_t kListMax = std::int64_t{1} << 20;
  if (*index < 0 || *index >= kListMax) fail("lists are made with at most " + std::to_string(kListMax) + " elements");
  if (static_cast<std::size_t>(*index) >= node.children.size()) node.children.resize(static_cast<std::size_t>(*index) + 1);
  return node.children[static_cast<std::size_t>(*index)].second;
}

// Puts a state into a pickle. Collects its tensors in the order of their storages: keys whose
// elements are elsewhere, and, in values, the bytes of the elements.
class StatePickler {
 public:
  explicit StatePickler(Conversion& conversion) : conversion_(conversion) {}

  struct Storage {
    const ConvertedKey* key = nullptr;
    Bytes elements{};
  };

  Bytes pickle(const Node& root) {
    put(root, true, 0);
    return std::move(out_).finish();
  }
  const std::vector<Storage>& storages() const { return storages_; }

 private:
  void put(const Node& node, bool is_root, int depth) {
    check_nesting(depth);
    if (node.leaf != nullptr) return put(*node.leaf);
    if (node.children.empty() && !is_root) return out_.none();
    node.is_list ? out_.empty_list() : out_.empty_dict();
    if (node.children.empty()) return;
    out_.mark();
    for (const auto& [name, below] : node.children) {
      if (!node.is_list) out_.text(name);
      put(below, false, depth + 1);
    }
    node.is_list ? out_.appends() : out_.set_items();
  }

  void put(const ConvertedKey& key) {
    if (key.is_tensor) {
      pickler_.put_tensor(key.dtype, key.stored.size, key.stored.properties.requires_grad);
      storages_.push_back({&key});
      return;
    }
    const SavedValue value = conversion_.source().read_value(key.source);
    values_.push_back(value);  // shared parts are found by their addresses
    pickler_.put(value);
    if (pickler_.tensors().size() == storages_.size()) return;
    const Bytes bytes = conversion_.source().read_bytes(key.source);
    const TorchArchive archive(bytes, "a value");
    for (int i = 0; pickler_.tensors().size() > storages_.size(); ++i)
      storages_.push_back({nullptr, archive.read_storage(std::to_string(i))});
  }

  Conversion& conversion_;
  Pickler out_{2};
  SavedPickler pickler_{out_, BlobsAs::kBytes};
  std::vector<SavedValue> values_;
  std::vector<Storage> storages_;
};

}  // namespace

Converted convert_to_safetensors(Conversion& conversion) {
  const ConvertOptions& options = conversion.options();
  require_file_destination(options.destination);
  conversion.drop_values();
  conversion.leave_out([&](const ConvertedKey& key) {
    const bool packed = as_packed_bytes(key.stored).has_value();
    const std::string reason = packed ? "" : conversion.source().why_unreadable(key.source);
    return reason.empty() ? safetensors_objection(key.key, packed ? DType::kUInt8 : key.dtype) : reason;
  });
  std::unordered_map<std::string, const ConvertedKey*> by_name;
  std::vector<SafetensorsTensor> tensors;
  for (const ConvertedKey& key : conversion.keys()) {
    by_name[key.key] = &key;
    tensors.push_back({key.key, key.dtype, key.stored.size, {}, {}, key.stored.unknown_dtype, key.bytes()});
  }
  const Metadata& metadata = conversion.source().metadata();
  std::map<std::string, std::string> pairs{{"format", "pt"}};  // loaders ask for it
  if (metadata.commit && metadata.commit->step) pairs["step"] = std::to_string(*metadata.commit->step);
  if (metadata.commit) pairs["cairn_save_id"] = metadata.save_id;
  const SafetensorsLayout layout = lay_out_safetensors(std::move(tensors), pairs);

  PartialFile file(options.destination, options.force);
  std::uint64_t at = layout.head.size();
  file.write_at(0, layout.head);
  for (const SafetensorsTensor& tensor : layout.tensors) {
    const ConvertedKey& key = *by_name.at(tensor.name);
    const auto packed = as_packed_bytes(key.stored);
    for_each_piece(packed ? packed->size : key.stored.size, conversion.piece_elements(key), [&](const Box& box, std::int64_t) {
      const Bytes piece = conversion.read(key, box);
      file.write_at(at, piece);
      at += piece.size();
    });
  }
  file.finish(at);
  return {layout.tensors.size(), 0, at, file.starts_over()};
}

Converted convert_to_torch(Conversion& conversion) {
  const ConvertOptions& options = conversion.options();
  require_file_destination(options.destination);
  conversion.leave_out([&](const ConvertedKey& key) -> std::string {
    if (key.is_tensor) return conversion.source().why_unreadable(key.source);
    try {
      pickle_leaf(conversion.source().read_value(key.source), BlobsAs::kBytes);
      return "";
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      return printable(error.what());
    }
  });
  Node root;
  std::size_t values = 0;
  for (const ConvertedKey& key : conversion.keys()) {
    Node* place = &root;
    for (const PathElement& step : key.path) place = &child(*place, step, key.path);
    *place = Node{&key};
    values += !key.is_tensor;
  }
  StatePickler pickler(conversion);
  const Bytes pickle = pickler.pickle(root);

  PartialFile file(options.destination, options.force);
  TorchArchiveWriter archive(pickle, [&](std::uint64_t offset, ByteSpan bytes) { file.write_at(offset, bytes); });
  for (const StatePickler::Storage& storage : pickler.storages()) {
    archive.begin_storage(storage.key == nullptr ? storage.elements.size() : storage.key->bytes());
    if (storage.key == nullptr)
      archive.append(storage.elements);
    else
      for_each_piece(storage.key->stored.size, conversion.piece_elements(*storage.key),
                     [&](const Box& box, std::int64_t) { archive.append(conversion.read(*storage.key, box)); });
    archive.end_storage();
  }
  const std::uint64_t length = archive.finish();
  file.finish(length);
  return {pickler.storages().size(), values, length, file.starts_over()};
}

}  // namespace cairn::tools
