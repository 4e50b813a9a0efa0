// Writes a pickle, opcode by opcode, that Python's unpickler can read. The caller must know the
// stack machine of pickles.
//
//   Pickler out(4);
//   out.empty_dict();  // {"step": 7}
//   out.mark(); out.text("step"); out.integer(7); out.set_items();
//   Bytes pickle = std::move(out).finish();
//
// Texts and globals are memoised automatically: each is written once, and later uses refer to it.
// The same calls produce the same bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/name_table.hpp>

namespace cairn {

class Pickler {
 public:
  using Slot = std::uint32_t;  // of the memo

  // `protocol` must be 2 or 4. torch.save writes protocol 2, and torch.load(weights_only=True)
  // reads only that. Protocol 4 is more compact, and the only one for texts and bytes above 4 GiB.
  explicit Pickler(int protocol);

  void none();
  void boolean(bool value);
  void integer(std::int64_t value);
  void real(double value);
  Slot text(std::string_view value);  // throws kInvalidArgument unless it is UTF-8; returns its slot
  // Writes a text without memoising it, or appends it to another pickle. Both throw as `text` does.
  void text_apart(std::string_view value) { append_text(out_, value, protocol_); }
  static void append_text(Bytes& out, std::string_view value, int protocol);
  void bytes(ByteSpan value);         // a Python bytes object
  void global(std::string_view module, std::string_view name);

  void mark();
  void tuple_from_mark();
  void tuple(std::size_t count);  // makes a tuple of the top `count` values; if there are more than 3, a mark is below them
  void empty_list();
  void appends();  // appends the values since the mark to the list below it
  void empty_dict();
  void set_items();      // stores the pairs since the mark in the dict below it
  void reduce();         // calls the global below its tuple of arguments
  void new_object();     // instantiates the class below its tuple of arguments
  void build();          // sets the state of the object below to the top value
  void persistent_id();  // pushes the object that the top value names

  // `remember` stores the top value in a slot of the memo. `recall` pushes the stored value again;
  // Python then sees one shared object.
  Slot remember();
  void recall(Slot slot);

  // Calls `write`, which must make the same calls each time. Once all its texts and globals are
  // remembered, repeats its bytes instead, which takes less time. `known` begins empty.
  template <class Write>
  void phrase(Bytes& known, const Write& write) {
    if (!known.empty()) return static_cast<void>(out_.append(known));
    const std::size_t begin = out_.size();
    const Slot slots = slots_;
    write();
    if (slots_ == slots) known = out_.substr(begin);
  }

  std::size_t size() const { return out_.size(); }
  Bytes finish() &&;

 private:
  void put(unsigned char opcode) { out_.push_back(static_cast<char>(opcode)); }
  void put_little_endian(std::uint64_t value, int bytes);

  int protocol_;
  Bytes out_;
  Slot slots_ = 0;
  NameTable texts_;
  std::vector<Slot> text_slots_;  // of the texts, in their order
  NameTable globals_;  // module, line feed, name
  std::vector<Slot> global_slots_;
};

}  // namespace cairn
