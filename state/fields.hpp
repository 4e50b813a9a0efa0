// A struct of the trainer's as a Stateful object: its fields, by name.
//
//   struct Progress {
//     std::int64_t step = 0;
//     float best_loss = 1e9f;
//     torch::Tensor average;
//   };
//   auto progress = std::make_shared<Progress>();
//   state["progress"] = cairn::stateful(progress, {{"step", &Progress::step}, {"best_loss", &Progress::best_loss}, {"average", &Progress::average}});
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

// One field: what it is called, and where it lives. Whole numbers are saved as Python's int, float and double as its float, a Blob
// as bytes. Tensors are loaded in place, whatever their device and layout.
struct Field {
  using Place = std::variant<bool*, int*, std::int64_t*, std::uint64_t*, float*, double*, std::string*, torch::Tensor*, Blob*>;
  std::string name;
  Place place;

  template <class T>
  Field(std::string of_name, T& field) : name(std::move(of_name)), place(&field) {}
};

// The fields as a dict, in their order. Loading takes over all of them or none: a field that is missing, one too many, or one of another
// type, range, shape or dtype throws kMismatch, which names all of them. (`Checkpointer::load` asks the checkpoint for these fields
// and no others: what else it holds stays unread, as everywhere; and says by their names which are missing, on all ranks.)
//
// Where the fields live must outlive the object; `owner` is kept for that. Throws kInvalidArgument for two fields of one name; asking
// for the state throws kPrecondition for a tensor that is undefined and a number beyond 2^63.
std::shared_ptr<Stateful> stateful_fields(std::vector<Field> fields, std::shared_ptr<const void> owner = nullptr);

// A field of any `Struct`, by member pointer.
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

// The same for a struct that the result keeps. Throws kInvalidArgument for a null pointer.
template <class Struct>
std::shared_ptr<Stateful> stateful(std::shared_ptr<Struct> object, typename MembersOf<Struct>::Type members) {
  if (!object) throw Error(ErrorCode::kInvalidArgument, "state dict: a struct is a null pointer; leave its key out");
  std::vector<Field> fields;
  for (const Member<Struct>& member : members) fields.push_back(member.in(*object));
  return stateful_fields(std::move(fields), std::move(object));
}

}  // namespace cairn
