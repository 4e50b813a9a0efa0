// Makes a Stateful object from the named fields of a trainer's struct.
//
//   struct Progress {
//     std::int64_t step = 0;
//     float best_loss = 1e9f;
//     torch::Tensor average;
//   };
//   auto progress = std::make_shared<Progress>();
//   state["progress"] = cairn::stateful(progress, {{"step", &Progress::step},
//                                                  {"best_loss", &Progress::best_loss},
//                                                  {"average", &Progress::average}});
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <torch/types.h>

#include <cairn/base/error.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn {

// The name and address of a field. Integers are saved as Python ints, float and double as Python
// floats, a Blob as bytes. Tensors are loaded in place, on any device and with any strides.
struct Field {
  using Place = std::variant<bool*, int*, std::int64_t*, std::uint64_t*, float*, double*, std::string*, torch::Tensor*, Blob*>;
  std::string name;
  Place place;

  template <class T>
  Field(std::string of_name, T& field) : name(std::move(of_name)), place(&field) {}
};

// Returns an object that saves the fields as a dict, in the given order. Its `load_state_dict`
// replaces either all fields or none. But tensors that `Checkpointer::load` has already filled in
// place keep the loaded values even if no field is replaced. If the loaded dict does not fit,
// `load_state_dict` throws kMismatch. The error names every field that is missing or unexpected,
// has the wrong type, shape or dtype, or is out of range. `Checkpointer::load` reads only the
// fields passed here. If the checkpoint lacks some of them, `Checkpointer::load` reports their
// names on all ranks.
//
// The fields must outlive the returned object. To ensure this, pass their owner as `owner`: the
// returned object keeps it alive. Throws kInvalidArgument if two fields have the same name. The
// object's `state_dict` throws kPrecondition if a tensor is undefined or a std::uint64_t is 2^63 or
// more.
std::shared_ptr<Stateful> stateful_fields(std::vector<Field> fields, std::shared_ptr<const void> owner = nullptr);

// The name of a field, and a member pointer to it.
template <class Struct>
class Member {
 public:
  template <class T>
  Member(const char* name, T Struct::*member)  // NOLINT: two arguments in braces
      : in_([name, member](Struct& object) { return Field(name, object.*member); }) {}
  Field in(Struct& object) const { return in_(object); }

 private:
  std::function<Field(Struct&)> in_;
};

template <class Struct>
struct MembersOf {
  using Type = std::initializer_list<Member<Struct>>;
};

// Does the same as `stateful_fields` for members of the struct `object`. The result keeps the
// struct alive. Throws kInvalidArgument for a null pointer.
template <class Struct>
std::shared_ptr<Stateful> stateful(std::shared_ptr<Struct> object, typename MembersOf<Struct>::Type members) {
  if (!object) throw Error(ErrorCode::kInvalidArgument, "state dict: a struct is a null pointer; leave its key out");
  std::vector<Field> fields;
  for (const Member<Struct>& member : members) fields.push_back(member.in(*object));
  return stateful_fields(std::move(fields), std::move(object));
}

}  // namespace cairn
