#include <cairn/formats/unpickler.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/settings.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/formats/opcodes.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/formats/zip_format.hpp>

namespace cairn {
namespace {

struct ParsedInt {
  std::optional<std::int64_t> value;
  bool is_too_large = false;  // a number, but wider than 64 bits
};

// Parses a decimal number, optionally followed by 'L'.
ParsedInt parse_text_int(std::string_view digits) {
  // Python 2 ends a long with this letter, and Python 3 does so in protocol 0.
  if (!digits.empty() && digits.back() == 'L') digits.remove_suffix(1);
  ParsedInt parsed;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  parsed.is_too_large = error == std::errc::result_out_of_range;
  if (error == std::errc() && end == digits.data() + digits.size()) parsed.value = value;
  return parsed;
}

// Parses a number in two's complement, little-endian, of any length.
ParsedInt parse_binary_int(std::string_view bytes) {
  const bool is_negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
  const char sign = is_negative ? '\xff' : '\0';
  // Bytes that repeat the sign may be there or not.
  while (bytes.size() > sizeof(std::uint64_t) && bytes.back() == sign) bytes.remove_suffix(1);
  std::string extended(bytes);
  extended.resize(std::max(bytes.size(), sizeof(std::uint64_t)), sign);
  const auto value = static_cast<std::int64_t>(zip::get_u64(extended.data()));
  ParsedInt parsed;
  parsed.is_too_large = extended.size() > sizeof value || (value < 0) != is_negative;
  if (!parsed.is_too_large) parsed.value = value;
  return parsed;
}

// Parses 8 bytes.
double parse_binary_float(std::string_view bytes) {
  std::uint64_t bits = 0;
  // Big-endian, unlike all other numbers in pickles.
  for (const char byte : bytes) bits = bits << 8 | static_cast<unsigned char>(byte);
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Decodes a text of protocol 0: \uXXXX and \UXXXXXXXX stand for characters, other bytes are
// Latin-1. Returns nothing if an escape is malformed.
std::optional<std::string> unescape_text(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    // Protocol 0 escapes some characters as \u and hexadecimal digits. Every other byte is a
    // Latin-1 character.
    const bool is_escape = line[i] == '\\' && i + 1 < line.size() && (line[i + 1] == 'u' || line[i + 1] == 'U');
    if (!is_escape) {
      append_utf8(text, static_cast<unsigned char>(line[i]));
      continue;
    }
    const std::size_t digits = line[i + 1] == 'u' ? 4 : 8;
    if (line.size() - i - 2 < digits) return std::nullopt;
    const char* const begin = line.data() + i + 2;
    std::uint32_t character = 0;
    const auto [end, error] = std::from_chars(begin, begin + digits, character, 16);
    if (error != std::errc() || end != begin + digits || character > 0x10ffff) return std::nullopt;
    append_utf8(text, character);
    i += digits + 1;
  }
  return text;
}

}  // namespace

// The stack machine of a pickle. Use one object per pickle.
class Unpickler {
 public:
  Unpickler(ByteSpan bytes, std::string what, const std::vector<PickleGlobal>& allowed, const PickleLimits& limits,
            OpaqueValues opaque)
      : bytes_(bytes),
        allowed_(allowed),
        keeps_opaque_(opaque == OpaqueValues::kKept),
        depth_max_(limits.depth_max),
        nodes_max_(std::min<std::uint64_t>(limits.nodes_max + bytes.size() / 2, PickleTree::kNoId)) {
    tree_.what_ = std::move(what);
  }

