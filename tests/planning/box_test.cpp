#include <cairn/tests/support/plain.hpp>

#include <limits>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

TEST_CASE("extents of any length copy, move and compare as values") {
  for (std::size_t dims = 0; dims < 10; ++dims) {
    for (std::size_t other_dims = 0; other_dims < 10; ++other_dims) {
      const Extents original = Extents::filled(dims, 7);
      Extents target = Extents::filled(other_dims, -1), source = original;
      CHECK((target == original) == (dims == other_dims && dims == 0));
      target = original;
      CHECK(target == original);
      target = Extents::filled(other_dims, -1);
      target = std::move(source);
      CHECK(target == original);
      source = Extents{5};
      CHECK(source[0] == 5);
      const Extents& alias = target;
      target = alias;
      CHECK(Extents(target.to_vector()) == original);
      if (dims > 0) ++target[dims - 1];
      CHECK((original < target) == (dims > 0));
    }
  }
}

TEST_CASE("counting elements refuses what cannot be counted") {
  CHECK(volume({}) == 1);
  CHECK(volume({2, 3, 4}) == 24);
  CHECK(volume({kHuge, 0, kHuge}) == 0);
  CHECK(volume({kHuge}) == kHuge);
  CHECK_THROWS_AS(volume({kHuge, 2}), Error);
  CHECK_THROWS_AS(volume({3, -1}), Error);
  CHECK_THROWS_AS(volume({-1, 0}), Error);
}

TEST_CASE("boxes of different dimensions are not compared") {
  CHECK_THROWS_AS(intersect(Box{{0}, {4}}, Box{{0, 0}, {4, 4}}), Error);
  CHECK_FALSE(overlaps(Box{{0}, {4}}, Box{{0, 0}, {4, 4}}));
  CHECK_FALSE(contains(Box{{0}, {4}}, Box{{}, {}}));
  CHECK_FALSE(fits(Box{{0}, {4}}, {4, 4}));
  CHECK_FALSE(fits(Box{{0, 0}, {4}}, {4, 4}));
}

TEST_CASE("boxes meet in their common part") {
  CHECK(intersect(Box{{0, 0}, {4, 4}}, Box{{2, 3}, {4, 4}}) == Box{{2, 3}, {2, 1}});
  CHECK_FALSE(intersect(Box{{0, 0}, {4, 4}}, Box{{4, 0}, {4, 4}}));
  CHECK_FALSE(intersect(Box{{0, 0}, {4, 0}}, Box{{0, 0}, {4, 4}}));
  CHECK(intersect(Box{}, Box{}) == Box{});
  CHECK(intersect(Box{{1}, {kHuge}}, Box{{5}, {kHuge}}).has_value());
  CHECK_FALSE(overlaps(Box{{0}, {0}}, Box{{0}, {1}}));
}

TEST_CASE("a box lies within another, or within a tensor") {
  const Box outer{{2, 2}, {4, 4}};
  CHECK(contains(outer, outer));
  CHECK(contains(outer, {{3, 3}, {1, 1}}));
  CHECK_FALSE(contains(outer, {{1, 3}, {1, 1}}));
  CHECK_FALSE(contains(outer, {{5, 5}, {1, 2}}));
  CHECK(fits({{0, 4}, {3, 0}}, {3, 4}));
  CHECK_FALSE(fits({{0, 5}, {3, 0}}, {3, 4}));
  CHECK_FALSE(fits({{-1, 0}, {1, 1}}, {3, 4}));
  CHECK_FALSE(fits({{1, 0}, {-1, 1}}, {3, 4}));
  CHECK_FALSE(fits({{kHuge, 0}, {kHuge, 1}}, {3, 4}));
  CHECK(fits({}, {}));
}

TEST_CASE("dtypes go by PyTorch's names and sizes") {
  for (int value = 1; value <= kDTypeCount; ++value) {
    const auto dtype = static_cast<DType>(value);
    CHECK(element_size(dtype) > 0);
    CHECK(dtype_from_name(to_string(dtype)) == dtype);
    CHECK(is_dtype_name(to_string(dtype)));
  }
  CHECK(element_size(DType::kComplex128) == 16);
  CHECK(element_size(DType::kBFloat16) == 2);
  CHECK(dtype_from_name("float8_e4m3fn") == DType::kFloat8E4M3Fn);
  CHECK_FALSE(dtype_from_name("float33"));
  CHECK_FALSE(dtype_from_name(""));
  CHECK(element_size(DType::kUnknown) == 0);
  CHECK(to_string(DType::kUnknown) == std::string("unknown"));
  CHECK(element_size(static_cast<DType>(200)) == 0);
  for (const char* name : {"float6_e3m2fn", "uint4", "bits1x8", "quint4x2"}) CHECK(is_dtype_name(name));
  for (const char* name : {"", "float", "float_power", "Size", "8bits", "unknown", "int_repr", "float8\nos"})
    CHECK_FALSE(is_dtype_name(name));
}

}  // namespace
}  // namespace cairn
