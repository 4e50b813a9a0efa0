#include <cairn/formats/pickler.hpp>

#include <cstring>
#include <limits>

#include <cairn/base/error.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/formats/opcodes.hpp>
#include <cairn/formats/unicode.hpp>

namespace cairn {

using namespace pickle;

namespace {

constexpr std::uint64_t kMax8 = 0xff;
constexpr std::uint64_t kMax16 = 0xffff;
constexpr std::uint64_t kMax32 = 0xffffffff;

// Pickles are little-endian on every machine.
void append_little_endian(Bytes& out, std::uint64_t value, int bytes) {
  char encoded[8];
  for (int i = 0; i < 8; ++i) encoded[i] = static_cast<char>((value >> (8 * i)) & 0xff);
  out.append(encoded, static_cast<std::size_t>(bytes));
}

}  // namespace

Pickler::Pickler(int protocol) : protocol_(protocol) {
  check_invariant(protocol == 2 || protocol == 4, "pickles are written at protocol 2 or 4");
  put(kProto);
  put(static_cast<unsigned char>(protocol));
}

void Pickler::put_little_endian(std::uint64_t value, int bytes) { append_little_endian(out_, value, bytes); }

void Pickler::none() { put(pickle::kNone); }
void Pickler::boolean(bool value) { put(value ? kNewTrue : kNewFalse); }

void Pickler::integer(std::int64_t value) {
  // The shortest form, as CPython chooses it. As unsigned numbers, negative values are too large
  // for the first two.
  const auto bits = static_cast<std::uint64_t>(value);
  if (bits <= kMax8) {
    put(kBinInt1);
    put_little_endian(bits, 1);
  } else if (bits <= kMax16) {
    put(kBinInt2);
    put_little_endian(bits, 2);
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    put(kBinInt);
    put_little_endian(bits, 4);
  } else {
    // The shortest two's complement form, in which the top bit is the sign.
    int length = 5;
    while (length < 8 && (value >> (8 * length - 1)) != (value < 0 ? -1 : 0)) ++length;
    put(kLong1);
    put_little_endian(static_cast<std::uint64_t>(length), 1);
    put_little_endian(bits, length);
  }
}

void Pickler::real(double value) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  put(kBinFloat);
  // Big-endian, unlike all other numbers in pickles.
  for (int i = 7; i >= 0; --i) out_.push_back(static_cast<char>((bits >> (8 * i)) & 0xff));
}

Pickler::Slot Pickler::text(std::string_view value) {
  const NameId id = texts_.intern(value);
  if (id < text_slots_.size()) {
    recall(text_slots_[id]);
    return text_slots_[id];
  }
  // Python's pickler memoises texts as well. Key names repeat once per parameter.
  text_apart(value);
  text_slots_.push_back(remember());
  return text_slots_.back();
}

void Pickler::append_text(Bytes& out, std::string_view value, int protocol) {
  if (!is_utf8(value, Surrogates::kAllowed))
    throw Error(ErrorCode::kInvalidArgument, "the text \"" + printable(value) + "\" is not UTF-8: Python could not read it back");
  const auto begin = [&](unsigned char opcode, int bytes) {
    out.push_back(static_cast<char>(opcode));
    append_little_endian(out, value.size(), bytes);
  };
  if (protocol >= 4 && value.size() <= kMax8) {
    begin(kShortBinUnicode, 1);
  } else if (value.size() <= kMax32) {
    begin(kBinUnicode, 4);
  } else if (protocol >= 4) {
    begin(kBinUnicode8, 8);
  } else {
    throw Error(ErrorCode::kUnsupported,
                "a text of " + std::to_string(value.size()) + " bytes is more than pickle protocol 2 holds");
  }
  out.append(value);
}

void Pickler::bytes(ByteSpan value) {
  if (protocol_ < 4) {
    // Protocol 2 has no bytes. Like Python, write them as a str of the same Latin-1 characters.
    std::string characters;
    characters.reserve(value.size());
    for (std::size_t i = 0; i < value.size(); ++i) append_utf8(characters, static_cast<unsigned char>(value.data()[i]));
    global("_codecs", "encode");
    text(characters);
    text("latin1");
    tuple(2);
    reduce();
    return;
  }
  if (value.size() <= kMax8) {
    put(kShortBinBytes);
    put_little_endian(value.size(), 1);
  } else if (value.size() <= kMax32) {
    put(kBinBytes);
    put_little_endian(value.size(), 4);
  } else {
    put(kBinBytes8);
    put_little_endian(value.size(), 8);
  }
  out_.append(value.data(), value.size());
}

void Pickler::global(std::string_view module, std::string_view name) {
  const std::string both = std::string(module).append(1, '\n').append(name);
  if (const auto known = globals_.find(both)) return recall(global_slots_[*known]);
  if (protocol_ >= 4) {
    text(module);
    text(name);
    put(kStackGlobal);
  } else {
    // Protocol 2 uses Python 2's names, which readers translate.
    put(pickle::kGlobal);
    out_.append(module == "builtins" ? std::string_view("__builtin__") : module).push_back('\n');
    out_.append(name).push_back('\n');
  }
  globals_.intern(both);
  global_slots_.push_back(remember());
}

void Pickler::mark() { put(kMark); }
void Pickler::tuple_from_mark() { put(kTuple); }
// Opcodes of their own spare short tuples the mark.
void Pickler::tuple(std::size_t count) {
  put(static_cast<unsigned char>(count == 0 ? kEmptyTuple : count <= 3 ? kTuple1 + count - 1 : kTuple));
}
void Pickler::empty_list() { put(kEmptyList); }
void Pickler::appends() { put(kAppends); }
void Pickler::empty_dict() { put(kEmptyDict); }
void Pickler::set_items() { put(kSetItems); }
void Pickler::reduce() { put(kReduce); }
void Pickler::new_object() { put(kNewObject); }
void Pickler::build() { put(kBuild); }
void Pickler::persistent_id() { put(kBinPersistentId); }

// The number of slots is counted on both sides. An extra or missing call would shift all later
// references.
Pickler::Slot Pickler::remember() {
  const auto slot = slots_++;
  if (protocol_ >= 4) {
    // MEMOIZE names no slot: the unpickler counts them in the same order.
    put(kMemoize);
  } else {
    put(slot <= kMax8 ? kBinPut : kLongBinPut);
    put_little_endian(slot, slot <= kMax8 ? 1 : 4);
  }
  return slot;
}

void Pickler::recall(Slot slot) {
  put(slot <= kMax8 ? kBinGet : kLongBinGet);
  put_little_endian(slot, slot <= kMax8 ? 1 : 4);
}

Bytes Pickler::finish() && {
  put(kStop);
  return std::move(out_);
}

}  // namespace cairn