  PickleTree run() {
    // Python has one object of each of these. One node for each keeps trees small.
    none_ = add(PickleKind::kNone, 0, 0);
    false_ = add(PickleKind::kBool, 0, 0);
    true_ = add(PickleKind::kBool, 0, 1);
    empty_tuple_ = add(PickleKind::kTuple, 0, 0);
    tree_.empty_dict_ = add_container(PickleKind::kDict);
    while (true) {
      opcode_position_ = position_;
      const auto opcode = static_cast<unsigned char>(take(1, "the next opcode").front());
      if (opcode == pickle::kStop) break;
      step(opcode);
    }
    if (stack_.size() != 1 || !marks_.empty())
      corrupt(stack_.empty() ? "it ends without a value"
                             : "it ends with " + std::to_string(stack_.size()) + " values on its stack");
    tree_.root_ = stack_.back();
    tree_.consumed_bytes_ = position_;
    tree_.check_nesting(depth_max_, keeps_opaque_);
    return std::move(tree_);
  }

 private:
  using Id = PickleTree::Id;
  using Node = PickleTree::Node;

  // --- errors and input ---

  std::string where() const { return tree_.what_ + ", at byte " + std::to_string(opcode_position_) + " of its pickle"; }
  [[noreturn]] void corrupt(const std::string& why) const { throw Error(ErrorCode::kCorrupt, where() + ": " + why); }
  [[noreturn]] void unsupported(const std::string& why) const { throw Error(ErrorCode::kUnsupported, where() + ": " + why); }

  // Every byte of the input passes through here or take_line, which keep to its bounds.
  std::string_view take(std::uint64_t count, const char* reading) {
    // Subtracts, because position + count could overflow.
    if (count > bytes_.size() - position_)
      corrupt(std::string("the pickle ends within ") + reading + ": " + std::to_string(count) + " bytes are needed, " +
              std::to_string(bytes_.size() - position_) + " are left");
    const auto taken = bytes_.view().substr(position_, count);
    position_ += count;
    return taken;
  }

  std::uint64_t take_unsigned(int width, const char* reading) {
    const auto text = take(static_cast<std::uint64_t>(width), reading);
    std::uint64_t value = 0;
    for (int i = width; i > 0; --i) value = value << 8 | static_cast<unsigned char>(text[static_cast<std::size_t>(i - 1)]);
    return value;
  }

  // For opcodes with the number of bytes that follow.
  std::string_view take_counted(int width, const char* reading) { return take(take_unsigned(width, reading), reading); }

  // For the opcodes of protocol 0, whose arguments are text up to a line feed.
  std::string_view take_line(const char* reading) {
    const auto end = bytes_.view().find('\n', position_);
    if (end == std::string_view::npos) corrupt(std::string("the pickle ends within ") + reading + ", which no line feed ends");
    const auto line = bytes_.view().substr(position_, end - position_);
    position_ = end + 1;
    return line;
  }

  // --- nodes ---

  // Values cost more memory than their opcodes. The limit grows with the pickle.
  Id add(PickleKind kind, std::uint64_t first, std::uint64_t second) {
    if (tree_.nodes_.size() >= nodes_max_)
      unsupported("it holds more than " + std::to_string(nodes_max_) + " values, the most that are read of so many bytes");
    // Positions are for error texts; 32 bits keep a node at 24 bytes.
    const auto position = std::min<std::uint64_t>(opcode_position_, std::numeric_limits<std::uint32_t>::max());
    tree_.nodes_.push_back({kind, false, static_cast<std::uint32_t>(position), first, second});
    return static_cast<Id>(tree_.nodes_.size() - 1);
  }

  // The only place that makes opaque values: everything that is not on the list passes here.
  Id opaque(Id id) {
    tree_.nodes_[id].is_opaque = true;
    if (!keeps_opaque_) unsupported(PickleValue(&tree_, id).why_opaque());
    return id;
  }

  // Keeps the current opcode as it is, with its argument.
  Id add_opcode(PickleKind shape) {
    return opaque(add_bytes(shape, bytes_.view().substr(opcode_position_, position_ - opcode_position_)));
  }

  Id add_bytes(PickleKind kind, std::string_view bytes) {
    // Borrows from the pickle, which outlives the tree.
    return add(kind, bytes.size(), reinterpret_cast<std::uint64_t>(bytes.data()));
  }

