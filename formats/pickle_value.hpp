// Python values in memory, as described by a pickle. Nothing is imported, called or constructed.
//
// A PickleTree owns the nodes of one pickle; a PickleValue points to one of them. A Python object
// that is referenced several times is one node, so the size of a tree is bounded by the size of its
// pickle. Destroying a tree does not recurse. Trees contain no cycles and nest no deeper than
// PickleLimits::depth_max, so recursive walks do not overflow the stack. A walk that visits a
// shared node once per reference may take exponential time; `PickleValue::id` tells which nodes are
// shared.
//
// A value that is not on the reader's list is opaque: an object of a class that the reader does not
// know, a class itself, a set, an int of more than 64 bits. The tree describes how Python would
// make the value. Only the accessors for opaque values accept it.
//
// Texts and bytes are borrowed from the pickle, which must outlive the tree. Several threads may
// read a const tree.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn {

enum class PickleKind : std::uint8_t {
  kNone = 1,
  kBool,
  kInt,  // 64 bits; `unpickle` refuses larger ones
  kFloat,
  kText,   // UTF-8; may contain lone surrogates, as Python writes them
  kBytes,  // bytes and bytearray
  kList,
  kTuple,
  kDict,          // in the order of the pickle; a key that was set twice appears twice
  kGlobal,        // a class or function, by name
  kObject,        // the result of calling or instantiating a global
  kPersistentId,  // an object outside the pickle
  kOpaque,        // anything else; `shape` says what it looks like
};
const char* to_string(PickleKind kind) noexcept;  // "an int", "a dict", …: for error texts

// The name of a class or function.
struct PickleGlobal {
  std::string_view module;
  std::string_view name;

  friend bool operator==(const PickleGlobal& a, const PickleGlobal& b) { return a.name == b.name && a.module == b.module; }
  friend bool operator!=(const PickleGlobal& a, const PickleGlobal& b) { return !(a == b); }
};
std::string to_string(const PickleGlobal& global);  // "torch.Size"

class PickleTree;

// A node of a tree. Cheap to copy. Valid until the tree is destroyed or moved. Accessors throw
// kCorrupt if the value is of another kind, and kUnsupported if it is opaque; the error says what
// was found and where.
class PickleValue {
 public:
  PickleKind kind() const;
  bool is(PickleKind kind_asked) const { return kind() == kind_asked; }
  bool is_none() const { return is(PickleKind::kNone); }
  bool is_global(std::string_view module, std::string_view name) const;
  // Returns whether this is an object made by calling or instantiating that global.
  bool is_object_of(std::string_view module, std::string_view name) const;

  bool as_bool() const;
  std::int64_t as_int() const;
  double as_float() const;
  std::string_view as_text() const;
  std::string_view as_bytes() const;
  PickleGlobal as_global() const;

  // Returns the number of elements of a list, tuple or opaque set, or the number of pairs of a
  // dict.
  std::size_t size() const;
  PickleValue operator[](std::size_t index) const;  // for a list, tuple or opaque set
  PickleValue key(std::size_t index) const;         // for a dict
  PickleValue mapped(std::size_t index) const;      // for a dict
  // Returns the value of a text key of a dict, the last one if the key was set twice. O(size).
  std::optional<PickleValue> find(std::string_view key) const;
  // Does the same, but throws kCorrupt if the key is absent.
  PickleValue at(std::string_view key) const;

  // For objects, including opaque ones:
  PickleValue callee() const;                // a global, unless the object is opaque
  PickleValue arguments() const;             // a tuple
  std::optional<PickleValue> state() const;  // the argument of `__setstate__`, or the content of `__dict__`
  PickleValue items() const;                 // a dict of the items assigned to the object; often empty
  // For persistent ids:
  PickleValue persistent_id() const;

  // For opaque values. The shape is the kind that the value would have if it were on the list: a
  // global or an object. It is a list for a set or frozenset (its elements), an int or bytes for an
  // opcode that is kept as it is, and None where a value that contains itself was cut.
  PickleKind shape() const;
  PickleGlobal global() const;                  // of a class or function, opaque or not
  std::optional<PickleValue> keywords() const;  // of an object: a dict of the keyword arguments
  std::optional<PickleValue> elements() const;  // of an object: a list of what was appended to it
  std::string_view opcode() const;              // the opcode that is kept, with its argument
  std::string opaque_name() const;              // "argparse.Namespace": the class or function that is not on the list
  std::string why_opaque() const;               // the reason, as a part of a sentence

