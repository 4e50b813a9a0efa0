#include <cairn/state/fields.hpp>

#include <limits>
#include <optional>
#include <set>
#include <type_traits>

#include <ATen/core/grad_mode.h>

#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

std::string tensor_text(const torch::Tensor& tensor) {
  return std::string("a tensor of size ") + to_string(extents_of(tensor.sizes())) + " " + c10::toString(tensor.scalar_type());
}

// The types of fields are fixed at compile time, and each has one form in Python.
Value value_of(const Field& field) {
  return std::visit(
      [&](auto* place) -> Value {
        using Type = std::remove_pointer_t<decltype(place)>;
        if constexpr (std::is_same_v<Type, std::uint64_t>) {
          if (*place > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
            throw Error(ErrorCode::kPrecondition, "field \"" + field.name + "\" is " + std::to_string(*place) +
                                                      ", and whole numbers are saved up to 2^63: save it as a tensor or as text");
          return Value(static_cast<std::int64_t>(*place));
        } else if constexpr (std::is_same_v<Type, float>) {
          // Python has one type for floats. Every float is a double exactly.
          return Value(static_cast<double>(*place));
        } else if constexpr (std::is_same_v<Type, torch::Tensor>) {
          if (!place->defined())
            throw Error(ErrorCode::kPrecondition,
                        "field \"" + field.name + "\" is an undefined tensor: give it its shape before it is saved or loaded");
          return Value(*place);
        } else {
          return Value(*place);
        }
      },
      field.place);
}

// Stores a loaded value in its field. Cannot fail.
using Adopt = std::function<void()>;

template <class Type>
Adopt adopt_number(Type* place, Type number) {
  return [place, number] { *place = number; };
}

// Returns a function that stores `loaded` in the field. If `loaded` does not fit, returns nothing
// and sets `wrong` to the reason.
// A whole number fits into a field of floats: a Python program may have stored 1 for 1.0.
std::optional<Adopt> fit(const Field& field, const Value& loaded, std::string& wrong) {
  const c10::IValue* const plain = loaded.is_ivalue() ? &loaded.ivalue() : nullptr;
  return std::visit(
      [&](auto* place) -> std::optional<Adopt> {
        using Type = std::remove_pointer_t<decltype(place)>;
        if constexpr (std::is_same_v<Type, bool>) {
          if (plain && plain->isBool()) return adopt_number(place, plain->toBool());
          wrong = "a bool";
        } else if constexpr (std::is_integral_v<Type>) {
          if (plain && plain->isInt()) {
            const std::int64_t number = plain->toInt();
            // The round trip shows whether the number fits.
            if (static_cast<std::int64_t>(static_cast<Type>(number)) == number && (std::is_signed_v<Type> || number >= 0))
              return adopt_number(place, static_cast<Type>(number));
            wrong = "a number of a smaller range than " + std::to_string(number);
            return std::nullopt;
          }
          wrong = "a whole number";
        } else if constexpr (std::is_floating_point_v<Type>) {
          if (plain && (plain->isDouble() || plain->isInt())) return adopt_number(place, static_cast<Type>(loaded.to_double()));
          wrong = "a number";
        } else if constexpr (std::is_same_v<Type, std::string>) {
          if (plain && plain->isString()) return [place, text = plain->toStringRef()] { *place = text; };
          wrong = "text";
        } else if constexpr (std::is_same_v<Type, Blob>) {
          if (loaded.is_blob()) return [place, blob = loaded.blob()] { *place = blob; };
          wrong = "bytes";
        } else {
          if (loaded.is_tensor() && loaded.tensor().defined() && place->defined() && loaded.tensor().sizes() == place->sizes() &&
              loaded.tensor().scalar_type() == place->scalar_type()) {
            // The load has filled this tensor in place already.
            if (loaded.tensor().unsafeGetTensorImpl() == place->unsafeGetTensorImpl()) return [] {};
            return [place, from = loaded.tensor()] {
              const at::NoGradGuard no_grad;
              place->copy_(from);
            };
          }
          wrong = place->defined() ? tensor_text(*place) : "an undefined tensor";
          if (loaded.is_tensor() && loaded.tensor().defined()) {
            wrong += ", not " + tensor_text(loaded.tensor());
            return std::nullopt;
          }
        }
        wrong += std::string(", not ") + loaded.type_name();
        return std::nullopt;
      },
      field.place);
}

class Fields final : public Stateful {
 public:
  Fields(std::vector<Field> fields, std::shared_ptr<const void> owner) : fields_(std::move(fields)), owner_(std::move(owner)) {
    for (const Field& field : fields_)
      if (!names_.insert(field.name).second)
        throw Error(ErrorCode::kInvalidArgument, "two fields of one struct are called \"" + field.name + "\"");
  }

  Dict state_dict() override {
    Dict dict;
    for (const Field& field : fields_) dict.insert(field.name, value_of(field));
    return dict;
  }

  void load_state_dict(const Dict& state_dict) override {
    std::string problems;
    // Two passes: all fields are checked before the first one changes.
    std::vector<Adopt> adoptions;
    for (const Field& field : fields_) {
      const Value* const loaded = state_dict.find(field.name);
      std::string wrong;
      if (!loaded)
        problems += "\n  \"" + field.name + "\" is missing";
      else if (auto adopt = fit(field, *loaded, wrong))
        adoptions.push_back(std::move(*adopt));
      else
        problems += "\n  \"" + field.name + "\" is " + wrong;
    }
    for (const auto& item : state_dict)
      if (names_.count(item.first) == 0) problems += "\n  \"" + item.first + "\" is not a field of it";
    if (!problems.empty())
      throw Error(ErrorCode::kMismatch, "load the fields of a struct: what was loaded does not fit; no field was set:" + problems);
    for (const Adopt& adopt : adoptions) with_torch("load the fields of a struct", adopt);
  }

 private:
  const std::vector<Field> fields_;
  std::set<std::string> names_;
  const std::shared_ptr<const void> owner_;
};

}  // namespace

std::shared_ptr<Stateful> stateful_fields(std::vector<Field> fields, std::shared_ptr<const void> owner) {
  return std::make_shared<Fields>(std::move(fields), std::move(owner));
}

}  // namespace cairn