  Id add_text(std::string_view text) {
    if (!is_utf8(text, Surrogates::kAllowed)) corrupt("a str that is not UTF-8");
    return add_bytes(PickleKind::kText, text);
  }

  Id add_int(std::int64_t value) { return add(PickleKind::kInt, 0, static_cast<std::uint64_t>(value)); }

  Id add_tuple(std::size_t from) {
    const auto count = stack_.size() - from;
    if (count == 0) return empty_tuple_;
    const auto begin = tree_.children_.size();
    tree_.children_.insert(tree_.children_.end(), stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
    stack_.resize(from);
    return add(PickleKind::kTuple, count, begin);
  }

  Id add_persistent(Id id) {
    tree_.children_.push_back(id);
    return add(PickleKind::kPersistentId, 1, tree_.children_.size() - 1);
  }

  Id add_container(PickleKind kind) { return add(kind, 0, PickleTree::kNoContainer); }

  Id add_global(std::string_view module, std::string_view name) {
    // Protocols 0 to 2 use the names of Python 2.
    if (module == "__builtin__") module = "builtins";
    if (module == "copy_reg") module = "copyreg";
    if (const auto known = global_nodes_.find({module, name}); known != global_nodes_.end()) return known->second;
    const PickleGlobal wanted{module, name};
    tree_.globals_.push_back(wanted);
    const auto id = add(PickleKind::kGlobal, 0, tree_.globals_.size() - 1);
    if (std::none_of(allowed_.begin(), allowed_.end(), [&](const PickleGlobal& one) { return allows(one, wanted); })) opaque(id);
    return global_nodes_[{module, name}] = id;
  }

  static bool allows(const PickleGlobal& allowed, const PickleGlobal& wanted) {
    if (allowed.module != wanted.module) return false;
    if (allowed.name.empty() || allowed.name.back() != '*') return allowed.name == wanted.name;
    const auto begin = allowed.name.substr(0, allowed.name.size() - 1);
    return wanted.name.substr(0, begin.size()) == begin;
  }

  // Python would call the function here. This only notes the function and its arguments.
  Id add_object(Id callee, Id arguments) {
    if (tree_.nodes_[arguments].kind != PickleKind::kTuple)
      corrupt(std::string("the arguments of a call are ") + to_string(tree_.nodes_[arguments].kind) + ", not a tuple");
    tree_.objects_.push_back({callee, arguments});
    const auto id = add(PickleKind::kObject, 0, tree_.objects_.size() - 1);
    const auto& called = tree_.nodes_[callee];
    return called.kind != PickleKind::kGlobal || called.is_opaque ? opaque(id) : id;
  }

  // --- stack ---

  void push(Id id) { stack_.push_back(id); }

  // A mark hides the values below it.
  void need(std::size_t count) const {
    const auto floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) corrupt("its stack holds fewer values than the opcode takes");
  }

  Id top() const {
    need(1);
    return stack_.back();
  }

  Id pop() {
    const auto id = top();
    stack_.pop_back();
    return id;
  }

  std::size_t pop_mark() {
    if (marks_.empty()) corrupt("an opcode takes everything up to a mark, and there is none");
    const auto from = marks_.back();
    marks_.pop_back();
    return from;
  }