  // Returns the identity: values of one tree with equal ids are the same Python object.
  std::uint32_t id() const { return id_; }
  // Returns the position in the pickle, in bytes, of the opcode that made the value.
  std::uint64_t position() const;
  // Returns the text with which errors about this value begin: "the metadata, at byte 17".
  std::string where() const;

 private:
  friend class PickleTree;
  friend class Unpickler;
  PickleValue(const PickleTree* tree, std::uint32_t id) : tree_(tree), id_(id) {}
  void expect(PickleKind kind_wanted) const;
  std::string_view borrowed() const;                 // of a text, bytes or an opcode
  PickleValue in_pair(std::size_t index) const;      // of a dict: key, value, key, value, …
  std::optional<PickleValue> if_there(std::uint32_t id) const;

  const PickleTree* tree_;
  std::uint32_t id_;
};

// Throw kCorrupt and kUnsupported, respectively. The text gives the position of `value` in the
// pickle. `corrupt` throws kUnsupported for an opaque value, with its own reason.
[[noreturn]] void corrupt(const PickleValue& value, const std::string& why);
[[noreturn]] void unsupported(const PickleValue& value, const std::string& why);

// Calls `visit` for everything that a value is made of. `name` is that of an attribute, an item or
// a keyword argument, and "" for arguments and elements.
using VisitPart = std::function<void(std::string_view name, const PickleValue& part)>;
void for_each_part(const PickleValue& value, const VisitPart& visit);

class PickleTree {
 public:
  PickleTree(PickleTree&&) noexcept = default;
  PickleTree& operator=(PickleTree&&) noexcept = default;

  PickleValue root() const { return {this, root_}; }
  std::size_t node_count() const { return nodes_.size(); }
  // Returns the size of the pickle in bytes, up to and including its end. Bytes after it are not
  // part of the pickle.
  std::uint64_t consumed_bytes() const { return consumed_bytes_; }
  // Returns the name of the pickle in error texts, as passed to `unpickle`.
  const std::string& what() const { return what_; }

 private:
  friend class PickleValue;
  friend class Unpickler;
  using Id = std::uint32_t;
  static constexpr Id kNoId = 0xffffffff;

  // The meaning of `first` and `second` depends on the kind:
  //   bool, int, float       second: the value's bits
  //   text, bytes            first: length; second: address
  //   tuple                  first: count; second: begin in children_
  //   list, dict             second: index in containers_, or kNoContainer
  //   global                 second: index in globals_
  //   object                 second: index in objects_
  //   opaque int or bytes    first: length; second: address of the opcode
  //   opaque list            first: 0 for a set, 1 for a frozenset; second: as for a list
  //   persistent id          as for a tuple of one
  struct Node {
    PickleKind kind;
    bool is_opaque;
    std::uint32_t position;
    std::uint64_t first;
    std::uint64_t second;
  };
  struct Object {
    Id callee;
    Id arguments;
    Id state = kNoId;
    Id items = kNoId;     // a dict
    Id elements = kNoId;  // a list
    Id keywords = kNoId;  // a dict
  };
  static constexpr std::uint64_t kNoContainer = ~std::uint64_t{0};

  PickleTree() = default;
  const std::vector<Id>& container(const Node& node) const;
  const Object& object_of(const PickleValue& value) const;
  std::size_t child_count(const Node& node) const;
  Id& child(Node& node, std::size_t index);
  // Throws kUnsupported if a value below the root nests deeper than `depth_max`. If a value
  // contains itself, throws kUnsupported, or, if `cut` is set, puts an opaque value in its place
  // there.
  void check_nesting(std::uint32_t depth_max, bool cut);

  std::vector<Node> nodes_;
  std::vector<Id> children_;
  std::vector<std::vector<Id>> containers_;  // for a dict: key, value, key, value, …
  std::vector<Object> objects_;
  std::vector<PickleGlobal> globals_;
  std::deque<std::string> owned_texts_;  // texts that the pickle has in another encoding, as UTF-8
  Id root_ = 0;
  Id empty_dict_ = 0;
  std::uint64_t consumed_bytes_ = 0;
  std::string what_;
};

}  // namespace cairn