  // Moves stack_[from..] into the list or dict below them.
  void put_into(std::size_t from, PickleKind kind) {
    const auto floor = marks_.empty() ? 0 : marks_.back();
    // The container must lie above the last mark, as in CPython.
    if (from <= floor) corrupt("values are put into a container, and there is none");
    auto target = stack_[from - 1];
    if (tree_.nodes_[target].kind == PickleKind::kObject) {
      // SETITEMS on an object assigns to it as to a dict, APPENDS appends as to a list.
      if (kind == PickleKind::kList) opaque(target);
      auto PickleTree::Object::*const part = kind == PickleKind::kDict ? &PickleTree::Object::items : &PickleTree::Object::elements;
      auto& into = tree_.objects_[tree_.nodes_[target].second].*part;
      if (into == PickleTree::kNoId) into = add_container(kind);
      target = into;
    }
    const auto found = tree_.nodes_[target].kind;
    if (found != kind) corrupt(std::string("values are put into ") + to_string(found) + " as into " + to_string(kind));
    if (kind == PickleKind::kDict && (stack_.size() - from) % 2 != 0) corrupt("a dict gets a key without a value");
    if (stack_.size() > from) {
      auto& index = tree_.nodes_[target].second;
      if (index == PickleTree::kNoContainer) {
        index = tree_.containers_.size();
        tree_.containers_.emplace_back();
      }
      auto& container = tree_.containers_[index];
      container.insert(container.end(), stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
    }
    stack_.resize(from);
  }

  // --- memo ---

  // Python numbers slots from 0, so that a vector is enough. Damaged pickles may use any number.
  void memo_put(std::uint64_t slot) {
    const auto id = top();
    if (slot < memo_.size()) {
      memo_[slot] = id;
    } else if (slot == memo_.size()) {
      memo_.push_back(id);
    } else {
      sparse_memo_[slot] = id;  // a slot number may be huge, but costs only one entry
    }
  }

  void memo_get(std::uint64_t slot) {
    if (slot < memo_.size()) return push(memo_[slot]);
    const auto found = sparse_memo_.find(slot);
    if (found == sparse_memo_.end()) corrupt("it refers to memo slot " + std::to_string(slot) + ", which nothing was put into");
    push(found->second);
  }

  std::uint64_t take_decimal(const char* reading) {
    const auto parsed = parse_text_int(take_line(reading));
    if (!parsed.value || *parsed.value < 0) corrupt(std::string("no number in ") + reading);
    return static_cast<std::uint64_t>(*parsed.value);
  }

  // Pushes a parsed int, or throws if parsing failed.
  void push_int(const ParsedInt& parsed) {
    if (parsed.is_too_large) return push(add_opcode(PickleKind::kInt));
    if (!parsed.value) corrupt("an int that is no number");
    push(add_int(*parsed.value));
  }

  // --- one opcode ---

  // The stack effects are those of CPython's pickle module, except that calls only make nodes.
  void step(unsigned char opcode) {
    using namespace pickle;
    switch (opcode) {
      case kProto:
        if (const auto protocol = take_unsigned(1, "the protocol"); protocol > 5)
          unsupported("pickle protocol " + std::to_string(protocol) + "; known are 0 to 5");
        return;
      case kFrame:
        // A frame only says how much to read at once.
        if (const auto length = take_unsigned(8, "a frame's length"); length > bytes_.size() - position_)
          corrupt("a frame of " + std::to_string(length) + " bytes, where " + std::to_string(bytes_.size() - position_) +
                  " are left");
        return;
      case kMark:
        // Each mark begins a container within the one of the mark before.
        if (marks_.size() > depth_max_) unsupported("values nest more than " + std::to_string(depth_max_) + " deep");
        return marks_.push_back(stack_.size());
      case kPop:
        // CPython keeps marks on the stack, so POP may remove one.
        if (stack_.size() == (marks_.empty() ? 0 : marks_.back()) && !marks_.empty()) return marks_.pop_back();
        pop();
        return;
      case kPopMark:
        return stack_.resize(pop_mark());
      case kDup:
        return push(top());

      case kNone:
        return push(none_);
      case kNewTrue:
        return push(true_);
      case kNewFalse:
        return push(false_);
      case kInt: {
        const auto line = take_line("an int");
        // Protocol 0 has no opcodes for truth values and writes them as 00 and 01.
        return line == "00" || line == "01" ? push(line == "00" ? false_ : true_) : push_int(parse_text_int(line));
      }
      case kLong:
        return push_int(parse_text_int(take_line("an int")));
      case kBinInt:
        // BININT is signed; BININT1 and BININT2 are not.
        return push(add_int(static_cast<std::int32_t>(take_unsigned(4, "an int"))));
      case kBinInt1:
      case kBinInt2:
        return push(add_int(static_cast<std::int64_t>(take_unsigned(opcode == kBinInt1 ? 1 : 2, "an int"))));
      case kLong1:
      case kLong4:
        return push_int(parse_binary_int(take_counted(opcode == kLong1 ? 1 : 4, "an int")));
      case kFloat:
      case kBinFloat: {
        const auto value = opcode == kFloat ? parse_number<double>(take_line("a float")) : parse_binary_float(take(8, "a float"));
        if (!value) corrupt("a float that is no number");
        std::uint64_t bits;
        std::memcpy(&bits, &*value, sizeof bits);
        return push(add(PickleKind::kFloat, 0, bits));
      }

      case kUnicode: {
        auto text = unescape_text(take_line("a str"));
        if (!text) corrupt("a str with a broken escape");
        // A deque: addresses of its elements stay valid as it grows.
        tree_.owned_texts_.push_back(std::move(*text));
        return push(add_bytes(PickleKind::kText, tree_.owned_texts_.back()));
      }
      case kShortBinUnicode:
      case kShortBinString:  // from Python 2; PyTorch reads it as text
        return push(add_text(take_counted(1, "a str")));
      case kBinUnicode:
      case kBinString:
        return push(add_text(take_counted(4, "a str")));
      case kBinUnicode8:
        return push(add_text(take_counted(8, "a str")));
      case kShortBinBytes:
      case kBinBytes:
      case kBinBytes8:
        return push(add_bytes(PickleKind::kBytes,
                              take_counted(opcode == kShortBinBytes ? 1 : opcode == kBinBytes ? 4 : 8, "bytes")));
      case kByteArray8:
        push(add_bytes(PickleKind::kBytes, take_counted(8, "bytes")));
        return push(add_object(add_global("builtins", "bytearray"), add_tuple(stack_.size() - 1)));

      case kEmptyTuple:
        return push(empty_tuple_);
      case kTuple1:
      case kTuple2:
      case kTuple3:
        need(opcode - kTuple1 + 1u);
        return push(add_tuple(stack_.size() - (opcode - kTuple1 + 1u)));
      case kTuple:
        return push(add_tuple(pop_mark()));
      case kEmptyList:
        return push(add_container(PickleKind::kList));
      case kEmptyDict:
        return push(add_container(PickleKind::kDict));
      case kList:
        return container_from_mark(PickleKind::kList);
      case kDict:
        return container_from_mark(PickleKind::kDict);
      case kAppend:
        need(2);
        return put_into(stack_.size() - 1, PickleKind::kList);
      case kAppends:
        return put_into(pop_mark(), PickleKind::kList);
      case kSetItem:
        need(3);
        return put_into(stack_.size() - 2, PickleKind::kDict);
      case kSetItems:
        return put_into(pop_mark(), PickleKind::kDict);

      case kGlobal: {
        const auto module = take_line("a module's name");
        return push(add_global(module, take_line("a class's or function's name")));
      }
      case kStackGlobal: {
        const auto name = PickleValue(&tree_, pop()).as_text();
        return push(add_global(PickleValue(&tree_, pop()).as_text(), name));
      }
      case kReduce:
      case kNewObject: {
        const auto arguments = pop();
        const auto callee = pop();
        return push(add_object(callee, arguments));
      }
      case kInstance:
      case kObject: {
        const auto from = pop_mark();
        // INST names the class itself. OBJ takes the value above the mark.
        if (opcode == kObject && stack_.size() == from) corrupt("it instantiates nothing");
        const auto arguments = add_tuple(opcode == kObject ? from + 1 : from);
        const auto module = opcode == kInstance ? take_line("a module's name") : std::string_view();
        const auto callee = opcode == kObject ? pop() : add_global(module, take_line("a class's name"));
        return push(add_object(callee, arguments));
      }
      case kNewObjectEx: {
        const auto keywords = pop();
        const auto arguments = pop();
        const auto callee = pop();
        if (tree_.nodes_[keywords].kind != PickleKind::kDict) corrupt("the keyword arguments of a call are no dict");
        const auto made = add_object(callee, arguments);
        if (tree_.nodes_[keywords].second == PickleTree::kNoContainer) return push(made);
        // Keyword arguments could change the meaning of the object.
        tree_.objects_[tree_.nodes_[made].second].keywords = keywords;
        return push(opaque(made));
      }
      case kEmptySet:
        return push(opaque(add_container(PickleKind::kList)));
      case kAddItems:
        return put_into(pop_mark(), PickleKind::kList);
      case kFrozenSet:
        container_from_mark(PickleKind::kList);
        tree_.nodes_[top()].first = 1;
        opaque(top());
        return;
      case kExtension1:
      case kExtension2:
      case kExtension4:
        take(opcode == kExtension1 ? 1 : opcode == kExtension2 ? 2 : 4, "an extension code");
        return push(add_opcode(PickleKind::kBytes));
      case kBuild: {
        const auto state = pop();
        const auto& node = tree_.nodes_[top()];
        if (node.kind != PickleKind::kObject) corrupt(std::string("it sets the state of ") + to_string(node.kind));
        auto& object = tree_.objects_[node.second];
        if (object.state != PickleTree::kNoId) unsupported("it sets the state of one object twice");
        object.state = state;
        return;
      }
      case kPersistentId:
        return push(add_persistent(add_text(take_line("a persistent id"))));
      case kBinPersistentId:
        return push(add_persistent(pop()));

      case kMemoize:
        // As CPython, the number of slots in use.
        return memo_put(memo_.size() + sparse_memo_.size());
      case kPut:
        return memo_put(take_decimal("a memo slot"));
      case kBinPut:
      case kLongBinPut:
        return memo_put(take_unsigned(opcode == kBinPut ? 1 : 4, "a memo slot"));
      case kGet:
        return memo_get(take_decimal("a memo slot"));
      case kBinGet:
      case kLongBinGet:
        return memo_get(take_unsigned(opcode == kBinGet ? 1 : 4, "a memo slot"));

      // Python may write these. Every other byte is damage.
      case kString:
        unsupported("opcode 'S' of an old pickle protocol; save it again with Python 3");
      case kNextBuffer:
      case kReadOnlyBuffer:
        unsupported("it keeps bytes outside the pickle");
      default:
        corrupt("byte " + std::to_string(opcode) + " is no pickle opcode");
    }
  }

  // Builds a container from everything since the mark.
  void container_from_mark(PickleKind kind) {
    const auto from = pop_mark();
    stack_.insert(stack_.begin() + static_cast<std::ptrdiff_t>(from), add_container(kind));
    put_into(from + 1, kind);
  }

  ByteSpan bytes_;
  const std::vector<PickleGlobal>& allowed_;
  const bool keeps_opaque_;
  const std::uint32_t depth_max_;
  const std::uint64_t nodes_max_;
  PickleTree tree_;
  std::uint64_t position_ = 0;
  std::uint64_t opcode_position_ = 0;
  std::vector<Id> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Id> memo_;
  std::unordered_map<std::uint64_t, Id> sparse_memo_;
  std::map<std::pair<std::string_view, std::string_view>, Id> global_nodes_;  // by module and name
  Id none_ = 0;
  Id false_ = 0;
  Id true_ = 0;
  Id empty_tuple_ = 0;
};

PickleTree unpickle(ByteSpan bytes, std::string what, const std::vector<PickleGlobal>& allowed, const PickleLimits& limits,
                    OpaqueValues opaque) {
  return Unpickler(bytes, std::move(what), allowed, limits, opaque).run();
}

}  // namespace cairn
